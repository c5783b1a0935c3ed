"""The columns of a comparison's rows, in the order of CSV, and the tables that people get of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hpcml.analysis.compare.result import (
    NOT_AS_REQUESTED,
    NOT_PROVEN,
    Cell,
    Comparison,
    Interval,
    Load,
    Row,
    ToTarget,
    Verdict,
)
from hpcml.analysis.flags import Flag, FlagLevel
from hpcml.model.choices import Numerics
from hpcml.model.precision import PrecisionName, contradicts
from hpcml.report.document import Column, Listing, Tone
from hpcml.report.text import decimals_for, duration, ends, number, p_value, ratio, ratio_decimals, to_decimals

VERDICT_TONES: Mapping[Verdict, Tone] = {
    "equivalent": "good",
    "better": "good",
    "non-inferior": "good",
    "worse by more than the margin": "bad",
    "worse": "bad",
    "unstable": "bad",
    "unstable reference": "bad",
    "identical": "doubt",
    "inconclusive": "doubt",
    "no goal": "doubt",
    "not proven": "doubt",
    "not as requested": "doubt",
}
_MUCH_WIDER = 100  # times as wide: digits of the one say nothing of the other
_LEVELS: tuple[FlagLevel, ...] = ("blocks", "doubt", "note")
_GROUPS = ("model", "data", "strategy", "layout", "cluster", "container")


def outcome_listing(comparison: Comparison, cell: Cell) -> Listing[Row]:
    """Return the table of what came out and how fast; metric values have as many decimals as their spread supports."""
    margin = "no margin was fixed" if cell.margin is None else f"margin {margin_of(cell)}"
    return Listing(
        caption=f"{comparison.metric} against {cell.reference}; {margin}",
        columns=[*_counts(comparison, cell), *_outcome(comparison, cell), *_speed()],
        rows=cell.rows,
    )


def margin_of(cell: Cell) -> str:
    """Return the margin of *cell* with its unit, where that is not the metric's; "" where none was fixed."""
    return "" if cell.margin is None else f"{cell.margin:g}{unit_of_difference(cell)}"


def unit_of_difference(cell: Cell) -> str:
    """Return what stands behind a difference of *cell*; "" where it is in the metric's unit."""
    return " %" if cell.scale == "percent" else ""


def cost_listings(comparison: Comparison, cell: Cell) -> list[Listing[Row]]:
    """Return what is known of the way to the target, of cost and of load, a table for each, without names of rows.

    All are medians over seeds. Energy is in kJ for a run and in J for a sample, CO2 in g; load is that of one device.
    """
    target = next((f"{row.to_target.target:g}" for row in cell.rows if row.to_target is not None), "")
    subjects = (
        (f"Time until {comparison.metric} first reached {target}; runs that never did are counted", _target()),
        ("Cost of whole runs, GPU boards only, medians over seeds", _cost()),
        ("Load of one device, medians over seeds", _load()),
    )
    known = [
        (caption, [each for each in columns if each.heading and any(map(each.written, cell.rows))])
        for caption, columns in subjects
    ]
    return [Listing(caption=caption, columns=columns, rows=cell.rows) for caption, columns in known if columns]


def named_by_level(comparison: Comparison, listing: Listing[Row]) -> Listing[Row]:
    """Return *listing* with a first column that names its rows."""
    return replace(listing, columns=[_level(comparison), *listing.columns])


