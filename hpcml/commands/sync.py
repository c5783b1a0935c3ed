"""What ``hpcml sync`` does: repairs of submissions, ends, retries and journals; its folders; and the store itself."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcml.commands import external_runs, repairs
from hpcml.commands.collect import claim, collect, opened
from hpcml.commands.external_runs import Given
from hpcml.commands.retry import retry_automatically
from hpcml.commands.rm import finish_removals
from hpcml.commands.status import SchedulersAsked, ticket_of
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.code_store import clear_abandoned
from hpcml.commands.submit.recover import recover
from hpcml.errors import ConfigError, HpcmlError
from hpcml.model.records import RunRecord
from hpcml.paths import Places
from hpcml.report.search import standing_line
from hpcml.report.store import StoreCheck
from hpcml.runs.atomic import forgotten_drafts
from hpcml.runs.cancellation import mark_cancelled
from hpcml.runs.layout import RunDir, find_run_dirs, run_paths
from hpcml.store import admin
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.journals import files_in
from hpcml.store.manifest_rows import describe
from hpcml.store.missing import Damage, damage, runs_below, without_directory
from hpcml.store.news import IngestReport
from hpcml.store.rows import forget_runs

_SHOWN = 3  # runs in one line


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronised:
    """What one synchronisation did: `lines` and `warnings` are for the user.

    `waiting` counts the submissions that can be finished only once their scheduler answers.
    """

    report: IngestReport
    lines: Sequence[str]
    warnings: Sequence[str]
    waiting: int


def synchronise(places: Places, backends: Backends, interval_s: float, *, is_anew: bool = False) -> Synchronised:
    """Finish interrupted submissions and removals, then read all journals and ask the schedulers once, then retry.

    The queue of this machine is started again before, if it was killed. Jobs that go on although they were cancelled
    are cancelled again. Of each study of `hpcml tune` what is missing is submitted.

    Retried are the runs that the cluster failed, as far as ``schedule.retry`` allows. Schedulers are asked only if
    *interval_s* seconds have passed since the last question. Unfinished files of processes that were killed are removed
    from HPCML_HOME and the run directories. *is_anew* reads every journal from its beginning, as after
    the store was deleted. What cannot be done now is reported in `warnings`, not raised.
    """
    claim(places)
    finished, waiting = _finish_submissions(places, backends)
    queues = list(backends.this_machine().start_again())
    with opened(places) as store:
        cleared = _clear(places)
        removed = finish_removals(places, store)
        asked = SchedulersAsked(backends=backends, interval_s=interval_s)
        collected = collect(store, places, asked, is_anew=is_anew, is_silent=True)
        repaired, not_now = _cancel_again(places, backends, store)
        retried, not_retried = _retry(places, backends, store)
        searched, not_searched = _look_at_studies(places, backends, interval_s)
        missing = [_in_words(damage(store)), *_gone(store, places)]
    lines = [f"{cleared} unfinished file{'s' if cleared != 1 else ''} of killed processes removed"] if cleared else []
    lines += [f"{removed} interrupted removal{'s' if removed != 1 else ''} finished"] if removed else []
    return Synchronised(
        report=collected.report,
        lines=[*finished, *lines, *queues, *repaired, *retried, *searched],
        warnings=[*waiting, *asked.problems, *not_now, *not_retried, *not_searched, *filter(None, missing)],
        waiting=len(waiting),
    )


def _finish_submissions(places: Places, backends: Backends) -> tuple[list[str], list[str]]:
    """Finish interrupted submissions; return what was done, and a line for each that cannot be finished now."""
    done = recover(places, backends)
    lines = [_counted(done.finished, "finished"), _counted(done.removed, "never began and removed")]
    return [*filter(None, lines)], done.waiting


def _cancel_again(places: Places, backends: Backends, store: Database) -> tuple[list[str], list[str]]:
    """Cancel the jobs again that go on although they were cancelled; return what was done, and what could not be."""
    done: list[str] = []
    problems: list[str] = []
    of_scheduler: defaultdict[str, list[RunRecord]] = defaultdict(list)
    for record in repairs.cancelled_and_alive(store, places):
        of_scheduler[record.scheduler].append(record)
    for scheduler, records in of_scheduler.items():
        try:
            backends.by_name(scheduler).cancel([ticket_of(record) for record in records])
            for record in records:
                mark_cancelled(RunDir(Path(record.path)))  # anew: so it is told again after its next answer alone
        except HpcmlError as error:
            problems.append(f"{len(records)} cancelled jobs go on: {error}")
        else:
            done.append(f"{scheduler} was told again to cancel {repairs.which([record.uid for record in records])}")
    return done, problems


def _retry(places: Places, backends: Backends, store: Database) -> tuple[list[str], list[str]]:
    """Retry what the cluster failed and ``schedule.retry`` allows; return what was done, and what could not be."""
    done: list[str] = []
    failed: defaultdict[str, list[str]] = defaultdict(list)
    for record in repairs.to_retry(store, places):
        try:
            retried = retry_automatically(store, places, backends, record)
        except HpcmlError as error:
            failed[str(error)].append(record.uid)
        else:
            done += [f"{retried.uid} {retried.why}; now {retried.job}"] if retried is not None else []
    return done, [f"{repairs.which(uids)} could not be retried: {error}" for error, uids in failed.items()]


def _look_at_studies(places: Places, backends: Backends, interval_s: float) -> tuple[list[str], list[str]]:
    """Take a look at each study of `hpcml tune`; return what was done, and what could not be."""
    done: list[str] = []
    problems: list[str] = []
    for file in sorted(places.studies.glob("*.json")):
        # Imported here: loads all that submits runs, which few homes need.
        from hpcml.commands.submit.run import LoggedReporter  # noqa: PLC0415
        from hpcml.commands.tune.look import look  # noqa: PLC0415
        from hpcml.commands.tune.study import find_study  # noqa: PLC0415

        try:
            search, told = find_study(places, file.stem), LoggedReporter()
            looked = look(places, backends, search, told, environ=os.environ, interval_s=interval_s)
        except HpcmlError as error:
            problems.append(f"study {file.stem}: {error}")
        else:
            done += looked.lines
            if looked.launched:
                done.append(standing_line(search, looked.tried, submitted=looked.submitted, under_way=looked.under_way))
    return done, problems


def _clear(places: Places) -> int:
    """Remove the unfinished files that dead processes left, and return how many."""
    count = clear_abandoned(places.code)
    for draft in (draft for folder, names in _entries(places) for draft in forgotten_drafts(folder, names)):
        with suppress(OSError):  # somebody else was quicker, or it is not ours to remove
            draft.unlink()
            count += 1
    return count


def _entries(places: Places) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the folders in which processes write beside what is there, each with the names in it.

    As texts: there are several for each run.
    """
    folders = [places.home, places.runs, places.submissions, *places.submissions.glob("*/")]
    yield from ((str(folder), names) for folder in folders if (names := _names_in(str(folder))))
    for path in run_paths(str(places.runs)):
        names = _names_in(path)
        yield path, names
        if "retries" in names:
            yield f"{path}/retries", _names_in(f"{path}/retries")


