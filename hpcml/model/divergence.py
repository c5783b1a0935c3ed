"""Which recorded runs diverged: those of which a loss was no number at the last, or at any step."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcml.model.metric_goal import is_loss
from hpcml.model.metric_sources import NONFINITE, PRINTED_LOSS
from hpcml.model.records import MetricSummary, RunRecord


def diverged(runs: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Return which losses of *runs* were no number at the last, by the uid of the run; of others nothing.

    Such a run has a metric all the same where that was read before, or is the best so far, or the guess of a network
    whose weights are nan.
    """
    ended = {run.uid: _lost_losses(run) or ["the loss that they print"] * bool(_printed_loss(run)) for run in runs}
    return {uid: names for uid, names in ended.items() if names}


def divergence_words(run: RunRecord) -> str | None:
    """Return how *run*, which is over, diverged; None where it did not, or may still come back."""
    if not run.state.is_final:
        return None
    if names := _lost_losses(run):
        return f"{', '.join(names)} nan or infinite at the last"
    printed = _printed_loss(run)
    return f"{printed} at the last, as it was printed" if printed else None


def with_nonfinite_loss(runs: Sequence[RunRecord]) -> int:
    """Return of how many *runs* any loss was nan or infinite at any step where it was measured."""
    losses = losses_of(runs)
    return sum(any(_n_broken(run.metrics[name]) > 0 for name in losses & run.metrics.keys()) for run in runs)


def losses_of(runs: Sequence[RunRecord]) -> set[str]:
    """Return the names of all losses that any of *runs* has."""
    return {name for name in set[str]().union(*(run.metrics for run in runs)) if is_loss(name)}


def _lost_losses(run: RunRecord) -> list[str]:
    return [
        name
        for name, summary in sorted(run.metrics.items())
        if summary.last is None and _n_broken(summary) > 0 and is_loss(name)
    ]


def _printed_loss(run: RunRecord) -> str | None:
    """Return what was printed of a loss that is no number at the last; None of one that has values, which count."""
    printed = str(run.facts.get(PRINTED_LOSS) or "")
    if not printed:
        return None
    name, *read = (re.sub(r"[\W_]+", " ", one).lower() for one in (printed.removesuffix(NONFINITE), *run.metrics))
    return None if name in read else printed


def _n_broken(summary: MetricSummary) -> int:
    return summary.n_nonfinite - summary.n_unmeasured