def csv_columns(comparison: Comparison, cell: Cell) -> list[Column[Row]]:
    """Return all columns in the order of CSV, on which programs rely: new ones are added, none changes its name."""
    return [
        *_context(comparison, cell),
        *_counts(comparison, cell),
        *_outcome(comparison, cell),
        *_speed(),
        *_cost(),
        *_load(),
        *_target(),
        _hidden("unit", lambda row: row.unit),
        _hidden("flags", lambda row: "; ".join(map(str, row.flags))),
        _hidden("confounders", lambda _: "; ".join(map(str, cell.confounders))),
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
    """Return the flags that each row with runs has, if there are several: they are told once, without a number."""
    rows = [row for row in cell.rows if row.n_ok]
    return [flag for flag in rows[0].flags if all(flag in row.flags for row in rows)] if len(rows) > 1 else []


def footnotes(cell: Cell) -> list[Flag]:
    """Return the other flags of the rows, each once, what blocks a verdict first: their places are their numbers."""
    shared = flags_of_all(cell)
    every = dict.fromkeys(flag for row in cell.rows for flag in row.flags if flag not in shared)
    return sorted(every, key=lambda flag: _LEVELS.index(flag.level))


def _hidden(key: str, value: Callable[[Row], object]) -> Column[Row]:
    """Return a column for programs alone: people find it above or below the table."""
    return Column(key, None, value)


def _part(
    part: str,
    name: str,
    heading: str | None,
    text: Callable[[Any], str] | None = None,
    *,
    key: str = "",
    is_interval: bool = False,
) -> Column[Row]:
    """Return the column of one field of a part of a row, "cost" say; *text* is asked where the row has that part."""

    def value(row: Row) -> object:
        return getattr(getattr(row, part), name, None)

    def written(row: Row) -> str:
        return "" if text is None or (its := getattr(row, part)) is None else text(its)

    return Column(key or name, heading, value, written if text else None, is_interval=is_interval)


def _context(comparison: Comparison, cell: Cell) -> list[Column[Row]]:
    """Return what is the same for all rows of a cell, for programs that read CSV line by line."""
    others = "; ".join(f"{key}={value}" for key, value in cell.where.items() if key not in _GROUPS)
    return [
        _hidden("by", lambda _: comparison.by),
        *(_hidden(group, partial(lambda value, _: value, cell.where.get(group))) for group in _GROUPS),
        _hidden("cell", lambda _: others),
        _hidden("device", lambda _: cell.device),
        _hidden("batch_size", lambda _: cell.batch_size),
    ]


def _level(comparison: Comparison) -> Column[Row]:
    return Column("level", comparison.by.rpartition(".")[2], lambda row: row.level)


def _counts(comparison: Comparison, cell: Cell) -> list[Column[Row]]:
    asked = {each for row in cell.rows for each in row.precision_requested} - {PrecisionName.own.name}
    measured = {each for row in cell.rows for each in row.precision_effective} - {NOT_PROVEN}

    def of_selected(row: Row) -> str:
        return f"{row.n_ok}" if row.n_ok == row.n_selected else f"{row.n_ok}/{row.n_selected}"

    return [
        _level(comparison),
        _hidden("numerics", lambda row: row.numerics),
        Column(
            "precision_effective",
            "effective" if asked or measured else None,
            lambda row: ";".join(row.precision_effective),
            lambda row: ", ".join(row.precision_effective),
        ),
        Column("n_ok", "n", lambda row: row.n_ok, of_selected, is_number=False),
        _hidden("n_failed", lambda row: row.n_failed),
        _hidden("n_nan", lambda row: row.n_nan),
        _hidden("n_without_metric", lambda row: row.n_without_metric),
        _hidden("n_incomplete", lambda row: row.n_incomplete),
        _hidden("n_unfinished", lambda row: row.n_unfinished),
        _part("losses", "n", None, key="n_lost"),
        _part("losses", "n_ended", None),
        _part("losses", "n_diverged", None),
        _part("losses", "n_elsewhere", None, key="n_lost_elsewhere"),
        _part("losses", "rate_ci90", None, key="lost_rate", is_interval=True),
        _hidden("seeds", lambda row: ";".join(map(str, row.seeds))),
    ]


def _outcome(comparison: Comparison, cell: Cell) -> list[Column[Row]]:
    decimals, of_difference, metric = cell_decimals(cell), difference_decimals(cell), comparison.metric
    return [
        _hidden("metric", lambda _: metric),
        Column("mean", f"{metric} ± 95 %", lambda row: row.mean, partial(_mean, decimals=decimals), is_number=False),
        _hidden("sd", lambda row: row.sd),
        Column("mean_ci95", None, lambda row: row.mean_ci95, is_interval=True),
        _hidden("reference", lambda _: cell.reference),
        Column(
            "difference",
            f"difference to {cell.reference}{unit_of_difference(cell).replace(' ', ', ')} [90 %]",
            lambda row: row.difference.value if row.difference else None,
            lambda row: _estimate(row.difference.value, row.difference.ci90, of_difference) if row.difference else "",
            is_number=False,
        ),
        _part("difference", "ci90", None, key="difference_ci90", is_interval=True),
        *_tests(comparison, cell),
    ]


def _tests(comparison: Comparison, cell: Cell) -> list[Column[Row]]:
    m, notes = comparison.n_tests, footnotes(cell)
    holm = f", Holm over {m}" if m > 1 else ""
    claims = any(row.p_claim is not None and row.verdict != "equivalent" for row in cell.rows)  # else TOST's p is its

    def p_tost(row: Row) -> float | None:
        return row.difference.p_tost if row.difference else None

    def verdict(row: Row) -> str:
        marks = ",".join(str(number) for number, note in enumerate(notes, 1) if note in row.flags)
        return f"{row.verdict} ({marks})" if marks else row.verdict

    return [
        _part("difference", "paired", None),
        _part("difference", "rho", None),
        _part("difference", "n_pairs", None),
        _hidden("left_out", lambda row: row.difference and ";".join(map(str, row.difference.left_out))),
        _hidden("scale", lambda _: cell.scale),
        _hidden("margin", lambda _: cell.margin),
        _hidden("margin_source", lambda _: cell.margin_source),
        Column(
            "p_tost",
            f"p (TOST){holm}",
            p_tost,
            lambda row: p_value(row.p_adjusted if m > 1 else p_tost(row)),
            is_short=False,
        ),
        _hidden("p_adjusted", lambda row: row.p_adjusted),
        Column(
            "p_claim",
            f"p of the verdict{holm}" if claims else None,
            lambda row: row.p_claim,
            lambda row: p_value(row.p_claim),
            is_short=False,
        ),
        Column("verdict", "verdict", lambda row: row.verdict, verdict, tone=lambda row: tone_of(row.verdict)),
    ]


def tone_of(verdict: Verdict) -> Tone:
    """Return the colour of *verdict*."""
    return VERDICT_TONES.get(verdict, "plain")


def _speed() -> list[Column[Row]]:
    def column(name: str, heading: str, text: Callable[[Any], str], *, is_short: bool = True) -> Column[Row]:
        """Return a column that says why there is no speed in the place of one."""

        def written(row: Row) -> str:
            return _no_speed(row) if row.speed is None else text(getattr(row.speed, name))

        return Column(name, heading, lambda row: getattr(row.speed, name, None), written, is_short=is_short)

    return [
        column("step_ms", "step ms", number),
        column("samples_per_s", "samples/s", number),
        Column("speedup", "speed-up [95 %]", lambda row: row.speed and row.speed.speedup, _speedup, is_number=False),
        _part("speed", "speedup_ci95", None, is_interval=True),
        _hidden("speedup_of", lambda row: row.speed.speedup_of if row.speed and row.speed.speedup else None),
        _part("speed", "speedup_unit", None),
        column("wall_s", "wall time", duration, is_short=False),
    ]


def _cost() -> list[Column[Row]]:
    field = partial(_part, "cost")
    return [
        field("gpu_hours", "GPU hours"),
        field("energy_kj", "energy, kJ"),
        field("energy_method", None),
        field("energy_scope", None),
        field("energy_per_sample_j", "energy per sample, J"),
        field(
            "energy_ratio",
            "  ratio [95\u00a0%]",
            lambda cost: _estimate(cost.energy_ratio, cost.energy_ratio_ci95, 3, signed=False),
        ),
        field("energy_ratio_ci95", None, is_interval=True),
        field("energy_ratio_unit", None),
        field("co2_g", "CO2, g"),
        field("co2_source", None),
        field("n", None, key="n_energy"),
        field("energy_per_gflop_j", "energy per 10^9 operations, J"),
    ]


def _load() -> list[Column[Row]]:
    """Return the columns of load, of one device; shares are 0 to 1 for programs, and percent for people."""
    field = partial(_part, "load")

    def percent(name: str, heading: str, *, scale: float = 100) -> Column[Row]:
        def text(load: Load) -> str:
            value = getattr(load, name)
            return "" if value is None else f"{value * scale:.1f} %"

        return field(name, heading, text)

    return [
        field("mean_power_w", "power of a GPU, W", lambda load: _at_most(load.mean_power_w, load.power_limit_w)),
        field("power_limit_w", None),
        percent("throttled_power_share", "throttled by the power cap"),
        percent("throttled_thermal_share", "throttled by heat"),
        field("sm_mhz", "SM clock, MHz"),
        percent("util_percent", "GPU busy", scale=1),
        percent("tensor_percent", "tensor cores busy", scale=1),
        field("peak_memory_mb", "peak memory, MiB"),
        field(
            "achieved_tflops",
            "TFLOP/s of a device",
            lambda load: _at_most(
                load.achieved_tflops, load.peak_tflops, "" if load.peak_basis == "data sheet" else "~"
            ),
        ),
        field("peak_tflops", None),
        field("peak_basis", None),
        percent("mfu", "  share of the peak (MFU)"),
        percent("data_share", "waiting for data"),
        percent("communication_share", "communicating"),
        field("skipped_steps", "steps skipped (loss scale)", lambda load: number(load.skipped_steps, 3)),
        field("limited_by", "limited by"),
    ]


def _target() -> list[Column[Row]]:
    """Return the columns of the way to the target; a run that never got there counts with the whole budget."""
    field = partial(_part, "to_target")

    def saved(way: ToTarget) -> str:
        return _estimate(way.saved_s, way.saved_ci95, 1)

    return [
        field("target", None),
        field("reached", "reached the target", lambda way: f"{way.reached} of {way.n}", key="target_reached"),
        field("n", None, key="target_n"),
        field("median_s", "time to target (median)", lambda way: duration(way.median_s), key="target_median_s"),
        field(
            "restricted_mean_s",
            "  restricted mean",
            lambda way: duration(way.restricted_mean_s),
            key="target_restricted_mean_s",
        ),
        field("budget_s", None, key="target_budget_s"),
        field("saved_s", "  sooner by, s [95\u00a0%]", saved, key="target_saved_s"),
        field("saved_ci95", None, key="target_saved_ci95", is_interval=True),
        field("unit", None, key="target_unit"),
        field("p_log_rank", "  p (log-rank)", lambda way: p_value(way.p_log_rank), key="target_p_log_rank"),
        field("median_kj", "energy to target, kJ", key="target_median_kj"),
    ]


def _mean(row: Row, *, decimals: int) -> str:
    """Return the mean with half of its 95 % interval behind ±."""
    decimals = row_decimals(row, decimals)
    half = f"± {to_decimals((row.mean_ci95.high - row.mean_ci95.low) / 2, decimals)}" if row.mean_ci95 else ""
    return f"{'' if row.mean is None else to_decimals(row.mean, decimals)} {half}".strip()


def _estimate(value: float | None, interval: Interval | None, decimals: int, *, signed: bool = True) -> str:
    if value is None:
        return ""
    return f"{to_decimals(value, decimals, signed=signed)} {ends(interval, decimals, signed=signed)}".strip()


def _no_speed(row: Row) -> str:
    """Return why a row has no speed, in a word or two: its numerics, where they are not native."""
    if row.numerics == Numerics.native.name:
        impostors = (contradicts(row.precision_requested[0], one) for one in row.precision_effective)
        return NOT_AS_REQUESTED if any(impostors) else ""
    return row.numerics or ""


def _speedup(row: Row) -> str:
    if row.speed is None:
        return _no_speed(row)
    if row.verdict == "reference":
        return "1" if row.speed.n else ""
    if row.speed.speedup is None:
        return ends(row.speed.speedup_ci95, ratio_decimals(row.speed.speedup_ci95))
    return ratio(row.speed.speedup, row.speed.speedup_ci95)


def _at_most(value: float | None, most: float | None, doubt: str = "") -> str:
    return number(value) if value is None or most is None else f"{number(value)} of {doubt}{number(most)}"
