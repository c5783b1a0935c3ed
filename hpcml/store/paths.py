"""Where the runs of the store lie, asked for by folder."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import ColumnElement, and_, or_

from hpcml.store.homes import mark_of
from hpcml.store.intake import storable
from hpcml.store.tables import RUN


def is_below(*roots: Path) -> ColumnElement[bool]:
    """Return the condition that a run was found in one of *roots*, which are absolute, or anywhere below."""
    itself = RUN.c.path.in_([storable(str(root)) for root in roots])
    return or_(itself, *map(_is_inside, roots))


def _is_inside(root: Path) -> ColumnElement[bool]:
    inside = RUN.c.path.startswith(f"{storable(str(root))}/", autoescape=True)
    # the same path on another host, from where the same store is filled, is another folder
    mark = mark_of(root)
    return inside if mark is None else and_(inside, or_(RUN.c.home.is_(None), RUN.c.home == mark))
