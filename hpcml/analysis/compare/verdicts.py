"""The verdict on an arm of a comparison, such as "equivalent": what its p values claim, and what forbids to say so.

Claims are one-sided t tests at 5 %; equivalence is TOST (D. J. Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987), which
says the same as a 90 % interval inside the margin. In a table they are adjusted by `holm`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from hpcml.analysis.compare.cell_arms import CellArms, Matched
from hpcml.analysis.compare.losses import judged_by_losses
from hpcml.analysis.compare.result import NOT_AS_REQUESTED, Verdict
from hpcml.analysis.frame import Arm
from hpcml.analysis.stats import ALPHA, LEAST_SEEDS, Contrast, holm
from hpcml.model.precision import is_proven


def find_verdict(arm: Arm, matched: Matched | None, claims: Claims | None, cell: CellArms) -> Verdict:
    """Return what may be said of *arm*, where *claims* are its p values; doubts come before claims."""
    reference = cell.reference
    if arm is reference:
        return "reference"
    both = [each for each in (arm, reference) if each is not None]
    if cell.by_precision and any(each.is_impostor for each in both):
        return NOT_AS_REQUESTED
    verdict = _claimed(matched, claims, cell)
    if reference is not None:
        verdict = judged_by_losses(verdict, arm, reference)
    if verdict in ("unstable", "unstable reference") or not cell.by_precision:
        return verdict
    is_proved = all(is_proven(run.precision_effective) for each in both for run in each.ok)
    return verdict if is_proved else "not proven"


def _claimed(matched: Matched | None, claims: Claims | None, cell: CellArms) -> Verdict:
    if matched is not None and matched.is_identical and matched.n >= LEAST_SEEDS:
        return "identical"
    if cell.margin.value is None:
        return "no margin"
    if claims is None:
        return "inconclusive"
    verdict = verdict_of(claims)
    return verdict if cell.yardstick.goal is not None or verdict == "equivalent" else "no goal"


def claims_of(matched: Matched, cell: CellArms) -> Claims | None:
    """Return the p values of what *matched* may show; None where it can show nothing.

    That is: without a margin, below 3 seeds, with identical values, and where nothing says how certain it is.
    """
    if cell.margin.value is None or matched.n < LEAST_SEEDS or not matched.contrast.standard_error:
        return None
    margin = cell.margin.value if cell.scale is None else cell.scale.distance(cell.margin.value)
    return find_claims(matched.contrast, margin, higher_is_better=cell.yardstick.higher_is_better)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """One p value for each claim that a row could make; each null hypothesis is that the claim does not hold."""

    equivalent: float
    better: float
    non_inferior: float
    worse_by_margin: float
    worse: float


KINDS = tuple(field.name for field in fields(Claims))
_VERDICTS: Mapping[Verdict, str] = {  # in the order in which they are tried
    "equivalent": "equivalent",
    "better": "better",
    "non-inferior": "non_inferior",
    "worse by more than the margin": "worse_by_margin",
    "worse": "worse",
}


def find_claims(contrast: Contrast, margin: float | None, *, higher_is_better: bool) -> Claims | None:
    """Return the p values of what *contrast* (arm minus reference) may show; None without a margin, or for n < 2.

    "equivalent" is tested by TOST, the others by a one-sided t test against 0 or -margin, each at 5 %: of two truly
    equal arms one in ten is called better or worse.
    """
    if margin is None or contrast.df is None:
        return None
    gain = contrast if higher_is_better else contrast.turned()
    loss = gain.turned()
    ps = (
        *(contrast.p_tost(margin), gain.p_above(0.0), gain.p_above(-margin)),
        *(loss.p_above(margin), loss.p_above(0.0)),
    )
    return Claims(**dict(zip(KINDS, (1.0 if p is None else p for p in ps), strict=True)))


def adjust(claims: Sequence[Claims]) -> list[Claims]:
    """Return *claims*, one per row of a table, in their order, adjusted by Holm; each kind is a family of its own."""
    kinds = [holm([getattr(row, kind) for row in claims]) for kind in KINDS]
    return [Claims(**dict(zip(KINDS, ps, strict=True))) for ps in zip(*kinds, strict=True)]


def p_of(claims: Claims, verdict: Verdict) -> float | None:
    """Return the p value of what *verdict* claims; None where it claims nothing."""
    kind = _VERDICTS.get(verdict)
    return None if kind is None else float(getattr(claims, kind))


def verdict_of(claims: Claims) -> Verdict:
    """Return the first claim whose adjusted p value is below 5 %; else "inconclusive"."""
    held: list[Verdict] = [verdict for verdict, kind in _VERDICTS.items() if getattr(claims, kind) < ALPHA]
    return held[0] if held else "inconclusive"
