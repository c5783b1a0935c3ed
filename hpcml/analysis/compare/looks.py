"""Rows that were looked at more than once: planned looks with their levels, and looks that nobody planned.

A claim that was ever made at a planned look stays. Over the rows of a study that is Holm's method at each look: with j
rows not yet shown, a row's p is held against the level of that look for 5 %/j (W. Maurer and F. Bretz, Stat. Biopharm.
Res. 5, 2013). Each kind of claim is a family of its own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

from hpcml.analysis import sequential
from hpcml.analysis.compare.arms import Arm, sort_runs
from hpcml.analysis.compare.cells import Terms
from hpcml.analysis.compare.rows import Draft, verdict_by
from hpcml.analysis.statistics import ALPHA, KINDS, LEAST_SEEDS, Claims, claims_from, p_of
from hpcml.model.comparison import Cell, Comparison, Interval, Row, RowLook, Verdict
from hpcml.model.looks import Glance, LookPlan, PlannedArm, PlannedStudy, SeenArm
from hpcml.model.records import RunRecord

_KIND_OF = {"equivalent": "equivalent", "non-inferior": "non_inferior", "better": "better"}
_CONTRARY = {"equivalent": "worse_by_margin", "non-inferior": "worse_by_margin", "better": "worse"}
_HOPELESS: frozenset[Verdict] = frozenset({"unstable", "identical", "not proven", "not as requested"})
_Key = tuple[int, str]  # cell and level


class Held(NamedTuple):
    """A kind of claim of one row: p, scaled so that it is held against 5 %, and how many rows shared the risk."""

    p: float
    j: int


class PlannedRows:
    """The rows of a planned study: which runs each was judged from, and what its p values are held against."""

    def __init__(self, study: PlannedStudy, *, taking: int | None = None) -> None:
        """Show *study* as far as it was looked at; *taking*: this look is being taken, of the arms that are open."""
        self.plan: LookPlan = study.plan
        self._study = study
        self._taking = taking
        self._arm_of = {uid: arm for arm in self.plan.arms for uid in arm.uids}
        self._reference_of = {arm.cell: arm for arm in self.plan.arms if arm.is_reference}
        self._open: set[_Key] = {(arm.cell, arm.level) for arm in study.open_rows} if taking is not None else set()

    def arm_of(self, arm: Arm) -> PlannedArm | None:
        """Return the planned arm that the runs of *arm* are of; None where none is planned."""
        return next((self._arm_of[run.uid] for run in _runs(arm) if run.uid in self._arm_of), None)

    def as_seen(self, arm: Arm, terms: Terms) -> tuple[Arm, Terms]:
        """Return *arm* and *terms* with the runs that the row's latest look saw; before the first, with all."""
        planned = self.arm_of(arm)
        if planned is None or terms.reference is None:
            return arm, terms
        if planned.is_reference:
            seen = {uid for row in self.plan.rows if row.cell == planned.cell for uid in self._seen_by(row)}
            shown = _only(arm, seen, terms.metric) if seen else arm
            return (shown, replace(terms, reference=shown)) if arm is terms.reference else (arm, terms)
        seen = set(self._seen_by(planned))
        if not seen:
            return arm, terms
        return _only(arm, seen, terms.metric), replace(terms, reference=_only(terms.reference, seen, terms.metric))

    def judged(self, drafts: Sequence[Draft]) -> list[Row]:
        """Return the rows of *drafts* by the looks that were taken, and the one that is being taken."""
        planned = [self.arm_of(draft.arm) for draft in drafts]
        now = {
            (arm.cell, arm.level): draft.claims
            for draft, arm in zip(drafts, planned, strict=True)
            if arm is not None and draft.claims is not None and (arm.cell, arm.level) in self._open
        }
        held = {kind: self.held(kind, now) for kind in KINDS}
        return [
            draft.row if arm is None or arm.is_reference else self._row(draft, arm, held)
            for draft, arm in zip(drafts, planned, strict=True)
        ]

    def _seen_by(self, row: PlannedArm) -> Collection[str]:
        """Return the runs of *row* and its reference that its look saw."""
        if (row.cell, row.level) in self._open and self._taking is not None:
            n = self.plan.sizes[self._taking - 1]
            return [*row.uids[:n], *self._reference_of[row.cell].uids[:n]]
        last = self._study.last_of(row.cell, row.level)
        return [] if last is None else last[1].uids

    def held(self, kind: str, now: Mapping[_Key, Claims]) -> dict[_Key, Held]:
        """Return for each row, by cell and level, the p of *kind* by Holm over rows and looks; *now* is being taken."""
        seen: dict[_Key, list[tuple[int, float]]] = {(row.cell, row.level): [] for row in self.plan.rows}
        for look in self._study.looks:
            for arm in look.arms:
                seen[arm.cell, arm.level].append((look.number, arm.ps.get(kind, 1.0)))
        for key, claims in now.items():
            seen[key].append((self._taking or 0, getattr(claims, kind)))
        shown: dict[_Key, Held] = {}
        while True:
            j = len(seen) - len(shown)
            if not j:
                return shown
            levels = self.plan.levels[j - 1]
            least = {
                key: min((min(1.0, ALPHA * p / levels[number - 1]) for number, p in of), default=1.0)
                for key, of in seen.items()
                if key not in shown
            }
            new = {key: Held(p=p, j=j) for key, p in least.items() if p < ALPHA}
            if not new:
                return shown | {key: Held(p=p, j=j) for key, p in least.items()}
            shown |= new

    def _row(self, draft: Draft, arm: PlannedArm, held: Mapping[str, Mapping[_Key, Held]]) -> Row:
        key, sizes = (arm.cell, arm.level), self.plan.sizes
        last = self._study.last_of(*key)
        is_now = key in self._open
        number = self._taking if is_now else last[0] if last is not None else 0
        if not number:
            look = RowLook(number=0, of=len(sizes), n=0, level=None, interval=None, stop=None, next_n=sizes[0])
            return replace(draft.row, verdict=verdict_by(draft, None), look=look)
        claims = claims_from({kind: of[key].p for kind, of in held.items()})
        stored = None if is_now or last is None else last[1]
        verdict: Verdict = verdict_by(draft, claims)
        level = self.plan.levels[held[_KIND_OF[self.plan.claim]][key].j - 1][number - 1]
        stop = stored.stop if stored is not None else self._why_stop(draft, verdict, claims, number)
        look = RowLook(
            number=number,
            of=len(sizes),
            n=sizes[number - 1],
            level=level,
            interval=_interval(draft, level),
            stop=stop,
            next_n=sizes[number] if stop is None and number < len(sizes) else None,
        )
        p_claim = p_of(claims, verdict)
        return replace(draft.row, verdict=verdict, p_adjusted=claims.equivalent, p_claim=p_claim, look=look)

    def _why_stop(self, draft: Draft, verdict: Verdict, claims: Claims, number: int) -> str | None:
        claim = self.plan.claim
        if getattr(claims, _KIND_OF[claim]) < ALPHA:
            return "shown"
        if getattr(claims, _CONTRARY[claim]) < ALPHA:
            return "the contrary is shown"
        if verdict in _HOPELESS:
            return verdict
        if number == len(self.plan.sizes):
            return "the last look"
        chance = _chance(draft, self.plan)
        return "futile" if chance is not None and chance < sequential.FUTILE_BELOW else None


