"""Which recorded runs diverged: those of which a loss was no number at the last, or at any step."""

from __future__ import annotations

from collections.abc import Sequence

from hpcml.model.metric_goal import is_loss
from hpcml.model.records import MetricSummary, RunRecord

_PRINTED_LOSS = "printed_loss"  # a fact of runs whose last loss, as they printed it, is no number


def diverged(runs: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Return which losses of *runs* were no number at the last, by the uid of the run; of others nothing.

    Such a run has a metric all the same where that was read before, or is the best so far, or the guess of a network
    whose weights are nan.
    """
    losses = losses_of(runs)
    ended = {
        run.uid: [name for name in sorted(losses & run.metrics.keys()) if _ended_as_no_number(run.metrics[name])]
        or ["the loss that they print"] * bool(run.facts.get(_PRINTED_LOSS))
        for run in runs
    }
    return {uid: names for uid, names in ended.items() if names}


def with_nonfinite_loss(runs: Sequence[RunRecord]) -> int:
    """Return of how many *runs* any loss was nan or infinite at any step where it was measured."""
    losses = losses_of(runs)
    return sum(any(_n_broken(run.metrics[name]) > 0 for name in losses & run.metrics.keys()) for run in runs)


def losses_of(runs: Sequence[RunRecord]) -> set[str]:
    """Return the names of all losses that any of *runs* has."""
    return {name for name in set[str]().union(*(run.metrics for run in runs)) if is_loss(name)}


def _ended_as_no_number(summary: MetricSummary) -> bool:
    return summary.last is None and _n_broken(summary) > 0


def _n_broken(summary: MetricSummary) -> int:
    return summary.n_nonfinite - summary.n_unmeasured
