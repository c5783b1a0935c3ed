"""The workflow of ``hpcml run``: find repeats, provide images, warn, and submit; what it tells goes to a `RunReporter`.

`validate.plan_points` comes before it, and `dry_run.preview_submission` takes its place in a dry run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hpcml.commands import repairs
from hpcml.commands.collect import claim, collect, opened
from hpcml.commands.retry import is_going_on
from hpcml.commands.submit import code, dependencies, images, preflight, recover, rehearse
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.exclusive import deciding_alone
from hpcml.commands.submit.launch import Launched, launch
from hpcml.commands.submit.planned import Planned
from hpcml.errors import ConfigError
from hpcml.images.build import OnProgress
from hpcml.model.run import know_hashes
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.store.database import Database
from hpcml.store.query import get_run, open_runs, runs_by_spec


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


class RunReporter(Protocol):
    """What `submit_points` calls to tell the user how a submission goes."""

    def warn(self, text: str) -> None:
        """Tell what looks wrong, though the submission goes on."""

    def note(self, text: str) -> None:
        """Tell what is good to know: that an image is built by a job, say."""

    def found_repeats(self, repeats: FoundRepeats) -> None:
        """Tell that some configurations were run before."""

    def building(self, base: str) -> AbstractContextManager[OnProgress]:
        """Show the progress of an image that is built from *base*, or read, until the context is left."""


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
    `SubmissionError` where a scheduler refuses; up to the last nothing has been submitted, but for jobs that build
    images.
    """
    claim(places)
    if only_missing:
        recover.refuse_if_interrupted(places)
    for line in repairs.of_queues(places):
        reporter.note(line)
    # This opens the store: one that cannot be used is said before hours of computing, not after.
    missing = _find_missing(planned, places, reporter, are_left_out=only_missing)
    chosen, lines = dependencies.resolve_all(missing if only_missing else planned, places)
    for line in lines:
        reporter.note(line)
    for line in preflight.refusals(chosen):
        raise ConfigError(line)
    code.refuse(chosen, places)
    _rehearse(chosen, places, backends, reporter)
    for warning in preflight.all_warnings(chosen, places, backends.machine()):
        reporter.warn(warning)
    if any(item.wants_image for item in chosen):
        voice = images.Voice(display=reporter.building, warn=reporter.warn)
        jobs = images.BuildJobs(places=places, backends=backends, command_line=command_line, tell=reporter.note)
        chosen = images.with_images(chosen, environ, project, voice, jobs)
    if not chosen:
        return []
    if not only_missing:
        return launch(chosen, places, backends, command_line)
    with deciding_alone(places, reporter.note):  # not before: an image may have been built for an hour
        recover.refuse_if_interrupted(places)
        missing = _find_missing(wanted := missing, places, reporter, are_left_out=True)
        still = {id(item) for item in missing}
        chosen = [ready for item, ready in zip(wanted, chosen, strict=True) if id(item) in still]
        return launch(chosen, places, backends, command_line) if chosen else []


def _rehearse(chosen: Sequence[Planned], places: Places, backends: Backends, reporter: RunReporter) -> None:
    """Raise `SubmissionError` where the scheduler says that it would not take a job; tell what else it says."""
    said = rehearse.rehearse(chosen, places, backends)
    rehearse.refuse(said)
    for warning in said.warnings:
        reporter.warn(warning)
    for note in said.notes:
        reporter.note(note)


def _find_missing(of: Sequence[Planned], places: Places, reporter: RunReporter, *, are_left_out: bool) -> list[Planned]:
    """Return what of *of* is neither done nor under way, and tell of the rest."""
    missing, repeats = split_repeats(of, places)
    if repeats:
        reporter.found_repeats(FoundRepeats(done=repeats, of=len(of), are_left_out=are_left_out))
    return missing


def split_repeats(planned: Sequence[Planned], places: Places) -> tuple[list[Planned], list[tuple[Planned, str]]]:
    """Return what is neither done nor under way, and what is, each with the uid of the run that did it.

    Runs are the same if their spec hash is. A configuration counts as done if a run of it has completed, waits, runs,
    or is being queued again from a checkpoint; one that failed every time is missing. With ``schedule.repeats=n`` the
    first m repeats count as done where m such runs are recorded. The store is brought up to date before.
    """
    know_hashes(item.run for item in planned)
    hashes = {id(item): item.run.spec_hash for item in planned}
    with opened(places) as store:
        collect(store, places)
        under_way = {record.uid for record in open_runs(store)}
        good = {
            digest: [
                uid
                for uid, state in found
                if state is State.COMPLETED or uid in under_way or _may_go_on(store, uid, state)
            ]
            for digest, found in runs_by_spec(store, hashes.values()).items()
        }
    missing: list[Planned] = []
    repeats: list[tuple[Planned, str]] = []
    for item in planned:
        done = good.get(hashes[id(item)], [])
        if item.repeat < len(done):
            repeats.append((item, done[-1]))
        else:
            missing.append(item)
    return missing, repeats


def _may_go_on(store: Database, uid: str, state: State) -> bool:
    """Tell whether a run that left at a checkpoint is being queued again at this moment."""
    return state is State.TIMEOUT and is_going_on(store, get_run(store, uid), time.time())
