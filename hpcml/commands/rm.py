"""Removing runs, and copies of code that no run needs any more, for ``hpcml rm``.

What is moved aside bears a name that says so, and keeps it until the store has forgotten the run and the last file is
gone. Whoever is killed in between has it finished by the next `hpcml sync` or `hpcml rm`.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcml.commands import external_runs
from hpcml.commands.collect import claim, collect, opened
from hpcml.commands.ends.look import agent_liveness
from hpcml.commands.follow import Watcher
from hpcml.commands.selection import Selection, select
from hpcml.commands.submit import code_store
from hpcml.commands.submit.submission import manifests_under_way
from hpcml.errors import ConfigError, HpcmlError, why_not
from hpcml.model.records import RunRecord
from hpcml.paths import Places
from hpcml.runs.files import open_folders
from hpcml.runs.layout import REMOVED, RunDir, find_run_dirs
from hpcml.runs.liveness import Liveness
from hpcml.store.database import Database
from hpcml.store.missing import runs_below, without_directory
from hpcml.store.query import open_runs
from hpcml.store.rows import forget_runs

_GOES_ON_S = 60.0  # from the last word of an attempt that left at a checkpoint to the first of the next, elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """A run that would be removed.

    `size_bytes` is what its directory holds; None: the files stay (``--forget``), or are gone already, and only the
    store forgets it.
    """

    record: RunRecord
    size_bytes: int | None
    is_gone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What became of one run; `trouble` says in one line why it, or a part of its files, is still there."""

    uid: str
    was_deleted: bool
    trouble: str | None = None


def plan_removal(places: Places, selection: Selection, *, gone: bool = False, forget: bool = False) -> list[Doomed]:
    """Return what removing the selected runs would mean; nothing has happened yet.

    *gone* keeps only the runs whose directories are gone. *forget* takes runs out of the store and leaves their
    directories, which lie elsewhere.

    Raises `ConfigError` if one of them must stay: it has not ended, its agent is at work, or it is not of this
    HPCML_HOME. No other is removed then.
    """
    claim(places)
    with opened(places, to_write=True) as store:
        collect(store, places)
        chosen = select(store, selection)
        if gone:
            without = set(without_directory(store, external_runs.roots(places)))
            chosen = [record for record in chosen if record.uid in without]
        stands = _Standing(
            runs=places.runs,
            ours=frozenset(runs_below(store, places.runs)),
            elsewhere={uid: root for root in external_runs.folders(places) for uid in runs_below(store, root)},
            unended=frozenset(record.uid for record in open_runs(store)),
            submitted="\n".join(manifests_under_way(places.open_submissions)),
        )
    refused = [
        reason
        for record in chosen
        if (reason := stands.why_known(record) if forget else stands.why_not(record, is_gone=gone)) is not None
    ]
    if refused:
        more = f"; {len(refused) - 1} more must stay" if len(refused) > 1 else ""
        raise ConfigError(f"{refused[0]}{more}; nothing was removed")
    is_gone = {record.uid: gone or not os.path.lexists(record.path) for record in chosen}
    return [
        Doomed(
            record=record,
            size_bytes=None if forget or is_gone[record.uid] else size_of(Path(record.path)),
            is_gone=is_gone[record.uid],
        )
        for record in chosen
    ]


def remove(places: Places, doomed: Sequence[Doomed]) -> Iterator[Removed]:
    """Remove all of *doomed*; yield what became of each, in order.

    Each is looked at again: one that was started meanwhile stays, with the reason in `Removed.trouble`. Directories are
    renamed first, then forgotten by the store, then deleted, so that an interruption leaves no half-deleted run.
    """
    going = [item for item in doomed if item.size_bytes is not None]
    with opened(places, to_write=True) as store:
        finish_removals(places, store)
        troubles = {item.record.uid: _move_aside(RunDir(Path(item.record.path))) for item in going}
        forget_runs(store, [item.record.uid for item in doomed if troubles.get(item.record.uid) is None])
    for item in doomed:
        trouble = troubles.get(item.record.uid)
        if trouble is None and item.size_bytes is not None:
            trouble = delete_tree(RunDir(Path(item.record.path)).being_removed)
        yield Removed(uid=item.record.uid, was_deleted=item.size_bytes is not None, trouble=trouble)


def finish_removals(places: Places, store: Database) -> int:
    """Delete the run directories that were renamed by processes which then died; return how many are deleted now."""
    aside = sorted(places.runs.glob(f"*/{REMOVED}*"))
    uids = [path.name.removeprefix(REMOVED) for path in aside]
    forget_runs(store, [uid for path, uid in zip(aside, uids, strict=True) if not path.with_name(uid).exists()])
    return sum(delete_tree(path) is None for path in aside)


def delete_tree(path: Path) -> str | None:
    """Delete *path* with all that is in it; return None, or in one line what could not be deleted.

    Folders without write permission, which programs leave, are made writable first.
    """
    shutil.rmtree(path, ignore_errors=True)
    try:
        if path.exists():
            open_folders(path)
            shutil.rmtree(path)
    except FileNotFoundError:
        return None  # somebody else is at it
    except OSError as error:
        return f"what is left of it in {path} cannot be deleted: {why_not(error, path)}"
    return None


