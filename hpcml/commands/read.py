"""Reading metrics of ended runs that nobody had asked for beforehand, for ``hpcml read``.

From what they had printed, and from files that they left, as the agent would have read them. The values go into a
journal of their own. When each was printed nobody knows any more, and a fact says so (`READ_AFTERWARDS`).
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hpcml.agent.metrics.follow import MetricsFollower
from hpcml.agent.metrics.printed import StdoutScanner, problems_of
from hpcml.codec import decode
from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import Selection, select
from hpcml.commands.submit.provenance import user_name
from hpcml.commands.tag import writable
from hpcml.config.quoting import value_in
from hpcml.errors import ConfigError, HpcmlError, require, why_not
from hpcml.model.metric_sources import READ_AFTERWARDS, MetricRule, check_metric_files
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.atomic import appear
from hpcml.runs.event_words import unread_words
from hpcml.runs.journal import READ
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import read_manifest
from hpcml.runs.private import FOLDER
from hpcml.runs.state import EventName
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_run
from hpcml.store.rows import forget_runs
from hpcml_client.journal import JournalWriter

RULES, FILES = "workload.metrics", "workload.metrics_from"
_OURS = f"*-{READ}*.jsonl"
_WHAT = "metrics"
_DRAFTS = ".read-"  # how a folder of journals begins that are not whole yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """From where metrics are read, as `workload.metrics` and `workload.metrics_from` say it."""

    rules: Sequence[MetricRule] = ()
    files: Sequence[str] = ()

    @classmethod
    def of(cls, words: Sequence[str], metrics: Sequence[str] = ()) -> Sources:
        """Return what *words* and *metrics* name, as `hpcml run` takes them; raise `ConfigError` for what is wrong."""
        rules, files = [MetricRule(name=name) for name in dict.fromkeys(metrics)], list[str]()
        for word in words:
            key, value = word.partition("=")[0], value_in(word)
            items = value if isinstance(value, list) else [value]
            require(bool(items), f"{word} names nothing to read")
            if key == RULES:
                rules += decode(list[MetricRule], items, where=key)
            else:
                files += decode(list[str], items, where=key)
        for file in files:
            check_metric_files(file)
        return cls(rules=rules, files=files)


@dataclass(frozen=True, slots=True, kw_only=True)
class WasRead:
    """What was read of a run: how many values of each metric, and why others were not."""

    uid: str
    values: Counter[str] = field(default_factory=Counter)
    problems: Sequence[str] = ()


@dataclass(slots=True)
class _Found:
    """What was found of an attempt, which a journal takes once all is well."""

    rows: list[tuple[int, Mapping[str, float], float | None, bool]] = field(default_factory=list)
    known: set[str] = field(default_factory=set)  # names of metrics that the run has already
    problems: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def metrics(self, step: int, values: Mapping[str, float], *, at: float | None = None) -> None:
        """Take the values of a step of a file."""
        self.rows.append((step, values, at, False))

    def event(self, name: str, details: Mapping[str, Any] | None = None) -> None:
        """Take what is told of what was printed, and of files."""
        told = details or {}
        if name == EventName.METRICS_TROUBLE:
            self.problems.append(unread_words(told))
        elif name == "facts":
            self.facts.update(told)
        else:
            self.known.update(told.get("told_elsewhere", ()))

    def close(self) -> None:
        """Nothing is open."""


def read(places: Places, selection: Selection, sources: Sources) -> list[WasRead]:
    """Read metrics of the selected runs from *sources*; return what was read of each.

    Nothing is read of runs that have not ended or have nothing here, and of no run a metric that it has already. Raises
    `ConfigError`, before anything is written, for a run that is another user's or read-only, and `HpcmlError` where the
    disk is full.
    """
    with opened(places, to_write=True) as store:
        collect(store, places)
        chosen = select(store, selection)
        run_dirs = [writable(record, _WHAT) for record in chosen if record.state.is_final]
        folders = {run_dir.uid: run_dir for run_dir in run_dirs}
        return [_read_run(store, record, folders.get(record.uid), sources) for record in chosen]


def forget(places: Places, selection: Selection) -> list[str]:
    """Take back what `read` has read of the selected runs; return the ids of those that had such."""
    with opened(places, to_write=True) as store:
        collect(store, places)
        found = [writable(record, _WHAT) for record in select(store, selection) if record.state.is_final]
        ours = {run_dir.uid: sorted(run_dir.journals.glob(_OURS)) for run_dir in found}
        found = [run_dir for run_dir in found if ours[run_dir.uid]]
        for run_dir in found:
            try:
                for journal in ours[run_dir.uid]:
                    journal.unlink()
            except OSError as error:
                raise HpcmlError(f"run {run_dir.uid}: {why_not(error, run_dir.path)}, and stays") from error
            forget_runs(store, [run_dir.uid])
            ingest_run(store, run_dir)
        return [run_dir.uid for run_dir in found]


def _read_run(store: Database, record: RunRecord, run_dir: RunDir | None, sources: Sources) -> WasRead:
    if run_dir is None:
        return WasRead(uid=record.uid, problems=[f"it is {record.state.value}: it is read once it has ended"])
    by_attempt = {attempt: _printed(paths, sources.rules, record) for attempt, paths in _outputs(run_dir).items()}
    if sources.rules and not any(found.rows or found.known for found in by_attempt.values()):
        why = "no line that it printed matches, or none with a number" if by_attempt else "it has printed nothing here"
        by_attempt.setdefault(record.attempt, _Found()).problems.append(why)
    if sources.files:
        _add_files(by_attempt.setdefault(record.attempt, _Found()), record, run_dir, sources.files)
    values = Counter[str]()
    for found in by_attempt.values():
        values.update(name for _, row, _, _ in found.rows for name in row)
    if values:
        _write(record, run_dir, by_attempt, sources)
        ingest_run(store, run_dir)
    problems = [problem for found in by_attempt.values() for problem in found.problems]
    known = {name for found in by_attempt.values() for name in found.known}
    if there := sorted(known & record.metrics.keys()):
        problems.append(
            f"{', '.join(there)} is there already, and stays: give it another name in the rule, or take back with "
            "--forget what was read afterwards"
        )
    if printed := sorted(known - record.metrics.keys()):
        problems.append(f"{', '.join(printed)} is read from what it printed, and not from its files, too")
    return WasRead(uid=record.uid, values=values, problems=problems)


def _outputs(run_dir: RunDir) -> dict[int, list[Path]]:
    """Return by attempt what the agent would have read: the files that the first rank printed something to."""
    found: dict[int, list[Path]] = {}
    for path in sorted(run_dir.logs.glob("[0-9]*-rank0.*"), key=lambda path: path.suffix != ".out"):
        about, attempt = path.lstat(), path.name.partition("-")[0]
        if stat.S_ISREG(about.st_mode) and about.st_size and attempt.isdecimal():
            found.setdefault(int(attempt), []).append(path)
    return dict(sorted(found.items()))


def _printed(paths: Sequence[Path], rules: Sequence[MetricRule], record: RunRecord) -> _Found:
    found, counts = _Found(), Counter[str]()
    scanners = [StdoutScanner(path=path, rules=rules, counts=counts) for path in paths]
    for scanner in scanners:
        path = scanner.path
        try:
            for one in scanner.scan(to_the_end=True):
                if one.name in record.metrics:
                    found.known.add(one.name)
                else:
                    found.rows.append((one.step, {one.name: one.value}, None, one.is_counted))
        except OSError as error:
            raise ConfigError(f"run {record.uid}: {path} cannot be read: {why_not(error, path)}") from error
    if counts:
        found.problems += problems_of(rules, scanners)
    return found


def _add_files(found: _Found, record: RunRecord, run_dir: RunDir, files: Sequence[str]) -> None:
    """Add what *files* hold that the run has left, but for those that were read while it ran."""
    manifest = read_manifest(run_dir.manifest)
    wanted = [word for word in files if word not in manifest.run.workload.metrics_from]
    staging = manifest.plan.staging
    if not wanted:
        found.problems.append(f"its {FILES} had {', '.join(files)}, which was read while it ran")
    elif staging is None or manifest.run.workload.command is None:
        found.problems.append("it had no working directory of its own, where files would be its own")
    elif not (root := run_dir.work / staging.project).is_dir():
        found.problems.append("of its working directory nothing is left")
    else:
        before = len(found.rows), len(found.known), len(found.problems)
        picked: Collection[str] = set(record.metrics) | {name for _, row, _, _ in found.rows for name in row}
        MetricsFollower(
            root=root,
            wanted=wanted,
            journal=found,
            journals=run_dir.journals,
            attempt=record.attempt,
            start_at=os.path.relpath(manifest.plan.cwd, root),
            picked=lambda: picked,
        ).read_left(record.t_start or 0.0, has_completed=record.state is State.COMPLETED)
        if before == (len(found.rows), len(found.known), len(found.problems)):
            found.problems.append("no file of metrics is among what it wrote")


def _write(record: RunRecord, run_dir: RunDir, by_attempt: Mapping[int, _Found], sources: Sources) -> None:
    """Write a journal of what was found of each attempt; they appear once all are whole, however this ends."""
    try:
        run_dir.journals.mkdir(mode=FOLDER, exist_ok=True)
        with TemporaryDirectory(prefix=_DRAFTS, dir=run_dir.path) as drafts:
            for attempt, found in by_attempt.items():
                if found.rows:
                    _write_draft(drafts, record, run_dir, attempt, found, sources)
            for draft in sorted(Path(drafts).iterdir()):
                appear(draft, run_dir.journals / draft.name)
    except OSError as error:
        raise HpcmlError(f"run {record.uid}: {why_not(error, run_dir.journals)}") from error


def _write_draft(
    folder: str, record: RunRecord, run_dir: RunDir, attempt: int, found: _Found, sources: Sources
) -> None:
    """Write a journal of what was *found* of an attempt; what has no time has that of the run's end."""
    printed = _outputs(run_dir).get(attempt, ())
    ended_at = record.t_end or max(path.stat().st_mtime for path in (run_dir.path, *printed))
    untimed = {name for _, row, at, _ in found.rows if at is None or at > ended_at for name in row}
    with JournalWriter.open(folder, run=record.uid, attempt=attempt, writer=READ) as journal:
        for step, row, at, is_counted in found.rows:
            journal.metrics(step, row, at=ended_at if at is None else min(at, ended_at), is_counted=is_counted)
            if journal.dropped:
                break
        if facts := {**found.facts, **{f"{READ_AFTERWARDS}{name}": True for name in sorted(untimed)}}:
            journal.event("facts", facts)
        patterns = [rule.regex for rule in sources.rules]
        journal.event("read_afterwards", {"rules": patterns, "files": list(sources.files), "author": user_name()})
    if journal.dropped:
        raise HpcmlError(f"run {record.uid}: nothing could be written to {run_dir.journals}: is the disk full?")
