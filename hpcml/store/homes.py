"""Whose a run is, where several users or hosts fill one store: each folder of runs has a mark that nobody else's has.

A path does not say it: the same one may mean another folder on another host. The mark goes where the folder goes.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Connection, select

from hpcml.errors import HpcmlError
from hpcml.store.locks import is_server
from hpcml.store.tables import RUN

_MARK = ".home"
_MARKED = re.compile(r"[0-9a-f]{32}")


def mark_of(runs: Path) -> str | None:
    """Return the mark of the folder *runs*; None where it has none, or none that we may see."""
    try:
        text = (runs / _MARK).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if _MARKED.fullmatch(text) else None


def mark(runs: Path) -> str | None:
    """Return the mark of the folder *runs*, which is given one if it can be; by however many at once, one stays."""
    if (known := mark_of(runs)) is not None or not runs.is_dir():
        return known
    new = runs / f"{_MARK}.{secrets.token_hex(4)}"
    with suppress(OSError):
        new.write_text(f"{secrets.token_hex(16)}\n", encoding="ascii")
        try:
            os.link(new, runs / _MARK)  # whole or not at all, and never over another's
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not (runs / _MARK).exists():
                new.replace(runs / _MARK)
    new.unlink(missing_ok=True)
    return mark_of(runs)


def home_of(run_dir: Path) -> str | None:
    """Return the mark of the folder that *run_dir* is in, as ``<runs>/<experiment>/<uid>``."""
    return mark_of(run_dir.parent.parent)


def check_home(connection: Connection, uid: str, run_dir: Path) -> None:
    """Raise `HpcmlError` where run *uid* came from a home that cannot be seen from here: *run_dir* is but a copy.

    Its own home goes on reading it in. A file is one user's, who may have moved everything and left the marks behind.
    """
    if not is_server(connection):
        return
    known = connection.execute(select(RUN.c.path, RUN.c.home).where(RUN.c.uid == uid)).one_or_none()
    if known is None or known.home is None or home_of(run_dir) == known.home:
        return
    if home_of(Path(known.path)) != known.home:
        raise HpcmlError(
            f"{run_dir}: run {uid} is in the store already, from {known.path} of another home, which counts: remove "
            f"the copy (if that home is gone for good: hpcml rm --forget {uid})"
        )
