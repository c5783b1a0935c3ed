"""Runs at rest: they have ended, and for long nothing has been written of them; commands do not look at them.

A journal that grows changes no folder's time, so nothing on disk but the file itself tells of it. Hence each process of
hpcml that goes on with a run that has ended leaves a mark first (`wake`): an empty file of the run's name in the folder
``.woken`` beside the run's directory. Whoever keeps a list of runs at rest (`hpcml.store.rests`) looks at those that
have a mark, and at all of them once a day, so that a mark is needed for no longer than that.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from hpcml.errors import HpcmlError
from hpcml.runs.layout import RunDir
from hpcml.runs.state import read_fold

QUIET_S = 3600.0  # longer than clocks of machines differ, and than file systems of clusters remember what was there
QUIET_UNSEEN_S = 7 * 86_400.0  # the same where nobody saw the end: a process that was taken for dead may wake up
LOOK_EVERY_S = 86_400.0  # so often all runs are looked at, at rest or not
_KEPT_S = 7 * LOOK_EVERY_S
_WOKEN = ".woken"


def wake(run_dir: RunDir) -> None:
    """Leave the mark of *run_dir*; called before anything is written into a run that has ended.

    Where that cannot be done nothing is raised: what is written is then read within a day (`LOOK_EVERY_S`).
    """
    beside, name = os.path.split(os.path.abspath(run_dir.path))  # noqa: PTH100 - no link is followed
    with suppress(OSError):
        with suppress(FileExistsError):
            os.mkdir(f"{beside}/{_WOKEN}", 0o700)  # noqa: PTH102
            os.chmod(f"{beside}/{_WOKEN}", stat.S_IMODE(os.stat(beside).st_mode))  # noqa: PTH101, PTH116 - no umask
        flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(f"{beside}/{_WOKEN}/{name}", flags, 0o600)
        try:
            os.utime(descriptor)  # it may be there already
        finally:
            os.close(descriptor)


def wake_if_over(run_dir: RunDir) -> None:
    """Leave the mark of *run_dir* if its journals say that it has ended, or cannot be read."""
    try:
        is_over = read_fold(run_dir).state.is_final
    except HpcmlError:
        is_over = True  # for all that can be told
    if is_over:
        wake(run_dir)


def woken_in(folder: str) -> frozenset[str] | None:
    """Return the names of the runs in *folder* that have a mark; None where this user may not see them."""
    try:
        return frozenset(os.listdir(f"{folder}/{_WOKEN}"))  # noqa: PTH208 - before each answer
    except FileNotFoundError:
        return frozenset()
    except OSError:
        return None


def clear_marks(folder: str, now: float) -> None:
    """Remove the marks in *folder* that everybody has seen; *now* is in unix seconds."""
    for name in woken_in(folder) or ():
        with suppress(OSError):  # another process was quicker, or it is not ours to remove
            path = f"{folder}/{_WOKEN}/{name}"
            if os.lstat(path).st_mtime < now - _KEPT_S:
                os.unlink(path)  # noqa: PTH108


def is_quiet(path: str, now: float, *, was_end_seen: bool) -> bool:
    """Tell whether nothing was written for long of the run in *path*, by the times of its folders and files.

    *now* is in unix seconds. False as well for a run behind a symbolic link, whose mark would lie elsewhere, and for
    one that cannot be looked at.
    """
    since = now - (QUIET_S if was_end_seen else QUIET_UNSEEN_S)
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return False
        return all(_is_older(f"{path}/{name}", since) for name in ("journal", "run.json", "telemetry"))
    except OSError:
        return False


def _is_older(path: str, since: float) -> bool:
    """Tell whether the file *path*, or the folder and all that is in it, was changed last before *since*."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a text
    except FileNotFoundError:
        return True
    if max(status.st_mtime, status.st_ctime) >= since:
        return False
    if not stat.S_ISDIR(status.st_mode):
        return True
    with os.scandir(path) as entries:
        return all(entry.stat().st_mtime < since for entry in entries)
