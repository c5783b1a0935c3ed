"""Placeholders in a command line, e.g. ``{seed}``: which names a run has itself, and how they are filled in.

Only the names that are given are filled in; anything else in braces (JSON, ``{epoch}`` of another tool) stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MIXED_PRECISION = "mixed_precision"  # accelerate's word for the precision
OF_THE_RUN = (
    "seed",
    "precision",
    MIXED_PRECISION,
)  # filled in for every run; a sweep of the program's own flags adds their names


def fill_in(word: str, values: Mapping[str, str]) -> str:
    """Return *word* with each ``{name}`` of *values* replaced by its value; ``{{name}}`` becomes ``{name}``.

    >>> fill_in('--out={lr}/{epoch} {{lr}}', {"lr": "0.5"})
    '--out=0.5/{epoch} {lr}'
    """
    return _any_of(values).sub(lambda found: f"{{{found[1]}}}" if found[1] else values[found[2]], word)


def names_in(words: Iterable[str], names: Iterable[str]) -> set[str]:
    """Return those of *names* for which there is a placeholder in *words*."""
    pattern = _any_of(names)
    return {found[2] for word in words for found in pattern.finditer(word) if found[2]}


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    either = "|".join(map(re.escape, sorted(names)))
    return re.compile(rf"\{{\{{({either})\}}\}}|\{{({either})\}}")
