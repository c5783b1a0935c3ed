"""The cells of a comparison, judged: each row alone first, then all of them as the one table that is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcml.analysis.arms import Arm, excluded
from hpcml.analysis.cells import Group
from hpcml.analysis.factor import Factor
from hpcml.analysis.fairness import Differences
from hpcml.analysis.objective import Margin, Target, Yardstick, find_margin, find_target
from hpcml.analysis.order import order_remarks
from hpcml.analysis.rows import adjusted, draft_row
from hpcml.analysis.steady import SteadyState, Window, common_window, steady_state
from hpcml.analysis.terms import Curves, Terms
from hpcml.analysis.to_target import Race, find_budget_s, find_reaches
from hpcml.answers import Timeline
from hpcml.comparison import Cell, Row
from hpcml.errors import ComparisonError
from hpcml.records import RunRecord

STEP, DATA, COMMUNICATION = "step_time_s", "data_time_s", "communication_time_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One cell with what was found about it."""

    group: Group
    arms: Mapping[str, Arm]  # by level, in the factor's order
    differences: Differences

    @property
    def counted(self) -> list[RunRecord]:
        """The runs that enter any statistics."""
        return [run for arm in self.arms.values() for run in arm.ok]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What all cells of one comparison are asked."""

    factor: Factor
    reference: str
    yardstick: Yardstick
    margin: float | None  # of the command line
    target: float | None  # of the command line
    is_scored: bool
    curves: Mapping[str, Curves]  # by metric
    timelines: Mapping[str, Sequence[Timeline]]  # by uid


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A cell and the terms that its rows are judged by."""

    found: Found
    arms: Sequence[Arm]  # the reference first
    terms: Terms
    margin: Margin
    target: Target
    window: Window | None


def judge(found: Sequence[Found], question: Question) -> tuple[list[Cell], int]:
    """Return the cells, and how many rows can claim something: what is claimed of one reckons with all of them."""
    cases = [_case(each, question) for each in found]
    if question.is_scored and all(case.terms.race is None for case in cases):
        raise ComparisonError("score=mlperf is a time to a target: give --target, or set objective.target")
    drafts = [draft_row(arm, case.terms) for case in cases for arm in case.arms]
    rows = iter(adjusted(drafts))
    cells = [_build_cell(case, [next(rows) for _ in case.arms], question) for case in cases]
    return cells, sum(draft.claims is not None for draft in drafts)


def _case(found: Found, question: Question) -> _Case:
    metric = question.yardstick.metric
    margin = find_margin(found.counted, metric, question.margin)
    target = find_target(found.counted, metric, question.target)
    reference = found.arms.get(question.reference)
    window, steady = _find_steady(found, question.curves[STEP])
    race = None
    if target.value is not None:
        race = Race(
            target=target.value,
            higher_is_better=question.yardstick.higher_is_better,
            curves=question.curves.get(metric, {}),
            timelines=question.timelines,
        )
    reaches = {} if race is None else {level: find_reaches(arm, race) for level, arm in found.arms.items()}
    terms = Terms(
        reference=reference,
        margin=margin.value,
        higher_is_better=question.yardstick.higher_is_better,
        by_precision=question.factor.group == "precision",
        steady=steady,
        reporting={run.uid for run in found.counted if question.curves[STEP].get(run.uid)},
        steps=question.curves[STEP],
        data=question.curves.get(DATA, {}),
        communication=question.curves.get(COMMUNICATION, {}),
        race=race,
        reaches=reaches,
        budget_s=find_budget_s([reach for of in reaches.values() for reach in of]),
        is_scored=question.is_scored and race is not None,
    )
    ordered = sorted(found.arms.values(), key=lambda arm: arm is not reference)  # stable: the reference goes first
    return _Case(found=found, arms=ordered, terms=terms, margin=margin, target=target, window=window)


def _build_cell(case: _Case, rows: Sequence[Row], question: Question) -> Cell:
    found = case.found
    return Cell(
        where=dict(found.group.where),
        device=_device(found.counted),
        batch_size=_batch_size(found.counted),
        reference=question.reference,
        margin=case.margin.value,
        margin_source=case.margin.source,
        steady_from_step=case.window.from_step if case.window else None,
        steady_to_step=case.window.to_step if case.window else None,
        rows=tuple(rows),
        remarks=tuple(_remarks(found, question.reference)),
        confounders=found.differences.forbidding,
        notes=found.differences.noted,
        excluded=tuple(run for arm in case.arms for run in excluded(arm, question.yardstick.metric)),
        target_source=case.target.source,
    )


def _find_steady(found: Found, curves: Curves) -> tuple[Window | None, dict[str, SteadyState]]:
    """Return one step window for all native runs that count, and each run's steady state in it."""
    timed = {
        run.uid: curves[run.uid] for arm in found.arms.values() if arm.has_speed for run in arm.ok if run.uid in curves
    }
    window = common_window(timed.values())
    if window is None:
        return None, {}
    states = {uid: steady_state(curve, window) for uid, curve in timed.items()}
    return window, {uid: state for uid, state in states.items() if state is not None}


def _remarks(found: Found, reference: str) -> Iterator[str]:
    arm = found.arms.get(reference)
    if arm is None:
        yield f"no {reference} in this cell: nothing to subtract"
    elif not arm.ok:
        yield f"no run of the reference {reference} counts: nothing to subtract"
    elif not arm.has_speed:
        yield f"the reference {reference} is {arm.numerics}: no speed-ups"
    if len(found.arms) > 1:
        yield from order_remarks(found.arms.values())


def _device(runs: Sequence[RunRecord]) -> str | None:
    devices = set()
    for run in runs:
        kind = run.facts.get("device")
        model = run.facts.get("cpu_model" if kind == "cpu" else "gpu_model")
        devices.add(" ".join(str(part) for part in (kind, f"({model})" if model else None) if part))
    return devices.pop() or None if len(devices) == 1 else None


def _batch_size(runs: Sequence[RunRecord]) -> int | None:
    sizes = {run.params.get("training.batch_size") for run in runs}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None
