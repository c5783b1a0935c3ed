"""Quantities of a comparison's rows, in the order of the columns in CSV.

`hpcml.report.comparison` makes all tables from them: those of ``hpcml compare`` in every format, and those of a report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hpcml.model.choices import Numerics
from hpcml.model.comparison import NOT_AS_REQUESTED, NOT_PROVEN, Cell, Comparison, Flag, FlagLevel, Losses, Row, Speed
from hpcml.model.precision import PrecisionName, contradicts
from hpcml.report.comparison_costs import (
    NAME,
    OUTCOME,
    SPEED,
    cost_quantities,
    hidden,
    load_quantities,
    to_target_quantities,
)
from hpcml.report.quantities import (
    NOTHING,
    VERDICT_TONES,
    Entry,
    Quantity,
    Short,
    Value,
    between,
    figure,
    fixed,
    span,
    words,
)
from hpcml.report.text import decimals_for, duration, ends, number, p_value, ratio_decimals, to_decimals

RowQuantities = Callable[[Comparison, Cell], Sequence[Quantity[Row]]]
_MUCH_WIDER = 100  # times as wide: digits of the one say nothing of the other
_LEVELS: tuple[FlagLevel, ...] = ("blocks", "doubt", "note")
_GROUPS = ("model", "data", "strategy", "layout", "cluster", "container")


def row_quantities(comparison: Comparison, cell: Cell) -> list[Quantity[Row]]:
    """Return the quantities of the rows of *cell*; metric values have as many decimals as their spread supports.

    Their order is that of the columns in CSV, which programs may rely on: new ones are added, none changes its name. A
    new column of all formats is one more `Quantity` here, or in `hpcml.report.comparison_costs`.
    """
    return [
        *_context(comparison, cell),
        *_counts(comparison, cell),
        *_outcome(comparison, cell),
        *_speed(),
        *cost_quantities(),
        *load_quantities(),
        *to_target_quantities(),
        hidden("unit", lambda row: row.unit),
        hidden("flags", lambda row: "; ".join(map(str, row.flags))),
        hidden("confounders", lambda _: "; ".join(map(str, cell.confounders))),
    ]


def cell_decimals(cell: Cell) -> int:
    """Return the decimals of metric values in *cell*: two digits of the smallest spread that is not zero.

    So rows have the same number of decimals. The rule is that of `hpcml.report.text.decimals_for`. A spread of less
    than a hundredth of the widest does not count: such a row has more decimals by itself (`row_decimals`).
    """
    spreads = [row.sd for row in cell.rows if row.sd]
    values = [abs(row.mean) for row in cell.rows if row.mean]
    widest = max(spreads, default=0.0)
    counting = [spread for spread in spreads if spread * _MUCH_WIDER >= widest]
    return decimals_for(min(counting, default=None), max(values, default=None))


def row_decimals(row: Row, decimals: int) -> int:
    """Return the decimals of the metric values of *row*: its cell's *decimals*, or more if its spread asks for it.

    One without a spread has those that show two digits of its value, beside another that is a thousand times it.
    """
    if row.sd:
        return max(decimals, decimals_for(row.sd, row.mean))
    return max(decimals, decimals_for(None, row.mean) - 2) if row.mean else decimals


def difference_decimals(cell: Cell) -> int:
    """Return the decimals of differences in *cell*: two digits of the narrowest interval, or those of its values.

    Pairs differ by less than their values do.
    """
    known = [row.difference.ci90 for row in cell.rows if row.difference is not None and row.difference.ci90 is not None]
    widths = [width for interval in known if (width := interval.high - interval.low)]
    largest = max((abs(row.mean) for row in cell.rows if row.mean), default=None)
    return max(cell_decimals(cell), decimals_for(min(widths), largest) if widths else cell_decimals(cell))


def flags_of_all(cell: Cell) -> list[Flag]:
    """Return the flags that all rows of which a run counts have alike; [] where that is one row."""
    rows = [row for row in cell.rows if row.n_ok]
    return [flag for flag in rows[0].flags if all(flag in row.flags for row in rows)] if len(rows) > 1 else []


def footnotes(cell: Cell) -> list[Flag]:
    """Return the other flags of the rows, each once, what blocks a verdict first: their places are their numbers."""
    shared = flags_of_all(cell)
    every = dict.fromkeys(flag for row in cell.rows for flag in row.flags if flag not in shared)
    return sorted(every, key=lambda flag: _LEVELS.index(flag.level))


def _verdict(row: Row, notes: Sequence[Flag]) -> Entry:
    """Return the verdict with the numbers of its footnotes."""
    marks = ",".join(str(number) for number, note in enumerate(notes, 1) if note in row.flags)
    tone = VERDICT_TONES.get(row.verdict, "plain")
    return words(f"{row.verdict} ({marks})" if marks else row.verdict, tone)


def _context(comparison: Comparison, cell: Cell) -> list[Quantity[Row]]:
    """Return what is the same for all rows of a cell, for programs that read CSV line by line."""
    others = "; ".join(f"{key}={value}" for key, value in cell.where.items() if key not in _GROUPS)
    return [
        hidden("by", lambda _: comparison.by),
        *(hidden(group, partial(lambda value, _: value, cell.where.get(group))) for group in _GROUPS),
        hidden("cell", lambda _: others),
        hidden("device", lambda _: cell.device),
        hidden("batch_size", lambda _: cell.batch_size),
    ]


def _counts(comparison: Comparison, cell: Cell) -> list[Quantity[Row]]:
    asked = {each for row in cell.rows for each in row.precision_requested} - {PrecisionName.own.name}
    measured = {each for row in cell.rows for each in row.precision_effective} - {NOT_PROVEN}
    is_asked = bool(asked) or bool(measured)
    return [
        Quantity(key="level", heading=comparison.by, kind="text", value=lambda row: row.level, section=NAME, order=-9,
                 short=Short(heading=comparison.by.rpartition(".")[2])),
        Quantity(key="numerics", heading="numerics", kind="text", value=lambda row: row.numerics,
                 section=OUTCOME if is_asked else None, order=-1, short=None),
        Quantity(
            key="precision_effective",
            heading="effective precision",
            kind="text",
            value=lambda row: ";".join(row.precision_effective),
            write=lambda row: words(", ".join(row.precision_effective)),
            section=OUTCOME if is_asked else None,
            order=-2,
            short=Short(heading="effective") if is_asked else None,
        ),
        Quantity(
            key="n_ok",
            heading="n",
            value=lambda row: row.n_ok,
            section=OUTCOME,
            short=Short(write=_of_selected, is_number=False),
        ),
        Quantity(key="n_failed", heading="failed", value=lambda row: row.n_failed, section=OUTCOME, short=None),
        Quantity(key="n_nan", heading="not finite", value=lambda row: row.n_nan, section=OUTCOME, short=None),
        Quantity(key="n_without_metric", heading="no metric", value=lambda row: row.n_without_metric, section=OUTCOME,
                 write=lambda row: figure(row.n_without_metric or None), short=None),
        Quantity(key="n_incomplete", heading="incomplete", value=lambda row: row.n_incomplete, section=OUTCOME,
                 write=lambda row: figure(row.n_incomplete or None), short=None),
        Quantity(key="n_unfinished", heading="unfinished", value=lambda row: row.n_unfinished, section=OUTCOME,
                 write=lambda row: figure(row.n_unfinished or None), short=None),
        *_losses(),
        hidden("seeds", lambda row: ";".join(map(str, row.seeds))),
    ]  # fmt: skip


def _losses() -> list[Quantity[Row]]:
    """Return what is told of lost runs."""

    def of(read: Callable[[Losses], Value]) -> Callable[[Row], Value]:
        return lambda row: None if row.losses is None else read(row.losses)

    return [
        Quantity(
            key="n_lost",
            heading="lost",
            value=of(lambda losses: losses.n),
            write=_lost,
            section=OUTCOME,
            short=None,
        ),
        hidden("n_ended", of(lambda losses: losses.n_ended)),
        hidden("n_diverged", of(lambda losses: losses.n_diverged)),
        hidden("n_lost_elsewhere", of(lambda losses: losses.n_elsewhere)),
        hidden("lost_rate_low", of(lambda losses: losses.rate_ci90.low if losses.rate_ci90 else None)),
        hidden("lost_rate_high", of(lambda losses: losses.rate_ci90.high if losses.rate_ci90 else None)),
    ]


def _lost(row: Row) -> Entry:
    if row.losses is None or not (row.losses.n or row.losses.n_ended):
        return NOTHING
    rate = row.losses.rate_ci90
    interval = "" if rate is None else f"[{rate.low * 100:.0f} %, {rate.high * 100:.0f} %]"
    return Entry(text=f"{row.losses.n}/{row.losses.n_ended}", interval=interval, order=row.losses.n)


def _outcome(comparison: Comparison, cell: Cell) -> list[Quantity[Row]]:
    decimals, of_difference, metric = cell_decimals(cell), difference_decimals(cell), comparison.metric
    return [
        hidden("metric", lambda _: metric),
        Quantity(
            key="mean",
            heading=f"{metric}, mean",
            value=lambda row: row.mean,
            write=lambda row: fixed(row.mean, row_decimals(row, decimals)),
            section=OUTCOME,
            short=Short(heading=f"{metric} ± 95 %", is_number=False,
                        write=partial(_mean, decimals=decimals)),
        ),
        Quantity(key="sd", heading="sd", value=lambda row: row.sd, section=OUTCOME, order=1, short=None,
                 write=lambda row: fixed(row.sd, row_decimals(row, decimals) + 1)),
        Quantity(key="mean_ci95", heading="95 % interval", kind="interval", value=lambda row: row.mean_ci95,
                 write=lambda row: between(row.mean_ci95, row_decimals(row, decimals)), section=OUTCOME, short=None),
        hidden("reference", lambda _: cell.reference),
        Quantity(
            key="difference",
            heading=f"difference to {cell.reference}",
            value=lambda row: row.difference.value if row.difference else None,
            write=lambda row: fixed(row.difference.value, of_difference, signed=True) if row.difference else NOTHING,
            section=OUTCOME,
            order=2,
            short=Short(
                heading=f"difference to {cell.reference} [90 %]",
                write=partial(_difference, decimals=of_difference),
                is_number=False,
            ),
        ),
        Quantity(
            key="difference_ci90",
            heading="90 % interval",
            kind="interval",
            value=lambda row: row.difference.ci90 if row.difference else None,
            write=lambda row: between(row.difference.ci90, of_difference, signed=True) if row.difference else NOTHING,
            section=OUTCOME,
            order=2,
            short=None,
        ),
        *_tests(comparison, cell),
    ]  # fmt: skip


def _tests(comparison: Comparison, cell: Cell) -> list[Quantity[Row]]:
    m = comparison.n_tests
    return [
        Quantity(key="paired", heading="pairing", kind="text", write=_pairing, section=OUTCOME, order=2, short=None,
                 value=lambda row: row.difference.paired if row.difference else None),
        hidden("rho", lambda row: row.difference.rho if row.difference else None),
        hidden("n_pairs", lambda row: row.difference.n_pairs if row.difference else None),
        hidden("left_out", lambda row: ";".join(map(str, row.difference.left_out)) if row.difference else None),
        hidden("scale", lambda _: cell.scale),
        hidden("margin", lambda _: cell.margin),
        hidden("margin_source", lambda _: cell.margin_source),
        Quantity(
            key="p_tost",
            heading="p (TOST)",
            value=_p_tost,
            write=lambda row: _p(_p_tost(row)),
            section=OUTCOME,
            order=2,
            short=Short(heading=f"p (TOST), Holm over {m}", on_terminal=False, write=lambda row: _p(row.p_adjusted))
            if m > 1
            else Short(on_terminal=False),
        ),
        Quantity(key="p_adjusted", heading="p, Holm", value=lambda row: row.p_adjusted, section=OUTCOME, order=2,
                 write=lambda row: _p(row.p_adjusted), short=None),
        Quantity(
            key="p_claim",
            heading="p of the verdict, Holm" if m > 1 else "p of the verdict",
            value=lambda row: row.p_claim,
            section=OUTCOME,
            order=2,
            write=lambda row: _p(row.p_claim),
            short=Short(heading=f"p of the verdict, Holm over {m}" if m > 1 else "p of the verdict", on_terminal=False)
            if any(row.p_claim is not None and row.verdict != "equivalent" for row in cell.rows)
            else None,  # that of TOST is the same
        ),
        Quantity(
            key="verdict",
            heading="verdict",
            kind="text",
            value=lambda row: row.verdict,
            write=partial(_verdict, notes=footnotes(cell)),
            section=OUTCOME,
            order=-3,
            short=Short(),
        ),
    ]  # fmt: skip


def _speed() -> list[Quantity[Row]]:
    def of(read: Callable[[Speed], Value]) -> Callable[[Row], Value]:
        return lambda row: read(row.speed) if row.speed else None

    def short(read: Callable[[Speed], str]) -> Callable[[Row], Entry]:
        """Write what is read, or in its place why there is no speed."""
        return lambda row: words(read(row.speed) if row.speed else _no_speed(row))

    return [
        Quantity(heading="no speed because", kind="text", value=_why_no_speed, section=SPEED, short=None),
        Quantity(
            key="step_ms",
            heading="step",
            unit="ms",
            value=of(lambda speed: speed.step_ms),
            section=SPEED,
            short=Short(heading="step ms", write=short(lambda speed: number(speed.step_ms))),
        ),
        Quantity(heading="5 % of steps below", unit="ms", value=of(lambda speed: speed.step_ms_p5), section=SPEED,
                 short=None),
        Quantity(heading="5 % of steps above", unit="ms", value=of(lambda speed: speed.step_ms_p95), section=SPEED,
                 short=None),
        Quantity(
            key="samples_per_s",
            heading="samples",
            unit="1/s",
            value=of(lambda speed: speed.samples_per_s),
            section=SPEED,
            short=Short(heading="samples/s", write=short(lambda speed: number(speed.samples_per_s))),
        ),
        Quantity(
            key="speedup",
            heading="speed-up",
            value=of(lambda speed: speed.speedup),
            write=_speedup,
            section=SPEED,
            short=Short(heading="speed-up [95 %]", write=_short_speedup,
                        is_number=False),
        ),
        Quantity(key="speedup_ci95", heading="95 % interval", kind="interval", section=SPEED, short=None,
                 value=of(lambda speed: speed.speedup_ci95)),
        Quantity(key="speedup_of", heading="speed-up of", kind="text", section=SPEED, short=None,
                 value=of(lambda speed: None if speed.speedup is None else speed.speedup_of)),
        Quantity(key="speedup_unit", heading="unit", kind="text", section=SPEED, short=None,
                 value=of(lambda speed: speed.speedup_unit)),
        Quantity(heading="pairing", kind="text", value=of(lambda speed: _paired(speed.speedup_paired)), section=SPEED,
                 short=None),
        Quantity(heading="seeds", value=of(lambda speed: speed.n or None), section=SPEED, short=None),
        Quantity(
            key="wall_s",
            heading="whole run",
            value=of(lambda speed: speed.wall_s),
            write=lambda row: span(row.speed.wall_s) if row.speed else NOTHING,
            section=SPEED,
            short=Short(heading="wall time", write=short(lambda speed: duration(speed.wall_s)), on_terminal=False),
        ),
    ]  # fmt: skip


def _of_selected(row: Row) -> Entry:
    return words(row.n_ok if row.n_ok == row.n_selected else f"{row.n_ok}/{row.n_selected}")


def _mean(row: Row, *, decimals: int) -> Entry:
    """Return the mean with half of its 95 % interval behind ±."""
    half = None if row.mean_ci95 is None else (row.mean_ci95.high - row.mean_ci95.low) / 2
    decimals = row_decimals(row, decimals)
    return Entry(
        text="" if row.mean is None else to_decimals(row.mean, decimals),
        interval="" if half is None else f"± {to_decimals(half, decimals)}",
    )


def _difference(row: Row, *, decimals: int) -> Entry:
    if row.difference is None:
        return NOTHING
    interval = ends(row.difference.ci90, decimals, signed=True)
    return Entry(text=to_decimals(row.difference.value, decimals, signed=True), interval=interval)


def _pairing(row: Row) -> Entry:
    if row.difference is None:
        return NOTHING
    rho = "" if row.difference.rho is None else f", rho {row.difference.rho:+.2f}"
    how = "by seed" if row.difference.paired else "none"
    return Entry(text=f"{how}{rho}")


def _paired(is_paired: bool | None) -> str | None:  # noqa: FBT001 - a value of the table
    return None if is_paired is None else "by seed" if is_paired else "none"


def _p_tost(row: Row) -> float | None:
    return row.difference.p_tost if row.difference else None


def _p(value: float | None) -> Entry:
    return NOTHING if value is None else Entry(text=p_value(value), order=value)


def _no_speed(row: Row) -> str:
    """Return why a row has no speed, in a word or two: its numerics, where they are not native."""
    if row.numerics == Numerics.native.name:
        return NOT_AS_REQUESTED if row.speed is None and _is_impostor(row) else ""
    return row.numerics or ""


def _is_impostor(row: Row) -> bool:
    return any(contradicts(row.precision_requested[0], one) for one in row.precision_effective)


def _why_no_speed(row: Row) -> str | None:
    if row.speed is not None:
        return None
    if row.numerics == Numerics.native.name:
        return NOT_AS_REQUESTED
    return "no run counts" if row.numerics is None else f"{row.numerics}, not {Numerics.native.name}"


def _speedup(row: Row) -> Entry:
    if row.speed is None or row.speed.step_ms is None:
        return NOTHING
    if row.verdict == "reference":
        return Entry(text="1", order=1.0)
    return fixed(row.speed.speedup, ratio_decimals(row.speed.speedup_ci95))


def _short_speedup(row: Row) -> Entry:
    if row.speed is None:
        return words(_no_speed(row))
    decimals = ratio_decimals(row.speed.speedup_ci95)
    if row.verdict == "reference":
        text = "" if row.speed.step_ms is None else "1"
    else:
        text = "" if row.speed.speedup is None else to_decimals(row.speed.speedup, decimals)
    return Entry(text=text, interval=ends(row.speed.speedup_ci95, decimals))
