"""The mark by which somebody asks a run to stop: a regular file. What else has its name is none, and is left alone.

It stays where it was obeyed, so that no second job of the run begins it, until somebody asks for the run again: by
`hpcml retry`, or by HPCML_RUN_AGAIN=1.
"""

from __future__ import annotations

import os
import stat

from hpcml.errors import HpcmlError
from hpcml.runs.layout import RunDir
from hpcml.runs.private import FILE


def is_cancelled(run_dir: RunDir) -> bool:
    """Tell whether somebody asked the run to stop."""
    return marked_at(run_dir) is not None


def marked_at(run_dir: RunDir) -> float | None:
    """Return when somebody asked the run to stop, in seconds of Unix time; None where nobody did."""
    try:
        status = os.lstat(run_dir.cancel_mark)
    except OSError:
        return None
    return status.st_mtime if stat.S_ISREG(status.st_mode) else None


def mark_cancelled(run_dir: RunDir) -> None:
    """Ask the run to stop, whoever looks; raise `HpcmlError` where the mark cannot be made."""
    mark = run_dir.cancel_mark
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # of a pipe nobody may read
    try:
        descriptor = os.open(mark, flags, FILE)
        try:
            os.utime(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise HpcmlError(f"{mark}: {error.strerror}") from error
    if not is_cancelled(run_dir):
        raise HpcmlError(f"{mark} is no file: remove it")


def unmark(run_dir: RunDir) -> None:
    """Remove the mark, if there is one; raises `OSError`."""
    if is_cancelled(run_dir):
        run_dir.cancel_mark.unlink(missing_ok=True)