def seen_arm(row: Row, draft: Draft, arm: PlannedArm) -> SeenArm:
    """Return what is written down of a row at the look that was just taken."""
    assert row.look is not None
    others = () if draft.terms.reference is None else _runs(draft.terms.reference)
    return SeenArm(
        cell=arm.cell,
        level=arm.level,
        n=0 if draft.found is None else draft.found.n,
        uids=sorted(run.uid for run in (*_runs(draft.arm), *others)),
        verdict=row.verdict,
        ps={} if draft.claims is None else asdict(draft.claims),
        stop=row.look.stop,
    )


def _chance(draft: Draft, plan: LookPlan) -> float | None:
    """Return the predictive chance that the last look shows the wanted claim; None where nothing tells."""
    found, terms = draft.found, draft.terms
    if found is None or terms.margin is None or found.n < LEAST_SEEDS or not found.contrast.standard_error:
        return None
    sign = 1.0 if terms.scale.higher_is_better else -1.0
    return sequential.chance_to_show(
        sign * found.contrast.value,
        found.contrast.standard_error * math.sqrt(found.n),
        0.0 if plan.claim == "better" else terms.scale.distance(terms.margin),
        n=found.n,
        of=max(plan.sizes[-1], found.n + 1),
        last_level=plan.levels[0][-1],
        is_two_sided=plan.claim == "equivalent",
    )


