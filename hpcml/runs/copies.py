"""Homes and runs that were copied: the jobs and the queues that a copy tells of are those of its original."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hpcml.runs.files import read_whole
from hpcml.runs.layout import RunDir, home_of

_MOST_READ = 1 << 20  # bytes of a job script


def is_elsewhere(path: Path, home: Path) -> bool:
    """Tell whether *path* is of another home than *home*, under whatever names; not so where it is gone, or moved."""
    try:
        path.stat()
        return not os.path.samestat(home_of(path).stat(), home.stat())
    except OSError:
        return False


def was_moved(path: Path, home: Path) -> bool:
    """Tell whether *path* is gone, and what was there lies in *home*: that was moved, or its original was removed."""
    return not can_be_seen(path) and can_be_seen(home / path.relative_to(home_of(path)))


def original_of(run_dir: RunDir) -> Path | None:
    """Return the directory that *run_dir* is a copy of; None where it was made here, moved, or nobody can tell."""
    made = made_in(run_dir)
    return made if made is not None and can_be_seen(RunDir(made).manifest) else None


def made_in(run_dir: RunDir) -> Path | None:
    """Return the directory in which the run was made where that is another one, which may be gone.

    Its job script names it. None where it lies there, under whatever name, and where the script does not tell.
    """
    uid = re.escape(run_dir.uid)
    named = re.compile(rf"'(/[^'\n]*/{uid})['/]|(?<!\S)(/[^\s'\"]*/{uid})(?=[/\s]|$)")
    try:
        text = os.fsdecode(read_whole(run_dir.script, most=_MOST_READ))
        here = run_dir.path.stat()
    except OSError:
        return None
    found = [Path(quoted or plain) for quoted, plain in named.findall(text)]
    if not found:
        return None
    try:
        return None if os.path.samestat(found[-1].stat(), here) else found[-1]
    except OSError:
        return found[-1]


def can_be_seen(path: Path) -> bool:
    """Tell whether *path* is there; not so where that cannot be told, as in a folder of another user."""
    try:
        path.stat()
    except OSError:
        return False
    return True
