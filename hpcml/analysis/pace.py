"""How a recorded run spent its time, and how long it would have taken with other numbers of steps and evaluations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from hpcml.analysis.steady import MIN_STEPS
from hpcml.records import Point, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """One run in three parts, of which the first does not grow with its steps."""

    fixed_s: float  # imports, data, compilation, warm-up, and what comes after the last step
    step_s: float  # from one step to the next, waiting for data and checkpoints included, evaluations not
    evaluation_s: float  # 0 where none was seen
    steps: int

    def wall_s(self, steps: int, evaluations: int, *, scale: float = 1.0) -> float:
        """Return the wall time with so many steps, each of which takes *scale* times as long."""
        return self.fixed_s + steps * self.step_s * scale + evaluations * self.evaluation_s


def evaluations_of(steps: int, every: int) -> int:
    """Return how often a recipe evaluates: every so many steps, and after the last."""
    return -(-steps // every)


def find_pace(run: RunRecord, step_times: Sequence[Point], metric: Sequence[Point]) -> Pace | None:
    """Return the pace of a run that ended well, by when it reported its steps; None: it reported too few.

    *metric* is the curve of what its evaluations report. The time of a step is the mean over the last half of the run:
    a duration is a sum, so that stalls and checkpoints belong to it. Gaps in which it evaluated are told apart.
    """
    points = sorted(point for point in step_times if point.step >= 0)
    if run.wall_s is None or len(points) < 2 * MIN_STEPS:
        return None
    evaluated = sorted({point.t_s for point in metric})
    plain: list[tuple[float, int]] = []
    with_evaluation: list[tuple[float, int, int]] = []
    at = 0
    for index, (before, after) in enumerate(pairwise(points)):
        seen = 0
        while at < len(evaluated) and evaluated[at] <= after.t_s:
            seen += evaluated[at] > before.t_s
            at += 1
        gap_s, steps = after.t_s - before.t_s, after.step - before.step
        if seen:
            with_evaluation.append((gap_s, steps, seen))
        elif index >= len(points) // 2:
            plain.append((gap_s, steps))
    if sum(steps for _, steps in plain) < MIN_STEPS:  # it evaluates all the time: then that belongs to each step
        last_half = points[len(points) // 2 :]
        plain, with_evaluation = [(last_half[-1].t_s - last_half[0].t_s, last_half[-1].step - last_half[0].step)], []
    step_s = math.fsum(gap for gap, _ in plain) / sum(steps for _, steps in plain)
    excesses = [max(0.0, gap - steps * step_s) / seen for gap, steps, seen in with_evaluation]
    evaluation_s = fmean(excesses) if excesses else 0.0
    steps, evaluations = points[-1].step, len(evaluated) if excesses else 0
    fixed_s = run.wall_s - steps * step_s - evaluations * evaluation_s
    if not (step_s > 0 and math.isfinite(fixed_s)):
        return None
    return Pace(fixed_s=max(0.0, fixed_s), step_s=step_s, evaluation_s=evaluation_s, steps=steps)
