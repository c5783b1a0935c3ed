"""The conclusions of `hpcml scaling` for one cell, in plain sentences: only what 95 % intervals show is claimed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcml.analysis.compare.result import Interval
from hpcml.analysis.nodes import MeasuredRatio, seed_means
from hpcml.analysis.scaling.points import Costs, faster
from hpcml.analysis.scaling.result import Kind, ScalingPoint, SerialShare
from hpcml.analysis.stats import ENOUGH_SEEDS
from hpcml.units import one_or_many, spell_percent

_MISFIT, _ERRORS = 0.05, 3.0  # a law that leaves a time by more, and by more than so many standard errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The gain below which more devices do not help, and the efficiency from which they pay; both are shares."""

    least_gain: float
    least_efficiency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured of one cell."""

    kind: Kind
    over: str
    reference: int | None
    points: Sequence[ScalingPoint]
    costs_s: Costs
    fit: SerialShare | None


def no_help_beyond(costs_s: Costs, least_gain: float) -> int | None:
    """Return the smallest number of devices that no larger one beats by *least_gain* or more; None: not shown.

    The upper end of the 95 % interval of every gain must lie below 1 + *least_gain*. All must
    hold at once (an intersection-union test), so no adjustment for their number is needed.
    """
    numbers = sorted(costs_s)
    for few in numbers[:-1]:
        gains = [faster(costs_s, few, many) for many in numbers if many > few]
        if all(gain is not None and gain.ci95 is not None and gain.ci95.high < 1 + least_gain for gain in gains):
            return few
    return None


def sentences(cell: Evidence, thresholds: Thresholds) -> list[str]:
    """Return the conclusions of one cell, in the order in which they are shown."""
    lines = _failures(cell)
    if len(cell.costs_s) < 2:
        source = "which the metric step_time_s gives, the seconds of each step"
        return [*lines, f"no two numbers of {cell.over} have a speed, {source}: nothing is shown"]
    lines += _fastest(cell)
    lines.append(_helping(cell, thresholds.least_gain))
    lines += _paying(cell, thresholds.least_efficiency)
    if cell.fit is not None:
        lines.append(_law(cell.fit, cell.over))
    if (n := min(len(seed_means(values)) for values in cell.costs_s.values())) < ENOUGH_SEEDS:
        lines.append("one seed somewhere: nothing is shown" if n < 2 else f"{n} seeds: all of this is indicative only")
    return lines


def pays(point: ScalingPoint, least_efficiency: float) -> bool:
    """Whether *point* is shown to be faster than the reference, at an efficiency of *least_efficiency* or more.

    Both low ends of the 95 % intervals decide; without an interval it is not shown.
    """
    speedup, efficiency = point.speedup_ci95, point.efficiency_ci95
    return speedup is not None and efficiency is not None and speedup.low > 1 and efficiency.low >= least_efficiency


def percent(share: float | None, interval: Interval | None) -> str:
    """Return a share with its interval, in percent; "" for None.

    >>> percent(0.5, Interval(low=0.4, high=0.6, confidence=0.95))
    '50 % [40, 60]'
    """
    if share is None:
        return ""
    ends = "" if interval is None else f" [{interval.low * 100:.3g}, {interval.high * 100:.3g}]"
    return f"{share * 100:.3g} %{ends}"


def times(ratio: float | None, interval: Interval | None) -> str:
    """Return a ratio with its interval; "" for None.

    >>> times(1.5, Interval(low=1.2, high=1.8, confidence=0.95))
    '1.5 [1.2, 1.8]'
    """
    if ratio is None:
        return ""
    return f"{ratio:.3g}" + ("" if interval is None else f" [{interval.low:.3g}, {interval.high:.3g}]")


def _failures(cell: Evidence) -> list[str]:
    lost = [point for point in cell.points if point.n_failed and not point.n]
    return [f"no run on {p.devices} {one_or_many(p.devices, cell.over)} came through: {p.flags[0]}" for p in lost]


def _fastest(cell: Evidence) -> list[str]:
    known = [(point.speedup, point) for point in cell.points if point.speedup is not None]
    if not known:
        return []
    _, best = max(known, key=lambda pair: pair[0])
    what = "as fast as" if cell.kind == "strong" else "as many samples a second as"
    fast = (
        f"{best.devices} {one_or_many(best.devices, cell.over)}: {times(best.speedup, best.speedup_ci95)} times {what}"
    )
    return [f"{fast} {cell.reference}, efficiency {percent(best.efficiency, best.efficiency_ci95)}"]


def _helping(cell: Evidence, least_gain: float) -> str:
    over, numbers = cell.over, sorted(cell.costs_s)
    beyond = no_help_beyond(cell.costs_s, least_gain)
    if beyond is not None:
        larger = [(many, faster(cell.costs_s, beyond, many)) for many in numbers if many > beyond]
        gains = "; ".join(f"{many}: {_gain(ratio)}" for many, ratio in larger if ratio is not None)
        limit = f"{beyond} {one_or_many(beyond, over)}"
        return f"more {over} do not help beyond {limit}: gains shown to be below {least_gain * 100:.3g} % ({gains})"
    many = numbers[-1]
    ratios = {few: ratio for few in numbers[:-1] if (ratio := faster(cell.costs_s, few, many)) is not None}
    few = min(ratios, key=lambda at: ratios[at].value)  # the fastest of the smaller numbers
    ratio = ratios[few]
    what = f"{many} {one_or_many(many, over)} against {few}, the fastest of fewer: {_gain(ratio)}"
    # Faster than each smaller number at once: an intersection-union test, which needs no adjustment.
    if all(each.ci95 is not None and each.ci95.low > 1 + least_gain for each in ratios.values()):
        return f"more {over} help up to {many}, the most that was tried: {what}"
    if ratio.ci95 is not None and ratio.ci95.high < 1:
        return f"{many} {one_or_many(many, over)} are slower than {few}: {_gain(ratio)}"
    return f"that more {over} do not help is not shown, nor that they do: {what}"


def _paying(cell: Evidence, least_efficiency: float) -> list[str]:
    more = [point for point in cell.points if cell.reference is not None and point.devices > cell.reference]
    if not any(point.n for point in more):
        return []
    paying = [point.devices for point in more if pays(point, least_efficiency)]
    what = f"efficiency shown to be {least_efficiency * 100:.3g} % or more"
    if not paying:
        return [f"more {cell.over} are not shown to pay ({what})"]
    return [f"{', '.join(map(str, paying))} {one_or_many(paying[-1], cell.over)} pay ({what})"]


def _law(fit: SerialShare, over: str) -> str:
    if fit.misfit > max(_MISFIT, _ERRORS * fit.noise):
        return f"{fit.law}'s law does not describe these times: it is off by up to {spell_percent(fit.misfit)}"
    low, high = (fit.share, fit.share) if fit.ci95 is None else (fit.ci95.low, fit.ci95.high)
    if low > 1 or high < 0:
        why = f"more {over} take longer than fewer" if low > 1 else f"they gain more than {over} were added"
        return f"{fit.law}'s law does not describe these times: {why} (a share of {percent(fit.share, fit.ci95)})"
    share = f"{fit.law}: {percent(fit.share, fit.ci95)} of the work does not divide"
    if fit.ci95 is None:
        return f"{share}, if the law holds: two numbers of devices, or one seed, cannot tell"
    if fit.most_speedup is None or fit.ci95.low <= 0:
        return share
    ends = Interval(low=1 / fit.ci95.high, high=1 / fit.ci95.low, confidence=fit.ci95.confidence)
    return f"{share}: {times(fit.most_speedup, ends)} times as fast at most, however many"


def _gain(ratio: MeasuredRatio) -> str:
    if ratio.ci95 is None:
        return f"{(ratio.value - 1) * 100:+.3g} %, without an interval"
    return f"{(ratio.value - 1) * 100:+.3g} % [{(ratio.ci95.low - 1) * 100:+.3g}, {(ratio.ci95.high - 1) * 100:+.3g}]"
