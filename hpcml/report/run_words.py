"""One run in words, as the table and the details of runs both use them."""

from __future__ import annotations

import math

from hpcml.precision import Numerics
from hpcml.record_keys import begun_at
from hpcml.records import MetricSummary, RunRecord
from hpcml.report.plain_text import number, safe


def short_uid(uid: str) -> str:
    """Return the part of *uid* that people type: what follows its date and time."""
    return uid.rpartition("-")[2]


def title(run: RunRecord) -> str:
    """Return the run's name, else its model's."""
    return run.name or str(run.params.get("model.name") or "")


def tags_line(run: RunRecord) -> str:
    """Return which tags the run has, in a line."""
    return safe(f"{run.uid}  {', '.join(run.tags) or 'no tags'}")


def precision_words(run: RunRecord) -> str:
    """Return the precision asked for, what was measured where that is something else, and how unless natively."""
    differs = run.precision_effective not in (None, run.precision)
    measured = f" -> {run.precision_effective}" if differs else ""
    return f"{run.precision}{measured}{'' if is_native(run) else f' ({run.numerics})'}"


def key_metric(run: RunRecord, metric: str | None) -> tuple[str, float | None]:
    """Return the name and the last value of *metric*, by default the run's objective; nan where it ended so."""
    name = metric or str(run.params.get("objective.metric") or "")
    summary = run.metrics.get(name)
    return name, None if summary is None else last_value(summary)


def last_value(summary: MetricSummary) -> float | None:
    """Return the last value, nan where it is known not to be finite."""
    return math.nan if summary.last is None and summary.n_nonfinite else summary.last


def metric_words(value: float | None) -> str:
    """Return a metric's value, "NaN" where it ended so, "" where there is none."""
    return "NaN" if value is not None and not math.isfinite(value) else number(value)


def submitted_at(run: RunRecord) -> float | None:
    """Return when the run was submitted, else when it started, in unix seconds."""
    return begun_at(run.submitted_at, run.t_start)


def is_native(run: RunRecord) -> bool:
    """Whether this run's times say anything about its precision."""
    return run.numerics == Numerics.native.name


def job_words(run: RunRecord) -> str:
    """Return the run's job as its scheduler calls it; of a job that several runs share, it says so."""
    index = "" if run.array_index is None else f"_{run.array_index}"
    return f"{run.scheduler} {run.job_id or '-'}{index}{' (shared)' * run.is_shared}"
