"""Composing and submitting runs from Python, for notebooks and scripts: ``hpcml.compose(...).submit().wait()``.

What ``hpcml run`` takes is composed, checked and submitted as there, by the same code; what it would print on stderr is
logged as warnings. Nothing is asked: an account that is not known is an error. Errors that a user can cause are
`hpcml.errors.HpcmlError`, with a message of one line, and leave nothing submitted.

A typical notebook:

    import hpcml

    runs = hpcml.compose("model=mnist_cnn", sweep={"precision": ["fp32", "tf32"], "seed": range(3)})
    submission = runs.submit(only_missing=True)  # a cell that is executed again submits nothing twice
    submission.wait().to_pandas()
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePath
from typing import overload

from hpcml.api.store import Runs, Store, open_store
from hpcml.codec import encode
from hpcml.commands.submit import check
from hpcml.commands.submit.advice import SubmissionPreview, preview_submission
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.plan import Planned
from hpcml.commands.submit.run import LoggedReporter, submit_points
from hpcml.config.compose import Composed, check_told_apart, compose_command
from hpcml.config.from_python import argument_word, arguments, setting_word, sweep_word
from hpcml.config.sweep import most_runs
from hpcml.errors import ConfigError, require
from hpcml.model.records import RunRecord
from hpcml.model.run import Run
from hpcml.model.secrets import masked
from hpcml.paths import Places, locate
from hpcml.report import dry_run
from hpcml.report.status import Standing
from hpcml.units import one_or_many

_MULTIRUN = frozenset({"-m", "--multirun"})
_ASKED_OTHERWISE = {
    "-n": "preview()",
    "--dry-run": "preview()",
    "--missing": "submit(only_missing=True)",
    "--as-is": "compose(as_is=True)",
    "--metric": "compose(settings={'workload.metrics': [{'name': NAME}]})",
    "--detach": "what submit() does",
    "--": "compose(program=...)",
}
_ADDED = "+"  # between the command lines of runs that were composed apart


def compose(
    *words: str,
    settings: Mapping[str, object] | None = None,
    sweep: Mapping[str, Iterable[object]] | None = None,
    program: str | Sequence[str | PurePath] | None = None,
    as_is: bool = False,
) -> ComposedRuns:
    """Compose the runs that ``hpcml run`` would with these words; nothing is written or submitted.

    *words* are those of the command line, one each: ``"+cluster=karolina"``, ``"-m"``, ``"seed=0,1"``. *settings* and
    *sweep* say the same with Python's values: each of *settings* has one, and all combinations of those of *sweep* are
    made, the last changing fastest, and settings of the program (``args.lr``) faster than others. *program* is a
    command line of your own, what stands behind ``--``: words, or a text that is split as a shell would. *as_is*: none
    of its words is a sweep; else lists with commas are, where there is another. The folder is the current one, as for
    the command: ``./conf`` may add options, and the program is found from there.

    Raises an `HpcmlError` where a configuration is wrong: one bad point of a sweep refuses all. Whether this machine or
    the cluster can run them is found out by `ComposedRuns.preview` and `ComposedRuns.submit`.

        hpcml.compose("model=mnist_cnn", settings={"training.steps": 50}, sweep={"precision": ["fp32", "tf32"]})
        hpcml.compose(program="python train.py --lr {lr}", sweep={"args.lr": [0.1, 0.01], "seed": range(3)})
    """
    behind = None if program is None else program_words(program)
    settings, sweep = settings or {}, sweep or {}
    given = {} if behind is None else arguments(settings, sweep)
    typed = [_word(word) for word in words]
    typed += [setting_word(key, value) for key, value in settings.items() if key not in given]
    swept = [sweep_word(key, values) for key, values in sweep.items() if key not in given]
    is_sweep = any(several for _, several in swept) or any(len(values) > 1 for _, values in given.values())
    typed = [*(["-m"] if is_sweep and not _MULTIRUN & {*typed} else []), *typed, *(word for word, _ in swept)]
    most, project = most_runs(os.environ), Path.cwd()
    points, remarks = compose_command(
        typed, behind, arguments=dict(given.values()), project=project, is_literal=as_is, most=most
    )
    require(bool(points), f"{' '.join(typed)} asks Hydra to print something: there is no run")
    typed += [argument_word(key, values, is_sweep=bool(_MULTIRUN & {*typed})) for key, (_, values) in given.items()]
    flags = ["--as-is"] if as_is else []
    return ComposedRuns(
        points,
        remarks=remarks,
        project=project,
        command_line=["hpcml", "run", *flags, *typed, *([] if behind is None else ["--", *behind])],
    )


class ComposedRuns(Sequence[Run]):
    """The configurations of runs, each valid in itself, in the order of the sweep; `compose` makes them."""

    def __init__(
        self, points: Sequence[Composed], *, remarks: Iterable[str], project: Path, command_line: Sequence[str]
    ) -> None:
        self._points = points
        self._project = project
        self._command_line = command_line
        self.remarks = list(remarks)

    @overload
    def __getitem__(self, at: int) -> Run: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Run]: ...
    def __getitem__(self, at: int | slice) -> Run | Sequence[Run]:
        return [point.run for point in self._points][at]

    def __len__(self) -> int:
        return len(self._points)

    @property
    def points(self) -> Sequence[Composed]:
        """The runs, each with the words that it was composed with."""
        return self._points

    def __repr__(self) -> str:
        return f"<{len(self)} composed {one_or_many(len(self), 'runs')}: {shlex.join(masked(self._command_line))}>"

    def __add__(self, other: ComposedRuns) -> ComposedRuns:
        """Return the runs of both, to be submitted together: points that are no product of lists.

        Raises `ConfigError` where they were composed in different folders.
        """
        require(self._project == other._project, f"composed in {self._project} and in {other._project}: not together")
        return ComposedRuns(
            [*self._points, *other._points],
            remarks=dict.fromkeys([*self.remarks, *other.remarks]),
            project=self._project,
            command_line=[*self._command_line, _ADDED, *other._command_line],
        )

    @property
    def overrides(self) -> list[tuple[str, ...]]:
        """The words that each run was composed with, for one point of a sweep: ``seed=0``, not ``seed=0,1``."""
        return [point.overrides for point in self._points]

    def preview(self, store: Store | None = None) -> ShownPreview:
        """Return what `submit` would do, as ``hpcml run --dry-run`` says: plans, job scripts, calls and warnings.

        ``print`` shows it. Nothing is written, built or submitted. Raises the `HpcmlError` that `submit` would raise;
        an account that is not known has a placeholder.
        """
        places = locate(os.environ) if store is None else store.places
        planned, backends = self._planned(places, is_dry=True)
        found = preview_submission(planned, places, backends, environ=os.environ, project=self._project)
        return ShownPreview(**{one.name: getattr(found, one.name) for one in fields(found)})

    def submit(self, store: Store | None = None, *, only_missing: bool = False) -> Submission:
        """Check the runs against this machine or their cluster and submit them; return without waiting for them.

        The runs are kept in the home of *store*, by default where the commands keep them. *only_missing*: what has
        completed or is under way with the same configuration is not submitted again, and belongs to the returned
        `Submission` as it is. Raises an `HpcmlError` where a run is refused, or its scheduler refuses a job; before the
        latter nothing was submitted, but for jobs that build images.
        """
        store = store or open_store()
        planned, backends = self._planned(store.places, is_dry=False)
        told = LoggedReporter()
        for remark in self.remarks:
            told.note(remark)
        launched = submit_points(
            planned,
            store.places,
            backends,
            told,
            environ=os.environ,
            project=self._project,
            command_line=[*self._command_line[:2], *(["--missing"] if only_missing else []), *self._command_line[2:]],
            only_missing=only_missing,
        )
        found = [(_place(item.manifest.run, item.overrides), item.run_dir.uid) for item in launched]
        if told.repeats is not None and only_missing:
            found += [(_place(item.run, item.overrides), uid) for item, uid in told.repeats.done]
        order = {_place(point.run, point.overrides): at for at, point in enumerate(self._points)}
        return Submission(
            store,
            uids=[uid for _, uid in sorted(found, key=lambda one: order[one[0]])],
            submission=launched[0].manifest.provenance.submission if launched else None,
            told=told,
        )

    def _planned(self, places: Places, *, is_dry: bool) -> tuple[list[Planned], Backends]:
        here = Path.cwd()
        require(here == self._project, f"composed in {self._project}, and the current folder is {here}: compose anew")
        if _ADDED in self._command_line:
            check_told_apart(self)
        planned, machine = check.plan_points(
            self._points, os.environ, self._project, ask=lambda _: None, is_dry=is_dry, most=most_runs(os.environ)
        )
        return planned, Backends(places=places, machine=lambda: machine)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShownPreview(SubmissionPreview):
    """What a submission would be, whose text is what ``hpcml run --dry-run`` prints."""

    def __repr__(self) -> str:
        runs, sent = len(self.runs), len(self.submissions)
        return f"<preview of {runs} {one_or_many(runs, 'runs')} in {sent} {one_or_many(sent, 'submissions')}>"

    def __str__(self) -> str:
        warned = [f"warning: {warning}" for warning in self.warnings]
        sent = [(each.command, each.script) for each in self.submissions]
        return "\n".join([*warned, *self.sources, dry_run.to_text(self.runs, sent)])


class Submission:
    """Runs that were submitted together, and the scheduler's jobs behind them; `uids` are in the order of composing."""

    def __init__(
        self,
        store: Store,
        *,
        uids: Sequence[str],
        submission: str | None,
        told: LoggedReporter,
    ) -> None:
        self._store = store
        self._told = told
        self.uids = list(uids)
        self.id = submission

    @property
    def remarks(self) -> list[str]:
        """What ``hpcml run`` would have said of the submission, a line each."""
        return list(self._told.lines)

    def __len__(self) -> int:
        return len(self.uids)

    def __repr__(self) -> str:
        runs = f"{len(self)} {one_or_many(len(self), 'runs')}"
        return f"<submission {self.id} with {runs}>" if self.id else f"<{runs}, none submitted anew>"

    def __iter__(self) -> Iterator[str]:
        return iter(self.uids)

    def runs(self) -> Runs:
        """Return the records of the runs, as their journals tell by now; no scheduler is asked."""
        return self._store.runs_named(self.uids)

    def status(self) -> list[Standing]:
        """Return where the runs stand, as `Store.status` does."""
        return self._store.status(self.uids)

    def as_completed(self, *, timeout_s: float | None = None) -> Iterator[RunRecord]:
        """Yield the record of each run once it has ended, as `Store.as_completed` does."""
        yield from self._store.as_completed(self.uids, timeout_s=timeout_s)

    def wait(self, *, timeout_s: float | None = None) -> Runs:
        """Wait until all runs have ended and return their records, in the order of `uids`; see `as_completed`."""
        for _ in self.as_completed(timeout_s=timeout_s):
            pass
        return self.runs()

    def cancel(self) -> dict[str, str]:
        """Stop the runs, as `Store.cancel` does."""
        return self._store.cancel(self.uids)


def _place(run: Run, overrides: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Return what tells a run from the others that it was composed with, before and after its site had a say in it."""
    return overrides, json.dumps(encode(run.workload), sort_keys=True)


def _word(word: object) -> str:
    require(isinstance(word, str), f"{word!r} is no word of hpcml run: each is a text, such as 'precision=tf32'")
    flag = str(word)
    require(flag not in _ASKED_OTHERWISE, f"{word} is {_ASKED_OTHERWISE.get(flag)} in Python")
    return flag


def program_words(program: str | Sequence[str | PurePath]) -> list[str]:
    """Return the words of *program*, a command line or its words; raise `ConfigError` where it has none."""
    try:
        words = shlex.split(program) if isinstance(program, str) else [_program_word(word) for word in program]
    except ValueError as error:
        raise ConfigError(f"program={program!r}: {error}") from error
    require(bool(words), "program= has no words: give a command line, such as 'python train.py'")
    return words


def _program_word(word: object) -> str:
    require(isinstance(word, str | PurePath), f"program= has {word!r}: each of its words is a text or a path")
    return str(word)
