"""Bringing the store up to date with the run directories, which every command does before it answers.

New records of journals are read, and runs whose process is gone are found and recorded as lost or cancelled.

The run directories are the truth: an end that is found here is journalled in them first, then read from there. Several
processes may do this at once: an end is the same whoever finds it, and so is what two equal ones mean.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcml.commands import external_runs
from hpcml.commands.ends.write import record_unseen_ends
from hpcml.errors import ConfigError, HpcmlError, NoSuchRunError, StoreError
from hpcml.model.records import Known, RunRecord
from hpcml.paths import Places
from hpcml.runs.layout import find_run_dirs, is_removed
from hpcml.runs.private import check_lone, claim_home, make_home, no_home
from hpcml.store import origin
from hpcml.store.database import Database
from hpcml.store.news import UNLISTED, IngestReport, find_news
from hpcml.store.opening import open_store, place_of
from hpcml.store.query import get_runs, open_runs
from hpcml.store.scheduler_polls import read_words
from hpcml.store.sqlite.location import only_read

log = logging.getLogger(__name__)

_MANY = 1000  # run directories, which take seconds to read
_YOUR_OWN = "choose one of your own (--store, HPCML_STORE)"

# For each run that was asked about: what its scheduler knows, or None if it has forgotten it. A run whose scheduler
# gave no answer, or was not asked, is left out.
Ask = Callable[[Sequence[RunRecord]], Mapping[str, Known | None]]


@contextmanager
def opened(places: Places, *, to_write: bool = False) -> Iterator[Database]:
    """Open the store, made at first use, and close it again at the end of the block.

    A store that this user can only read is opened as it is, with a warning in the log. Raises `StoreError` where
    *to_write* is set and it is read-only, and where it cannot be opened; `ConfigError` where HPCML_HOME cannot be made.
    """
    if places.store_url == str(places.home / "store.db"):
        try:
            make_home(places.home)
        except OSError as error:
            raise ConfigError(no_home(places.home, error, "made")) from error
    store = open_store(places.store_url)
    try:
        if to_write and store.is_read_only:
            raise StoreError(f"{store.read_only}: {_YOUR_OWN}")
        if store.is_read_only:
            log.warning("%s: it is shown as it was at its last ingest", store.read_only)
        with _telling_absent_from_damaged(places):
            yield store
    finally:
        store.close()


@contextmanager
def _telling_absent_from_damaged(places: Places) -> Iterator[None]:
    """Say of a run that is asked for, is there and cannot be read, that it cannot, and not that there is none."""
    try:
        yield
    except NoSuchRunError as error:
        if damage := _damage_of(places, error.reference.lower()):
            raise StoreError(f"{damage} (put it right, or remove the run's folder)") from error
        raise


def _damage_of(places: Places, reference: str) -> str | None:
    from hpcml.store.manifest_rows import describe  # noqa: PLC0415 - few runs cannot be read

    for root in external_runs.roots(places):
        for run_dir in find_run_dirs(root):
            if run_dir.uid.startswith(reference) or run_dir.uid.endswith(reference):
                try:
                    describe(run_dir)
                except HpcmlError as error:
                    return f"run {run_dir.uid} cannot be read: {error}"
    return None


def claim(places: Places) -> None:
    """Make sure that HPCML_HOME is this user's alone, before anything in it is executed, cancelled or removed.

    A warning in the log says where it was open to others and has been closed. Raises `NotPrivateError` where it is
    shared, and where the store is a file that others may write to, since the store says what there is to be cancelled.
    """
    if claim_home(places.home):
        log.warning("%s was open to others and is yours alone from now on (docs/shared-folders)", places.home)
    placement = place_of(places.store_url)
    if placement is not None and placement.path.exists() and not only_read(placement.path):
        check_lone(placement.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What there was to read, and the runs that had not ended, or not settled, before, with their state after it.

    `removed` are those of them whose directories are gone: nobody will ever tell their ends.
    """

    report: IngestReport
    runs: Sequence[RunRecord]
    removed: Sequence[RunRecord] = ()


