"""Holm's adjustment: what may still be said of a row when a whole table of rows was looked at.

S. Holm, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6 (1979): with it, the chance of
even one false claim of a kind in the whole table is at most 5 %, whatever the rows have to do with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcml.analysis.equivalence import Contrast
from hpcml.comparison import Verdict

ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The p values of all that may be said of one row: each of the statement that it is not so."""

    equivalent: float
    better: float
    non_inferior: float
    worse: float


def find_claims(contrast: Contrast, margin: float | None, *, higher_is_better: bool) -> Claims | None:
    """Return the p values of what *contrast* may show; None without a margin, or for n < 2."""
    if margin is None or contrast.df is None:
        return None
    gain = contrast if higher_is_better else contrast.turned()
    ps = contrast.p_tost(margin), gain.p_above(0.0), gain.p_above(-margin), gain.turned().p_above(0.0)
    equivalent, better, non_inferior, worse = (1.0 if p is None else p for p in ps)
    return Claims(equivalent=equivalent, better=better, non_inferior=non_inferior, worse=worse)


def adjust(claims: Sequence[Claims]) -> list[Claims]:
    """Return *claims* adjusted for their number, each kind of claim over all rows, in their order."""
    kinds = [
        holm([getattr(each, kind) for each in claims]) for kind in ("equivalent", "better", "non_inferior", "worse")
    ]
    return [
        Claims(equivalent=equivalent, better=better, non_inferior=non_inferior, worse=worse)
        for equivalent, better, non_inferior, worse in zip(*kinds, strict=True)
    ]


def holm(ps: Sequence[float]) -> list[float]:
    """Return the adjusted p values of *ps*, in their order: the k-th smallest times m - k + 1, never falling."""
    adjusted = [1.0] * len(ps)
    most = 0.0
    for rank, at in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        most = max(most, min(1.0, (len(ps) - rank) * ps[at]))
        adjusted[at] = most
    return adjusted


def verdict_of(claims: Claims) -> Verdict:
    """Return the first claim that is shown, in the order of `hpcml.analysis.equivalence.verdict`."""
    if claims.equivalent < ALPHA:
        return "equivalent"
    if claims.better < ALPHA:
        return "better"
    if claims.non_inferior < ALPHA:
        return "non-inferior"
    return "worse" if claims.worse < ALPHA else "inconclusive"