def _interval(draft: Draft, level: float) -> Interval | None:
    found, scale = draft.found, draft.terms.scale
    interval = None if found is None else found.contrast.interval(1 - 2 * level)
    if interval is None:
        return None
    return Interval(low=scale.back(interval.low), high=scale.back(interval.high), confidence=interval.confidence)


def _only(arm: Arm, uids: Collection[str], metric: str) -> Arm:
    return sort_runs(arm.level, [run for run in _runs(arm) if run.uid in uids], metric, by_precision=arm.by_precision)


def _runs(arm: Arm) -> tuple[RunRecord, ...]:
    return arm.ok + arm.nan + arm.without_metric + arm.incomplete + arm.failed + arm.unfinished


def about(metric: str, by: str, seed: str | None) -> str:
    """Return what a comparison looks at, as a `Glance` has it."""
    return f"{metric} by {by}" if seed is None else f"{metric} by {by} over {seed}"


def exploratory(cells: Sequence[Cell], glances: Sequence[Glance], *, about: str, unplanned: str | None) -> list[Cell]:
    """Return *cells* with the rows called exploratory whose data were looked at while they grew, or still grow.

    So a row without that word rests on runs that had all been asked for before the first look at any of them: its 5 %
    hold, whatever made its owner stop.
    """
    return [
        replace(
            cell,
            rows=tuple(
                replace(row, exploratory=unplanned or _why(row, glances_at(row, cell, glances, about=about)))
                for row in cell.rows
            ),
        )
        for cell in cells
    ]


def glances_at(row: Row, cell: Cell, glances: Sequence[Glance], *, about: str) -> list[Glance]:
    """Return the *glances* that saw runs of *row* and of its reference, by time; of the reference itself none.

    Whoever saw the reference beside another arm has seen nothing of this one.
    """
    reference = {uid for each in cell.rows if each.level == cell.reference for uid in each.runs}
    own = set(row.runs) - reference
    seen = [each for each in glances if each.question == about and own & set(each.seen) and reference & set(each.seen)]
    return sorted(seen, key=lambda each: each.at)


def _why(row: Row, known: Sequence[Glance]) -> str | None:
    now, awaited = set(row.runs), set(row.awaited)
    if row.difference is None:
        return None
    for glance in reversed(known):
        seen, then_awaited = set(glance.seen), set(glance.awaited)
        day = glance.at.partition("T")[0]
        if added := len((now | awaited) - seen - then_awaited):
            return f"these runs were looked at before with n = {glance.n} ({day}), and then {added} were added"
        if dropped := len(then_awaited - now - awaited):
            return f"these runs were looked at before with n = {glance.n} ({day}), and then {dropped} were left out"
    return f"{len(awaited)} of its runs {'has' if len(awaited) == 1 else 'have'} not ended" if awaited else None


def glances_of(comparison: Comparison, *, at: str) -> Iterator[tuple[str, Glance]]:
    """Yield what *comparison* saw, row by row, each with a digest: equal data have equal ones."""
    question = about(comparison.metric, comparison.by, comparison.seed)
    for row in (row for cell in comparison.cells for row in cell.rows if row.difference is not None):
        text = "\n".join([question, *row.runs, "", *row.awaited])
        glance = Glance(at=at, question=question, seen=list(row.runs), awaited=list(row.awaited), n=row.n_units)
        yield hashlib.sha256(text.encode()).hexdigest()[:16], glance
