"""Quantities of a comparison's rows, part two: cost, load of the devices, and the way to the target.

`hpcml.report.comparison_rows` has the others and joins them. A report has a table for each of the constants `OUTCOME`,
`SPEED`, `COST`, `LOAD` and `TARGET`; a quantity names the one in which it stands.
"""

from __future__ import annotations

from collections.abc import Callable

from hpcml.model.comparison import Cost, Interval, Load, Row, ToTarget
from hpcml.report.quantities import NOTHING, Entry, Quantity, Short, Value, between, figure, fixed, share, span, words
from hpcml.report.text import ends, number, p_value, to_decimals

OUTCOME, SPEED, COST, LOAD, TARGET = "outcome", "speed", "cost", "load", "target"  # a report's tables of a cell
NAME = "name"  # stands in each of them
NBSP = "\u00a0"
FIRST = -1  # of lines: when the target was reached stands before what it took


def cost_quantities() -> list[Quantity[Row]]:
    """Return the quantities of cost: GPU hours, energy, CO2. They are empty for a row without a cost.

    Energy is in kJ for a run and in J for a sample, CO2 in g; the ratio is that to the reference.
    """

    def of(read: Callable[[Cost], Value]) -> Callable[[Row], Value]:
        return lambda row: read(row.cost) if row.cost else None

    return [
        Quantity(key="gpu_hours", heading="GPU-hours", value=of(lambda cost: cost.gpu_hours), section=COST,
                 short=_line("GPU hours")),
        Quantity(key="energy_kj", heading="energy", unit="kJ", value=of(lambda cost: cost.energy_kj), section=COST),
        Quantity(key="energy_method", heading="measured by", kind="text", value=of(lambda cost: cost.energy_method),
                 section=COST, short=None),
        Quantity(key="energy_scope", heading="scope", kind="text", value=of(lambda cost: cost.energy_scope),
                 section=COST, short=None),
        Quantity(key="energy_per_sample_j", heading="energy", unit="J/sample", section=COST,
                 value=of(lambda cost: cost.energy_per_sample_j), short=_line("energy per sample, J")),
        Quantity(
            key="energy_ratio",
            heading="energy ratio",
            value=of(lambda cost: cost.energy_ratio),
            write=lambda row: fixed(row.cost.energy_ratio, 3) if row.cost else NOTHING,
            section=COST,
            short=_line(
                f"  ratio [95{NBSP}%]",
                lambda row: _ratio(row.cost.energy_ratio, row.cost.energy_ratio_ci95) if row.cost else NOTHING,
            ),
        ),
        Quantity(key="energy_ratio_ci95", heading="95 % interval", kind="interval", section=COST, short=None,
                 value=of(lambda cost: cost.energy_ratio_ci95),
                 write=lambda row: between(row.cost.energy_ratio_ci95, 3) if row.cost else NOTHING),
        Quantity(key="energy_ratio_unit", heading="unit", kind="text", section=COST, short=None,
                 value=of(lambda cost: cost.energy_ratio_unit)),
        Quantity(key="co2_g", heading="CO2", unit="g", value=of(lambda cost: cost.co2_g), section=COST),
        Quantity(key="co2_source", heading="CO2 factor from", kind="text", value=of(lambda cost: cost.co2_source),
                 section=COST, short=None),
        Quantity(key="n_energy", heading="seeds with energy", value=of(lambda cost: cost.n), section=COST, short=None,
                 write=lambda row: figure(row.cost.n or None) if row.cost else NOTHING),
    ]  # fmt: skip


def load_quantities() -> list[Quantity[Row]]:
    """Return the quantities of load: power, utilization, share of the peak, throttling.

    All are of one device. Shares are 0 to 1 for programs, and percent for people.
    """
    return [*_power(), *_arithmetic()]


def _of_load(read: Callable[[Load], Value]) -> Callable[[Row], Value]:
    return lambda row: read(row.load) if row.load else None


