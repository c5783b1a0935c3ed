"""The workflow of ``hpcml run``: check all, warn, provide images, write, send; what it tells goes to a `RunReporter`.

`check.plan_points` comes before it, and `advice.preview_submission` takes its place in a dry run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hpcml.commands import repairs
from hpcml.commands.collect import claim, collect, opened
from hpcml.commands.retry import is_going_on
from hpcml.commands.submit import advice, budget, check, images, recover
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.launch import Launched, launch
from hpcml.commands.submit.plan import Planned
from hpcml.commands.submit.submission import deciding_alone
from hpcml.errors import ConfigError
from hpcml.images.build import OnProgress
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.store.database import Database
from hpcml.store.query import get_run, open_runs, runs_by_spec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRepeats:
    """Those of so many planned runs (`of`) whose configuration has completed, or is under way, and the run that did it.

    They are in the order of the planned runs; a run is known by its uid.
    """

    done: Sequence[tuple[Planned, str]]
    of: int
    are_left_out: bool  # by --missing; else they run again as replicates

    def in_words(self) -> str:
        """Return a line for the user."""
        what = "left out" if self.are_left_out else "run again as replicates"
        _, last = self.done[-1]
        return f"{len(self.done)} of {self.of} configurations are done or under way, the last as {last}: {what}"


class RunReporter(images.ImageReporter, Protocol):
    """What `submit_points` calls to tell the user how a submission goes."""

    def found_repeats(self, repeats: FoundRepeats) -> None:
        """Tell that some configurations were run before."""


@dataclass(slots=True)
class LoggedReporter:
    """Logs what a submission tells as warnings, since ``hpcml run`` prints it on stderr, and keeps it."""

    lines: list[str] = field(default_factory=list)
    repeats: FoundRepeats | None = None

    def warn(self, text: str) -> None:
        """Tell what looks wrong."""
        self.note(text)

    def note(self, text: str) -> None:
        """Tell what is good to know."""
        self.lines.append(text)
        log.warning("%s", text)

    def found_repeats(self, repeats: FoundRepeats) -> None:
        """Tell that some configurations were run before, and keep which."""
        self.repeats = repeats
        self.note(repeats.in_words())

    def building(self, base: str) -> AbstractContextManager[OnProgress]:
        """Tell of an image; nothing is shown of how it goes on."""
        self.note(f"an image is built from {base}, or read: this may take long")
        return nullcontext(lambda _: None)


def submit_points(
    planned: Sequence[Planned],
    places: Places,
    backends: Backends,
    reporter: RunReporter,
    *,
    environ: Mapping[str, str],
    project: Path,
    command_line: Sequence[str],
    only_missing: bool,
) -> list[Launched]:
    """Submit *planned*, or of them what is neither done nor under way (*only_missing*); return what was submitted.

    *command_line* is recorded in each run; *environ* and *project* say where images and their definitions are. The list
    is empty where *only_missing* leaves nothing; several that ask so at once decide and submit one after the other.

    Raises `ConfigError` where *only_missing* meets an interrupted submission, a run waits for what will never be, or
    the code cannot be kept, `StoreError` where the store cannot be used, `ImageError` where an image cannot be had, and
    `SubmissionError` where a scheduler refuses; up to the last nothing has been submitted.
    """
    claim(places)
    for line in repairs.of_queues(places):
        reporter.note(line)
    # This opens the store: one that cannot be used is said before hours of computing, not after.
    missing = _missing_of(planned, places, reporter, only_missing=only_missing)
    chosen = _checked(missing if only_missing else planned, places, backends, reporter)
    budget.refuse_beyond(chosen, places, environ=environ, project=project)
    for warning in advice.all_warnings(chosen, places):
        reporter.warn(warning)
    chosen = images.with_images(chosen, places, reporter, environ=environ, project=project)
    if not chosen:
        return []
    # Not alone before: an image may have been built for an hour.
    with deciding_alone(places, reporter.note) if only_missing else nullcontext():
        if only_missing:
            still = {id(item) for item in _missing_of(missing, places, reporter, only_missing=True)}
            chosen = [ready for item, ready in zip(missing, chosen, strict=True) if id(item) in still]
        return launch(chosen, places, backends, command_line) if chosen else []


def _checked(planned: Sequence[Planned], places: Places, backends: Backends, reporter: RunReporter) -> list[Planned]:
    """Return *planned* with the jobs that they wait for; raise where one is refused by this machine or its site."""
    chosen = check.with_jobs(planned, places)
    for line in advice.refusals(chosen):
        raise ConfigError(line)
    answer = advice.rehearse(chosen, places, backends)
    answer.refuse()
    for warning in answer.warnings:
        reporter.warn(warning)
    for note in answer.notes:
        reporter.note(note)
    return chosen


def _missing_of(
    planned: Sequence[Planned], places: Places, reporter: RunReporter, *, only_missing: bool
) -> list[Planned]:
    """Return what of *planned* is neither done nor under way, and tell of the rest.

    Runs are the same if their spec hash is. A configuration counts as done if a run of it has completed, waits, runs,
    or is being queued again from a checkpoint; one that failed every time is missing. With ``schedule.repeats=n`` the
    first m repeats count as done where m such runs are recorded. The store is brought up to date before. Raises
    `ConfigError` where *only_missing* meets an interrupted submission: which runs are under way is not known then.
    """
    if only_missing:
        recover.refuse_if_interrupted(places)
    with opened(places) as store:
        collect(store, places)
        under_way = {record.uid for record in open_runs(store)}
        good = {
            digest: [uid for uid, state in found if uid in under_way or _is_good(store, uid, state)]
            for digest, found in runs_by_spec(store, [item.run.spec_hash for item in planned]).items()
        }
    done = [good.get(item.run.spec_hash, []) for item in planned]
    repeats = [(item, uids[-1]) for item, uids in zip(planned, done, strict=True) if item.repeat < len(uids)]
    if repeats:
        reporter.found_repeats(FoundRepeats(done=repeats, of=len(planned), are_left_out=only_missing))
    return [item for item, uids in zip(planned, done, strict=True) if item.repeat >= len(uids)]


def _is_good(store: Database, uid: str, state: State) -> bool:
    """Tell whether a run has completed, or left at a checkpoint and is being queued again at this moment."""
    is_timeout = state is State.TIMEOUT
    return state is State.COMPLETED or (is_timeout and is_going_on(store, get_run(store, uid), time.time()))
