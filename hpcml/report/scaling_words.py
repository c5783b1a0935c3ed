"""The words and numbers of a scaling study that its terminal and Markdown views share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcml.comparison import Interval
from hpcml.report.bars import bar
from hpcml.report.plain_text import number
from hpcml.scaling import Scaling, ScalingCell, ScalingPoint

BAR_TITLE = "used"
DISPENSABLE = ("GPU-h", "kJ", "J/sample", "batch", "cost", "comm.", "gain [95 %]", BAR_TITLE)  # left out in this order
_BAR_WIDTH = 10


def introduction(scaling: Scaling) -> str:
    """Return what is looked at."""
    return (
        f"{scaling.n_runs} runs over {scaling.over} · against the reference by seed, 95 % intervals by t on logarithms"
    )


def heading(cell: ScalingCell) -> str:
    """Return what all runs of *cell* have in common."""
    kind = "strong scaling: one batch for all" if cell.kind == "strong" else "weak scaling: the batch grows"
    parts = [f"{key} {value}" for key, value in cell.where.items() if value not in ("not set", "none")]
    return " · ".join([kind, *parts, *([f"device {cell.device}"] if cell.device else [])])


def table(cell: ScalingCell, *, is_plain: bool) -> tuple[list[str], list[list[str]]]:
    """Return headings and lines; what no point has is no column."""
    titles = [cell.over, "n", "batch", "step ms", "samples/s", "speed-up [95 %]", "efficiency [95 %]", BAR_TITLE]
    titles += ["gain [95 %]", "cost", "comm.", "GPU-h", "kJ", "J/sample"]
    lines = [_line(point, cell, is_plain=is_plain) for point in cell.points]
    shown = [at for at in range(len(titles)) if any(line[at] for line in lines)]
    return [titles[at] for at in shown], [[line[at] for at in shown] for line in lines]


def remarks(cell: ScalingCell) -> Iterator[str]:
    """Yield what must be known to read the table of *cell*, the gravest first."""
    for confounder in cell.confounders:
        yield f"CONFOUNDED by {confounder.kind} {confounder}"
    yield from cell.remarks
    for point in cell.points:
        for flag in point.flags:
            yield f"{point.devices}: {flag}"
    if cell.steady_from_step is not None:
        yield f"step times: medians over steps {cell.steady_from_step} to {cell.steady_to_step} of every run"
    for note in cell.notes:
        yield f"note: {note}"
    for run in cell.excluded:
        yield f"no speed: {run.uid} ({run.level}): {run.reason}"


def right_aligned(titles: Sequence[str]) -> list[int]:
    """Return the columns of numbers."""
    return [at for at, title in enumerate(titles) if title not in ("n", BAR_TITLE)]


def _line(point: ScalingPoint, cell: ScalingCell, *, is_plain: bool) -> list[str]:
    is_reference = point.devices == cell.reference
    ended = point.n + point.n_failed + point.n_unfinished
    efficiency = 1.0 if is_reference else point.efficiency
    return [
        str(point.devices),
        str(point.n) if point.n == ended else f"{point.n}/{ended}",
        "" if point.batch_size is None else str(point.batch_size),
        number(point.step_ms),
        number(point.samples_per_s),
        "1" if is_reference else _estimate(point.speedup, point.speedup_ci95, digits=2),
        "100 %" if is_reference else _percent(point.efficiency, point.efficiency_ci95),
        bar(efficiency, width=_BAR_WIDTH, is_plain=is_plain),
        _change(point.gain, point.gain_ci95),
        "1" if is_reference else "" if point.cost is None else f"{point.cost:.2f}",
        _share(point.communication_share),
        number(point.gpu_hours, 3),
        number(point.energy_kj, 3),
        number(point.energy_per_sample_j, 3),
    ]


def _estimate(value: float | None, interval: Interval | None, *, digits: int) -> str:
    if value is None:
        return ""
    ends = "" if interval is None else f" [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"
    return f"{value:.{digits}f}{ends}"


def _percent(value: float | None, interval: Interval | None) -> str:
    if value is None:
        return ""
    ends = "" if interval is None else f" [{interval.low * 100:.0f}, {interval.high * 100:.0f}]"
    return f"{value * 100:.0f} %{ends}"


def _change(ratio: float | None, interval: Interval | None) -> str:
    if ratio is None:
        return ""
    ends = "" if interval is None else f" [{(interval.low - 1) * 100:+.1f}, {(interval.high - 1) * 100:+.1f}]"
    return f"{(ratio - 1) * 100:+.1f} %{ends}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share * 100:.0f} %"