def _names_in(folder: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)  # noqa: PTH208 - as above
    return []


def _counted(count: int, what: str) -> str | None:
    return f"{count} interrupted submission{'s' if count != 1 else ''} {what}" if count else None


def _in_words(missing: Damage) -> str | None:
    if not missing.uids:
        return None
    what = f"lost records: {missing.lost_records}, unreadable lines: {missing.bad_lines}"
    return f"{what}, in all journals of {_named(missing.uids)}"


def _gone(store: Database, places: Places) -> Iterator[str]:
    """Yield what there is to say of runs whose directories were not found."""
    gone = without_directory(store, external_runs.roots(places))
    if gone:
        yield f"the directories of {_named(gone)} are gone: hpcml rm --gone takes them out of the store, too"
    for folder in external_runs.folders(places):
        if not folder.is_dir():
            runs = len(runs_below(store, folder))
            yield f"{folder} is not there: its {runs} runs are kept as they were; hpcml sync --forget drops them"


def _named(uids: Sequence[str]) -> str:
    runs = f"{len(uids)} run{'s' if len(uids) != 1 else ''}"
    return f"{runs} ({', '.join(uids[:_SHOWN])}{', ...' if len(uids) > _SHOWN else ''})"


def adopt(places: Places, paths: Sequence[Path]) -> tuple[list[Given], IngestReport]:
    """Read the runs in *paths* from now on, together with all others; return what lies in each path, and what was read.

    Raises `ConfigError`, before anything is recorded, if one of them holds no run directory, and `StoreError` where the
    store is read-only.
    """
    found = [external_runs.look_at(places, path) for path in paths]
    with opened(places, to_write=True) as store:
        for given in found:
            if given.is_new:
                external_runs.note_down(places, given.folder)
        return found, ingest_all(store, *external_runs.roots(places))


def disown(places: Places, path: Path) -> int:
    """Read the folder *path* no more and take its runs out of the store; return how many those were.

    The folder is left alone; runs that lie in another folder, too, stay in the store. Raises `ConfigError` for a folder
    that was not given to ``hpcml sync --add``, and for one in HPCML_HOME, which is always read.
    """
    folder, was_given = external_runs.let_go(places, path)
    if not was_given and (folder.is_relative_to(places.home) or places.home.is_relative_to(folder)):
        raise ConfigError(f"{path} was not given to hpcml sync --add; what lies in HPCML_HOME is always read")
    with opened(places, to_write=True) as store:
        # where it was not given now: what an earlier call, killed half-way, had left
        still_read = {uid for root in external_runs.roots(places) for uid in runs_below(store, root)}
        gone = forget_runs(store, [uid for uid in runs_below(store, folder) if uid not in still_read])
    if not was_given and not gone:
        known = ", ".join(map(str, external_runs.folders(places))) or "none"
        raise ConfigError(f"{path} was not given to hpcml sync --add; known: {known}")
    return gone


# The store itself: `--check` and `--backup`.


def check(places: Places) -> StoreCheck:
    """Look for what is wrong with the store, and with the run directories that it is an index of.

    Nothing is read in before, so that a damaged store is looked at as it is.
    """
    unreadable, folders = list(_unreadable(places)), list(map(str, external_runs.folders(places)))
    if torn := admin.torn_parts(places.store_url):
        return StoreCheck(name=places.store_url, faults=torn, unreadable=unreadable, folders=folders)
    with opened(places) as store:
        faults = list(admin.faults(store))
        runs, points = (None, None) if faults else admin.counts(store)
        return StoreCheck(
            name=store.name,
            used=store.used,
            size_bytes=admin.size_of(store),
            runs=runs,
            points=points,
            folders=folders,
            faults=faults,
            unreadable=unreadable,
        )


def _unreadable(places: Places) -> Iterator[str]:
    homes: dict[Path, str | None] = {}
    for root in external_runs.roots(places):
        for run_dir in find_run_dirs(root):
            try:
                describe(run_dir, homes)
                files_in(str(run_dir.journals))
            except HpcmlError as error:
                yield str(error)


def back_up(places: Places, target: Path | None) -> tuple[Path, int]:
    """Copy the store into the new file *target*, or one beside it where that is None; return the file and its bytes."""
    with opened(places) as store:
        written = admin.back_up(store, target)
    return written, written.stat().st_size