def collect(
    store: Database, places: Places, ask: Ask | None = None, *, is_anew: bool = False, is_silent: bool = False
) -> Collected:
    """Bring every run directory that is known into the store; as often as you like.

    New journal records are read (*is_anew*: all records, from the beginning). Then each run of this HPCML_HOME that has
    not ended is judged: is its agent dead, has its queue ended, what does its scheduler say? An end is journalled in
    the run first, then read into the store. Runs in folders elsewhere are read and nothing else.

    Runs and journals that cannot be read are left out: a warning in the log says so in one line, unless *is_silent*
    says that the caller will. So does one of runs that had not ended and whose directories are gone.

    *ask* is called with the runs that have not ended, or not settled, to query their schedulers; None: only this
    machine is looked at. A store that this user can only read stays as it is; it raises `StoreError` with *ask*.
    """
    if store.is_read_only:
        if ask is not None:
            raise StoreError(f"{store.read_only}, so nobody is asked: {_YOUR_OWN}")
        return Collected(report=IngestReport(), runs=open_runs(store))
    if store.is_shared:
        origin.mark(places.runs)
    roots = external_runs.roots(places)
    news = find_news(store, *roots, is_anew=is_anew)
    report = news.report
    if news.is_any:
        # Imported here: reading run directories loads half of hpcml, and most answers find nothing to read.
        from hpcml.store.ingest import read_news  # noqa: PLC0415

        if (count := len(news.changed)) >= _MANY and not is_silent:
            log.warning("%d run directories have news, which are read first: that takes a while", count)
        with _progress(count) as tell:
            report = read_news(store, news, *roots, is_anew=is_anew, tell=tell)
    if not is_silent:
        tell_left_out(report.problems)
    unfinished = open_runs(store, places.runs)  # what others have in the store is theirs to find out
    before = read_words(places.home, [record.uid for record in unfinished]) if ask is not None else {}
    known = ask(unfinished) if ask is not None else {}
    removed = _removed(unfinished, places.runs)
    if removed and not is_silent:
        them = "it" if len(removed) == 1 else "them"
        log.warning("%s: hpcml rm --gone takes %s out of the store, too", _gone_words(removed), them)
    gone = {record.uid for record in removed}
    unfinished = [record for record in unfinished if record.uid not in gone]
    if not unfinished:
        return Collected(report=report, runs=(), removed=removed)
    runs = record_unseen_ends(store, places, unfinished, known, before)
    return Collected(report=report, runs=runs, removed=removed)


@contextmanager
def _progress(count: int) -> Iterator[Callable[[int], None] | None]:
    """Give what draws a bar on stderr while *count* run directories are read; None where few are, or no terminal is."""
    if count < _MANY or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - few readings take so long
    from rich.progress import Progress  # noqa: PLC0415 - as above

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"reading {count} run directories", total=count)
        yield lambda done: bar.update(task, completed=done)


def effective_precisions(store: Database, uids: Sequence[str]) -> dict[str, str | None]:
    """Return what the runs with these uids computed in, as far as the store knows; None where nothing tells it."""
    return {run.uid: run.precision_effective for run in get_runs(store, uids)}


def _removed(unfinished: Sequence[RunRecord], runs: Path) -> list[RunRecord]:
    """Return those of *unfinished* whose directories are gone; none without the folder of all *runs*.

    That may be a disk which is not mounted.
    """
    removed = [record for record in unfinished if is_removed(record.path)]
    return removed if removed and runs.is_dir() else []


def _gone_words(removed: Sequence[RunRecord]) -> str:
    if len(removed) == 1:
        return f"the directory of run {removed[0].uid}, which had not ended, is gone"
    return f"the directories of {len(removed)} runs that had not ended ({removed[0].uid}, ...) are gone"


def tell_left_out(problems: Sequence[str]) -> None:
    """Say in one line of the log what an answer could not read, however much, and what to do; nothing if nothing.

    *problems* are those of the `IngestReport`: a line for each run or journal that could not be read.
    """
    if len(problems) == 1:
        # of a folder of runs, which nobody is to remove, the file system's word is enough
        advice = "" if problems[0].startswith(UNLISTED) else " (put it right, or remove the run's folder)"
        log.warning("not read for this answer: %s%s", problems[0], advice)
    elif problems:
        more = len(problems) - 1
        log.warning("not read for this answer: %s; and %d more: hpcml sync lists them", problems[0], more)
