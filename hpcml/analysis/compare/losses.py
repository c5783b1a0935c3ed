"""Seeds that an arm lost to its own doing, and what they forbid to claim of those that are left.

A run whose loss became nan, or whose program failed, is an outcome of its arm. Who drops it compares survivors: with
two of ten runs left, two arms of which one diverges look alike. The seed is the unit here too, and lost if any of its
runs was: who repeats those that came through loses no smaller share by it.
"""

from __future__ import annotations

from hpcml.analysis.compare.result import Losses, Verdict
from hpcml.analysis.frame import Arm, is_own_doing
from hpcml.analysis.stats import share_interval
from hpcml.model.divergence import diverged
from hpcml.model.records import RunRecord

_MOST_LOST = 5  # one of so many; with more lost there is no verdict
_GOOD: frozenset[Verdict] = frozenset({"identical", "equivalent", "better", "non-inferior"})
_BAD: frozenset[Verdict] = frozenset({"worse", "worse by more than the margin"})


def lost_runs(arm: Arm) -> list[RunRecord]:
    """Return the runs that *arm* lost to its own doing.

    A run that completed without any metric at all is none of them: nothing was read of it, which says nothing of how
    it did. One that diverged is, also where it has a value, which may be from before.
    """
    mute = [run for run in arm.without_metric if run.metrics]
    failed = [run for run in arm.failed if is_own_doing(run) and run.uid not in arm.mistaken]
    late = diverged(arm.ok)
    return [*arm.nan, *mute, *failed, *(run for run in arm.ok if run.uid in late)]


def find_losses(arm: Arm) -> Losses:
    """Return how many seeds *arm* lost to its own doing."""
    lost, n = count_lost(arm)
    return Losses(
        n=lost,
        n_ended=n,
        rate_ci90=share_interval(lost, n),
        n_elsewhere=sum(not is_own_doing(run) for run in arm.failed),
        n_diverged=len(diverged(arm.ok)),
    )


def count_lost(arm: Arm) -> tuple[int, int]:
    """Return how many seeds *arm* lost to its own doing, and of how many that have an outcome."""
    lost = {run.seed for run in lost_runs(arm)}
    return len(lost), len(lost.union(arm.values))


def judged_by_losses(verdict: Verdict, arm: Arm, reference: Arm) -> Verdict:
    """Return *verdict*, or "unstable" where lost seeds forbid it; "unstable reference" where *arm* lost none.

    Where all that is known of both is that no run reported the metric, nothing is known of how either did. Nothing may
    be said where either arm lost more than one seed of five; nothing good of an arm that lost a larger share than the
    reference, and nothing bad of one that lost a smaller share.
    """
    if _is_mute(arm) and _is_mute(reference):
        return "inconclusive"
    (lost, n), (other_lost, other_n) = count_lost(arm), count_lost(reference)
    more = lost * other_n - other_lost * n
    is_forbidden = (more > 0 and verdict in _GOOD) or (more < 0 and verdict in _BAD)
    if is_forbidden or lost * _MOST_LOST > n or other_lost * _MOST_LOST > other_n:
        return "unstable" if lost else "unstable reference"
    return verdict


def _is_mute(arm: Arm) -> bool:
    """Tell whether all runs of *arm* that count completed, and reported no such metric."""
    mute = {run.uid for run in arm.without_metric}
    return bool(mute) and not arm.ok and all(run.uid in mute for run in lost_runs(arm))
