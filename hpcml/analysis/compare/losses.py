"""Runs that an arm lost to its own doing, and what they forbid to claim of those that are left.

A run whose loss became nan, or whose program failed, is an outcome of its arm. Who drops it compares survivors: with
two of ten runs left, two arms of which one diverges look alike. Where a seed was run several times the seed is the unit
here too, and lost if any of its runs was: who repeats those that came through loses no smaller share by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from hpcml.analysis.compare.arms import Arm, is_own_doing, reading
from hpcml.analysis.exact import share_interval
from hpcml.model.comparison import Losses, Verdict
from hpcml.model.divergence import diverged
from hpcml.model.records import RunRecord
from hpcml.model.state import State

_MOST_LOST = 5  # one of so many runs; with more lost there is no verdict
_ALIKE: frozenset[Verdict] = frozenset({"identical", "equivalent"})
GOOD: frozenset[Verdict] = frozenset({"identical", "equivalent", "better", "non-inferior"})
BAD: frozenset[Verdict] = frozenset({"worse", "worse by more than the margin"})


def lost_runs(arm: Arm) -> list[RunRecord]:
    """Return the runs that *arm* lost to its own doing."""
    unread = {run.uid for run in unread_runs(arm)}
    mute = [run for run in arm.without_metric if run.uid not in unread]
    failed = [run for run in arm.failed if is_own_doing(run) and run.uid not in arm.never_trained]
    return [*arm.nan, *mute, *failed]


def unread_runs(arm: Arm) -> list[RunRecord]:
    """Return the runs of *arm* of which no metric was read at all, by other settings than of its cell's others.

    They went before somebody wrote a rule for what the program prints, or named its file: no doing of the arm's.
    """
    mute = [run for run in arm.without_metric if not run.metrics]
    return [run for run in mute if arm.read_by and reading(run) not in arm.read_by]


def find_losses(arm: Arm, reference: Arm | None) -> Losses:
    """Return how many runs *arm* lost to its own doing; what is counted depends on *reference*, too."""
    unit, count = _unit(arm, reference)
    lost, ended = count(arm)
    return Losses(
        n=lost,
        n_ended=ended,
        unit=unit,
        rate_ci90=share_interval(lost, ended),
        n_elsewhere=sum(not is_own_doing(run) for run in arm.failed),
        n_diverged=len(diverged(arm.ok)),
    )


def judged_by_losses(verdict: Verdict, arm: Arm, reference: Arm) -> Verdict:
    """Return *verdict*, or "unstable" where the runs that were lost forbid it; whose, where *arm* lost none.

    Where all that is known of both is that no run reported the metric, nothing is known of how either did.
    Nothing may be said where either arm lost more than one run of five; nothing good of an arm that lost a larger share
    than the reference, and nothing bad of one that lost a smaller share. All that holds for the share of seeds as well.

    A run that has a value and whose loss was no number at the last (`diverged`) counts as lost, too, against what is
    good of its arm, what is bad of the other, and that both are alike: its value may be from before, and is no result
    of a training that went to its end. That it is worse may be said.
    """
    if _is_mute(arm) and _is_mute(reference):
        return "inconclusive"
    unstable: Verdict = "unstable" if lost_runs(arm) or diverged(arm.ok) else "unstable reference"
    for count in (_runs, _seeds):
        (lost, n), (other_lost, other_n) = count(arm), count(reference)
        if _are_too_many((lost, n)) or _are_too_many((other_lost, other_n)):
            return unstable
        more = lost * other_n - other_lost * n
        if (more > 0 and verdict in GOOD) or (more < 0 and verdict in BAD):
            return unstable
    return unstable if _is_forbidden_by_divergence(verdict, arm, reference) else verdict


def _is_forbidden_by_divergence(verdict: Verdict, arm: Arm, reference: Arm) -> bool:
    (lost, n), (other_lost, other_n) = _with_diverged(arm), _with_diverged(reference)
    more = lost * other_n - other_lost * n
    is_doubtful, other_is_doubtful = (
        bool(diverged(each.ok)) and _are_too_many(count)
        for each, count in ((arm, (lost, n)), (reference, (other_lost, other_n)))
    )
    if verdict in GOOD and (is_doubtful or (more > 0 and diverged(arm.ok))):
        return True
    if verdict in BAD and (other_is_doubtful or (more < 0 and diverged(reference.ok))):
        return True
    return verdict in _ALIKE and other_is_doubtful


def lost_words(arm: Arm, reference: Arm) -> str:
    """Return "8/10 runs lost to their own doing, against 0/10 of fp32"."""
    unit, count = _unit(arm, reference)
    (lost, n), (other_lost, other_n) = count(arm), count(reference)
    are_mute = all(len(lost_runs(each)) == len(each.without_metric) for each in (arm, reference))
    how = "completed without the metric" if are_mute else "lost to their own doing"
    return f"{lost}/{n} {unit} {how}, against {other_lost}/{other_n} of {reference.level}"


def have_completed_since(arm: Arm) -> bool:
    """Tell whether all that *arm* lost failed, and each seed of it completed later: a mistake may have been mended."""
    completed: dict[int, float] = {}
    for run in arm.ok:
        completed[run.seed] = max(run.t_start or 0.0, completed.get(run.seed, 0.0))
    lost = lost_runs(arm)
    return bool(lost) and all(
        run.state is State.FAILED and (run.t_start or math.inf) < completed.get(run.seed, 0.0) for run in lost
    )


def _is_mute(arm: Arm) -> bool:
    """Tell whether all runs of *arm* that count completed, and reported no such metric."""
    return bool(arm.without_metric) and not arm.ok and len(lost_runs(arm)) == len(arm.without_metric)


_Count = Callable[[Arm], tuple[int, int]]  # how many were lost, of how many that ended


def _unit(arm: Arm, reference: Arm | None) -> tuple[Literal["runs", "seeds"], _Count]:
    """Return what is counted: runs, or seeds where one of these arms ran a seed more than once.

    Runs too where only their share is one that forbids a verdict: the reader is told what did.
    """
    arms = [each for each in (arm, reference) if each is not None]
    is_repeated = any(_runs(each)[1] > _seeds(each)[1] for each in arms)
    by_runs = any(_are_too_many(_runs(each)) for each in arms)
    is_for_runs = by_runs and not any(_are_too_many(_seeds(each)) for each in arms)
    return ("seeds", _seeds) if is_repeated and not is_for_runs else ("runs", _runs)


def _are_too_many(count: tuple[int, int]) -> bool:
    lost, n = count
    return lost * _MOST_LOST > n


def _runs(arm: Arm) -> tuple[int, int]:
    lost = len(lost_runs(arm))
    return lost, lost + len(arm.ok)


def _with_diverged(arm: Arm) -> tuple[int, int]:
    lost, n = _runs(arm)
    return lost + len(diverged(arm.ok)), n


def _seeds(arm: Arm) -> tuple[int, int]:
    lost = {run.seed for run in lost_runs(arm)}
    return len(lost), len(lost.union(arm.values))