def size_of(folder: Path) -> int:
    """Return how many bytes the files below *folder* hold; what cannot be looked at counts nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(parent, name).lstat().st_size
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """What decides whether a run may go: where it lies, for whom, and whether it has ended."""

    runs: Path
    ours: Collection[str]  # in *runs*, of this home; the same path may be another folder, to others in a shared store
    elsewhere: Mapping[str, Path]  # in folders that are read besides
    unended: Collection[str]
    submitted: str  # the manifests of what is being submitted, or retried, at this moment

    def why_not(self, record: RunRecord, *, is_gone: bool) -> str | None:
        """Return why *record* and its directory must stay, None where they may go."""
        path = Path(record.path)
        if record.uid not in self.ours and record.uid not in self.elsewhere:
            return f"run {record.uid} lies in {path}, which is not read from here: --forget takes it out of the store"
        if is_gone or not os.path.lexists(record.path):
            return None
        if path.parent.parent != self.runs or path.is_symlink():
            return f"run {record.uid} lies in {path}: hpcml removes runs from {self.runs} alone"
        if record.uid in self.unended:
            return f"run {record.uid} has not ended ({record.state.value}): hpcml cancel {record.uid} ends it"
        if record.uid in self.submitted:
            return f"run {record.uid} is being submitted again, or was when that was interrupted: hpcml sync"
        return _who_is_at_work(RunDir(path))

    def why_known(self, record: RunRecord) -> str | None:
        """Return why the store would not forget *record* for long, None where it would."""
        place = self.elsewhere.get(record.uid)
        if record.uid in self.ours and os.path.lexists(record.path):
            return f"run {record.uid} lies in {self.runs}, whose runs are always read: give no --forget"
        if place is not None:
            return f"run {record.uid} lies in {place}, which is read again and again: hpcml sync --forget {place}"
        return None


def _who_is_at_work(run_dir: RunDir) -> str | None:
    """Return who is still at work in a run that has ended, as the run's own journals tell; None where nobody is."""
    try:
        seen = Watcher(run_dir).look()
        last_at = max((path.stat().st_mtime for path in run_dir.journal_files()), default=0.0)
    except FileNotFoundError:  # another hpcml removes it at this moment
        return None
    if not seen.is_over and run_dir.manifest.exists():
        return f"run {run_dir.uid} has begun again ({seen.state.value})"
    if agent_liveness(run_dir) is Liveness.ALIVE:
        return f"run {run_dir.uid} has ended, but its agent is still at work: try again in a moment"
    if seen.may_go_on and time.time() - last_at < _GOES_ON_S:
        return f"run {run_dir.uid} left at a checkpoint and may be queued again: try again in a minute"
    return None


def _move_aside(run_dir: RunDir) -> str | None:
    """Give the directory the name of what is being removed; return what is in the way, None where nothing is."""
    try:
        left = delete_tree(run_dir.being_removed) if run_dir.being_removed.exists() else None
        if (in_the_way := _who_is_at_work(run_dir) or left) is not None:
            return in_the_way
        run_dir.path.rename(run_dir.being_removed)
    except FileNotFoundError:
        return None  # another hpcml was faster
    except OSError as error:
        return f"{run_dir.path} cannot be moved aside: {error.strerror}"
    return None


# Removing copies of code that no run needs any more.

_DAY_S = 86_400.0  # a submission takes its copies before it writes its runs: whatever was wanted so lately stays
_NAME = re.compile(r"[0-9a-f]{16}")
_ASIDE = ".unused-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy of code below ``HPCML_HOME/code``, and the bytes in it."""

    path: Path
    size_bytes: int


def find_unused(places: Places, *, without: Collection[str] = ()) -> list[Copy]:
    """Return the copies of code that no run has, but for runs whose uid is in *without*; nothing has happened yet.

    Copies that were wanted in the last 24 hours are left out: a submission makes them before its runs. Raises
    `HpcmlError` where a link of a run cannot be read, for then nobody knows where it leads.
    """
    claim(places)
    with opened(places) as store:
        collect(store, places)
        elsewhere = {Path(record.path) for record in select(store, Selection())}
    run_dirs = {run_dir.path for run_dir in find_run_dirs(places.runs)} | elsewhere
    used = {name for path in run_dirs if path.name not in without for name in _copies_of(RunDir(path))}
    return [
        Copy(path=path, size_bytes=size_of(path))
        for path in sorted(places.code.glob("*"))
        if _NAME.fullmatch(path.name) and path.name not in used and not _is_wanted(path)
    ]


def remove_unused(copies: Collection[Copy]) -> Iterator[tuple[Copy, str | None]]:
    """Remove *copies*; yield each with the reason why it is still there, or None where it is deleted.

    One that a submission has asked for since is put back. One that another process removes is not yielded.
    """
    for left in {left for copy in copies for left in copy.path.parent.glob(f"{_ASIDE}*")}:
        delete_tree(left)  # by a process that was killed
    for copy in copies:
        aside = copy.path.with_name(f"{_ASIDE}{copy.path.name}")
        try:
            copy.path.rename(aside)
        except FileNotFoundError:
            continue  # another hpcml was faster
        except OSError as error:
            yield copy, f"{copy.path}: {error.strerror}"
            continue
        if _is_wanted(aside):
            code_store.put(aside, copy.path)
            yield copy, f"{copy.path} is wanted by a submission"
        else:
            yield copy, delete_tree(aside)


def _is_wanted(copy: Path) -> bool:
    return time.time() - copy.stat().st_mtime < _DAY_S


def _copies_of(run_dir: RunDir) -> set[str]:
    """Return the names of the copies of code that the run's links lead to."""
    try:
        links = [link for link in (run_dir.code, run_dir.client_path) if link.is_symlink()]
        return {name for link in links for name in link.readlink().parts}
    except OSError as error:
        raise HpcmlError(f"{why_not(error, run_dir.path)}: no copy of code is removed") from error