def _power() -> list[Quantity[Row]]:
    of = _of_load
    return [
        Quantity(
            key="mean_power_w",
            heading="mean power",
            unit="W",
            value=of(lambda load: load.mean_power_w),
            section=LOAD,
            short=_line(
                "power of a GPU, W",
                lambda row: _at_most(row.load.mean_power_w, row.load.power_limit_w) if row.load else NOTHING,
            ),
        ),
        Quantity(key="power_limit_w", heading="of the limit", unit="%", section=LOAD, short=None,
                 value=of(lambda load: load.power_limit_w),
                 write=lambda row: _of_limit(row.load) if row.load else NOTHING),
        _percentage("throttled_power_share", "throttled, power", "throttled by the power cap",
                    lambda load: load.throttled_power_share),
        _percentage("throttled_thermal_share", "throttled, heat", "throttled by heat",
                    lambda load: load.throttled_thermal_share),
        Quantity(key="sm_mhz", heading="SM clock", unit="MHz", value=of(lambda load: load.sm_mhz), section=LOAD),
        _busy("util_percent", "GPU busy", lambda load: load.util_percent),
        _busy("tensor_percent", "tensor cores busy", lambda load: load.tensor_percent),
        Quantity(key="peak_memory_mb", heading="peak memory", unit="MiB", value=of(lambda load: load.peak_memory_mb),
                 section=LOAD),
    ]  # fmt: skip


def _arithmetic() -> list[Quantity[Row]]:
    of = _of_load
    return [
        Quantity(
            key="achieved_tflops",
            heading="achieved",
            unit="TFLOP/s",
            value=of(lambda load: load.achieved_tflops),
            section=LOAD,
            short=_line(
                "TFLOP/s of a device",
                lambda row: _at_most(row.load.achieved_tflops, row.load.peak_tflops) if row.load else NOTHING,
            ),
        ),
        Quantity(key="peak_tflops", heading="peak", unit="TFLOP/s", value=of(lambda load: load.peak_tflops),
                 section=LOAD, short=None),
        Quantity(key="peak_basis", heading="peak from", kind="text", value=of(lambda load: load.peak_basis),
                 section=LOAD, short=None),
        _percentage("mfu", "MFU", "  share of the peak (MFU)", lambda load: load.mfu),
        _percentage("data_share", "waiting for input", "waiting for data", lambda load: load.data_share),
        _percentage("communication_share", "communication", "communicating", lambda load: load.communication_share),
        Quantity(
            key="skipped_steps",
            heading="skipped steps",
            value=of(lambda load: load.skipped_steps),
            section=LOAD,
            short=_line(
                "steps skipped (loss scale)",
                lambda row: words(number(row.load.skipped_steps, 3)) if row.load else NOTHING,
            ),
        ),
        Quantity(key="limited_by", heading="limited by", kind="text", value=of(lambda load: load.limited_by),
                 section=LOAD),
    ]  # fmt: skip


