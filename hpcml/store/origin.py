"""Which folder of runs a run belongs to, where several users or hosts fill one store: each folder has a unique mark.

A path is not enough: on another host the same path may be another folder. The mark is a file in the folder, and moves
with it.
"""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from pathlib import Path

from hpcml.runs.atomic import create_text
from hpcml.runs.files import read_whole

_MARK = ".home"
_MARKED = re.compile(r"[0-9a-f]{32}")


def mark_of(runs: Path) -> str | None:
    """Return the mark of the folder *runs*; None where it has none, or none that this user may read.

    The mark is 32 hexadecimal digits in the file ``.home`` of the folder; a file with other content counts as none.
    """
    try:
        text = read_whole(runs / _MARK).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if _MARKED.fullmatch(text) else None


def mark(runs: Path) -> str | None:
    """Return the mark of the folder *runs*, making one where it has none; None where that is not possible.

    Of several processes that make one at the same time, all return the same. Called before runs are read into a
    store that several users fill (`hpcml.commands.collect`).
    """
    if (known := mark_of(runs)) is not None or not runs.is_dir():
        return known
    with suppress(OSError):  # another's is there meanwhile, or it cannot be written
        create_text(runs / _MARK, f"{secrets.token_hex(16)}\n")
    return mark_of(runs)


def home_mark_of(run_dir: Path) -> str | None:
    """Return the mark of the folder that holds *run_dir*, which lies in it as ``<experiment>/<uid>``.

    None without one.
    """
    return mark_of(run_dir.parent.parent)
