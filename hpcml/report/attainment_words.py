"""The words and numbers of what runs attained that its terminal and Markdown views share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from hpcml.attainment import Attained, Attainment, Published
from hpcml.report.bars import bar
from hpcml.report.plain_text import number

BAR_TITLE = "of peak"
DISPENSABLE = ("DRAM %", "SM %", "GPU %", "step ms", "tensor %", BAR_TITLE, "tokens/s", "n")  # left out in this order
PUBLISHED_TITLE = "Published by others: not measured by hpcml, and in no statistics"
PUBLISHED_HEADINGS = ("workload", "device", "precision", "N", "value", "unit")
_TITLES = (
    *("precision", "n", "devices", "step ms", "samples/s", "tokens/s", "TFLOP/s", "peak", "MFU", BAR_TITLE),
    *("GPU %", "SM %", "tensor %", "DRAM %"),
)
_BAR_WIDTH = 10
Cell = tuple[str, list[Attained]]


def introduction(attainment: Attainment) -> str:
    """Return what is looked at."""
    return (
        f"{attainment.n_runs} runs · one device in steady state, medians over seeds; peaks are dense, of the precision "
        "that was measured"
    )


def cells(attainment: Attainment) -> Iterator[Cell]:
    """Yield what runs have in common, and the rows that do."""
    for heading, rows in groupby(attainment.attained, key=_heading):
        yield heading, list(rows)


def table(rows: Sequence[Attained], *, is_plain: bool) -> tuple[list[str], list[list[str]]]:
    """Return headings and lines; what no row has is no column."""
    lines = [_line(row, is_plain=is_plain) for row in rows]
    shown = [at for at in range(len(_TITLES)) if any(line[at] for line in lines)]
    return [_TITLES[at] for at in shown], [[line[at] for at in shown] for line in lines]


def remarks(rows: Sequence[Attained]) -> Iterator[str]:
    """Yield what keeps the runs from more, and what must be known to read their table."""
    for row in rows:
        for limit in row.limits:
            yield f"{row.precision}: {limit}"
        if not row.limits:
            yield f"{row.precision}: nothing that was recorded says what limits it"
        if row.why_no_mfu is not None:
            yield f"{row.precision}: no MFU: {row.why_no_mfu}"
        if (roof := _roof(row)) is not None:
            yield f"{row.precision}: {roof}"
        if row.peak_basis not in (None, "data sheet"):
            yield f"{row.precision}: the peak is {row.peak_basis}"
        for flag in row.flags:
            yield f"{row.precision}: {flag}"


def published_lines(figures: Sequence[Published]) -> list[list[str]]:
    """Return a line for each figure."""
    return [
        [
            figure.workload,
            figure.device,
            figure.precision,
            "" if figure.size is None else str(figure.size),
            number(figure.value),
            figure.unit,
        ]
        for figure in figures
    ]


def published_remarks(figures: Sequence[Published]) -> Iterator[str]:
    """Yield the notes of *figures*, each once, then their sources."""
    for (workload, device, note), members in groupby(
        figures, key=lambda figure: (figure.workload, figure.device, figure.note)
    ):
        if note is not None:
            precisions = ", ".join(dict.fromkeys(figure.precision for figure in members))
            yield f"{workload}, {device}, {precisions}: {note}"
    for source in dict.fromkeys(figure.source for figure in figures):
        yield f"source: {source}"


def right_aligned(titles: Sequence[str]) -> list[int]:
    """Return the columns of numbers."""
    return [at for at, title in enumerate(titles) if title not in ("precision", BAR_TITLE)]


def _heading(row: Attained) -> str:
    parts = [f"{key} {value}" for key, value in row.where.items() if value not in ("not set", "none")]
    return " · ".join([*parts, *([f"device {row.device}"] if row.device else [])])


def _line(row: Attained, *, is_plain: bool) -> list[str]:
    doubtful = "" if row.peak_basis in (None, "data sheet") else "~"
    return [
        row.precision,
        str(row.n),
        "" if row.devices is None else str(row.devices),
        number(row.step_ms),
        number(row.samples_per_s),
        number(row.tokens_per_s),
        number(row.achieved_tflops, 3),
        "" if row.peak_tflops is None else f"{doubtful}{row.peak_tflops:g}",
        "" if row.mfu is None else f"{row.mfu * 100:.1f} %",
        bar(row.mfu, width=_BAR_WIDTH, is_plain=is_plain),
        *(_percent(value) for value in (row.util_percent, row.sm_active_percent, row.tensor_percent, row.dram_percent)),
    ]


def _roof(row: Attained) -> str | None:
    if row.ridge_flop_per_byte is None:
        return None
    ridge = f"the memory ({row.bandwidth_gbs:g} GB/s) is the lower roof below {row.ridge_flop_per_byte:.0f} FLOP/byte"
    if row.intensity_flop_per_byte is None or row.roof_tflops is None:
        return f"{ridge}; what the runs do for a byte was not measured"
    which = "memory" if row.intensity_flop_per_byte < row.ridge_flop_per_byte else "arithmetic"
    return f"{ridge}; they do {row.intensity_flop_per_byte:.3g}: at most {row.roof_tflops:.3g} TFLOP/s, by {which}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"