def to_target_quantities() -> list[Quantity[Row]]:
    """Return the quantities of the way to the target: share that reached it, time, energy.

    Times are in seconds for programs. The restricted mean counts a run that never got there with the whole budget.
    """

    def of(read: Callable[[ToTarget], Value]) -> Callable[[Row], Value]:
        return lambda row: read(row.to_target) if row.to_target else None

    def to(write: Callable[[ToTarget], Entry]) -> Callable[[Row], Entry]:
        return lambda row: write(row.to_target) if row.to_target else NOTHING

    return [
        hidden("target", of(lambda race: race.target)),
        Quantity(
            key="target_reached",
            heading="reached it",
            value=of(lambda race: race.reached),
            write=to(lambda race: Entry(text=f"{race.reached} of {race.n}", order=race.reached / (race.n or 1))),
            section=TARGET,
            short=_line("reached the target", order=FIRST),
        ),
        hidden("target_n", of(lambda race: race.n)),
        Quantity(key="target_median_s", heading="median time", value=of(lambda race: race.median_s), section=TARGET,
                 write=to(lambda race: span(race.median_s)), short=_line("time to target (median)", order=FIRST)),
        Quantity(key="target_restricted_mean_s", heading="mean up to the budget", section=TARGET,
                 value=of(lambda race: race.restricted_mean_s), write=to(lambda race: span(race.restricted_mean_s)),
                 short=_line("  restricted mean", order=FIRST)),
        Quantity(key="target_budget_s", heading="budget", value=of(lambda race: race.budget_s), section=TARGET,
                 write=to(lambda race: span(race.budget_s)), short=None),
        Quantity(key="target_saved_s", heading="sooner by", unit="s", section=TARGET,
                 value=of(lambda race: race.saved_s),
                 write=to(lambda race: figure(race.saved_s)),
                 short=Short(heading=f"  sooner by, s [95{NBSP}%]", as_line=True, order=FIRST, write=to(_saved))),
        Quantity(key="target_saved_ci95", heading="95 % interval", kind="interval", section=TARGET, short=None,
                 value=of(lambda race: race.saved_ci95), write=to(lambda race: between(race.saved_ci95, 1))),
        Quantity(key="target_unit", heading="unit", kind="text", section=TARGET, short=None,
                 value=of(lambda race: race.unit)),
        Quantity(key="target_p_log_rank", heading="p (log-rank)", value=of(lambda race: race.p_log_rank),
                 section=TARGET, write=to(lambda race: words(p_value(race.p_log_rank) or None)),
                 short=_line("  p (log-rank)", order=FIRST)),
        Quantity(key="target_median_kj", heading="median energy", unit="kJ", value=of(lambda race: race.median_kj),
                 section=TARGET, short=_line("energy to target, kJ", order=FIRST)),
    ]  # fmt: skip


def _saved(race: ToTarget) -> Entry:
    if race.saved_s is None:
        return NOTHING
    return words(f"{to_decimals(race.saved_s, 1, signed=True)} {ends(race.saved_ci95, 1, signed=True)}".strip())


def hidden(key: str, value: Callable[[Row], Value]) -> Quantity[Row]:
    """Return a quantity for CSV and JSON alone: people find it above or below the table."""
    return Quantity(key=key, kind="text", value=value, short=None)


def _line(heading: str, write: Callable[[Row], Entry] | None = None, *, order: int = 0) -> Short[Row]:
    return Short(heading=heading, write=write, as_line=True, order=order)


def _percentage(key: str, heading: str, line: str, read: Callable[[Load], float | None]) -> Quantity[Row]:
    """Return the quantity of a share of 0 to 1, which people get in percent."""
    return Quantity(
        key=key,
        heading=heading,
        unit="%",
        value=_of_load(read),
        write=lambda row: share(read(row.load)) if row.load else NOTHING,
        section=LOAD,
        short=_line(line, lambda row: _percent(read(row.load), scale=100) if row.load else NOTHING),
    )


def _busy(key: str, heading: str, read: Callable[[Load], float | None]) -> Quantity[Row]:
    """Return the quantity of a measurement that is in percent already, unlike a share."""
    return Quantity(
        key=key,
        heading=heading,
        unit="%",
        value=_of_load(read),
        write=lambda row: figure(read(row.load), 3) if row.load else NOTHING,
        section=LOAD,
        short=_line(heading, lambda row: _percent(read(row.load), scale=1) if row.load else NOTHING),
    )


def _at_most(value: float | None, most: float | None) -> Entry:
    if value is None:
        return NOTHING
    return words(number(value) if most is None else f"{number(value)} of {number(most)}")


def _of_limit(load: Load) -> Entry:
    if load.mean_power_w is None or not load.power_limit_w:
        return NOTHING
    return share(load.mean_power_w / load.power_limit_w)


def _percent(value: float | None, *, scale: float) -> Entry:
    return NOTHING if value is None else words(f"{value * scale:.1f} %")


def _ratio(value: float | None, interval: Interval | None) -> Entry:
    return NOTHING if value is None else words(f"{value:.3f} {ends(interval, 3)}".strip())
