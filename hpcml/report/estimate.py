"""`hpcml plan --time`: how long a sweep will take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcml.analysis.planning import Estimate, Forecast
from hpcml.codec import encode
from hpcml.report.asked_used import expected_line
from hpcml.report.document import Column, Document, Listing, Remarks, Section
from hpcml.report.runs import short_uid
from hpcml.report.text import duration, number
from hpcml.walltime import spell_walltime

_NAMED = 3  # runs, in a line
_J_PER_KWH = 3.6e6
_HEADINGS = ("configuration", "runs", "each", "expected", "GPU-hours", "by")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Runs that differ in their seed only and have the same forecast."""

    name: str
    forecasts: Sequence[Forecast]


def estimate_document(estimate: Estimate) -> Document:
    """Return the forecasts, sums and remarks; runs that differ in their seed only share a line.

    JSON and CSV have each wanted run, with the settings that the user typed. Times are in seconds, energy in joules;
    null where no recorded run allows a forecast. `log_sd` is the standard deviation of the logarithm of durations of
    runs that are alike, `df` its degrees of freedom.
    """
    forecasts = [
        {**_told(each), "asked": [encode(one) for one in each.asked], "remarks": list(each.remarks)}
        for each in estimate.forecasts
    ]
    longest = None if estimate.longest is None else estimate.longest.wanted.name
    rest = {"total": encode(estimate.total), "longest": longest, "log_sd": estimate.log_sd, "df": estimate.df}
    lines = [_told(each) for each in estimate.forecasts]
    columns = [_column(index, name) for index, name in enumerate(_HEADINGS)]
    table = Listing(columns=columns, rows=_rows(estimate))
    return Document(
        sections=[Section(parts=[table, Remarks(lines=list(remarks(estimate)))])],
        record={"forecasts": forecasts, **rest},
        data=[Listing(columns=[_field(name) for name in (lines[0] if lines else ())], rows=lines)],
    )


def _column(index: int, heading: str) -> Column[list[object]]:
    return Column("", heading, lambda row: row[index])


def _field(name: str) -> Column[dict[str, object]]:
    return Column(name, None, lambda line: line[name])


def remarks(estimate: Estimate) -> Iterator[str]:
    """Yield the sums, the walltime to ask for, and the doubts, one line each.

    The walltime is that of the longest run: to the end of the interval in which its duration lies, where there is one.
    """
    total, longest = estimate.total, estimate.longest
    if total.known:
        if total.known > 1:
            of = f"the {total.known} runs with a record" if total.unknown else f"all {total.known} runs"
            yield f"{of}, one after the other: {_span(total.wall_s, total.low_s, total.high_s)}"
        if total.gpu_hours:
            ends = f" ({number(total.gpu_hours_low, 3)} to {number(total.gpu_hours_high, 3)})"
            nodes = f"; whole nodes are charged: {number(total.node_hours, 3)} node-hours" if total.node_hours else ""
            yield f"GPU-hours: {number(total.gpu_hours, 3)}{ends}{nodes}"
        if total.energy_j is not None:
            co2 = f", {number(total.co2_g, 3)} g of CO2" if total.co2_g is not None else ""
            yield f"energy of the GPUs: {number(total.energy_j / _J_PER_KWH, 3)} kWh{co2}"
    if longest is not None and longest.suggested_s is not None:
        which = f" ({longest.wanted.name})" if len(estimate.forecasts) > 1 else ""
        is_bounded = longest.interval is not None or longest.range_s is not None
        yield (
            f"the longest run{which}: {'up to' if is_bounded else 'about'} {duration(longest.high_s)}; "
            f"resources.walltime={spell_walltime(longest.suggested_s)} would do"
        )
    if estimate.log_sd is not None and estimate.df > 1 and any(each.interval for each in estimate.forecasts):
        yield (
            f"'expected' holds 95 % of runs, by durations of runs alike that spread by {100 * estimate.log_sd:.1f} % "
            f"({estimate.df} degrees of freedom); without the time in the queue"
        )
    for group in _groups(estimate):
        first = group.forecasts[0]
        yield from (f"{group.name}: {expected_line(each)}" for each in first.asked)
        yield from (f"{group.name}: {remark}" for remark in first.remarks)
        if first.basis == "near":
            yield f"{group.name}: never recorded; a range from runs that differ in {', '.join(first.differing)}"
    if total.unknown:
        what = "1 run" if total.unknown == 1 else f"{total.unknown} runs"
        yield f"{what} without a record of such work (model, data, cluster, device, native or emulated): run one first"


def _told(forecast: Forecast) -> dict[str, object]:
    wanted = forecast.wanted
    charged = wanted.charged_gpus
    return {
        "configuration": wanted.name,
        "seed": wanted.seed,
        "basis": forecast.basis,
        "runs": list(forecast.uids),
        "differing": list(forecast.differing),
        "wall_s": forecast.wall_s,
        "low_s": forecast.low_s,
        "high_s": forecast.high_s,
        "confidence": None if forecast.interval is None else forecast.interval.confidence,
        "gpu_hours": None if forecast.wall_s is None else forecast.wall_s * charged / 3600,
        "energy_j": forecast.energy_j,
        "walltime_s": wanted.walltime_s,
        "suggested_walltime_s": forecast.suggested_s,
    }


def _groups(estimate: Estimate) -> list[_Group]:
    """Return the forecasts by configuration, seeds aside, in the order of the first of each."""
    found: dict[tuple[object, ...], tuple[str, list[Forecast]]] = {}
    for each in estimate.forecasts:
        name = " ".join(word for word in each.wanted.name.split(" ") if not word.startswith("seed=")) or "the defaults"
        key = (name, each.basis, each.wall_s, each.low_s, each.high_s, tuple(each.uids), each.wanted.charged_gpus)
        found.setdefault(key, (name, []))[1].append(each)
    return [_Group(name=name, forecasts=forecasts) for name, forecasts in found.values()]


def _rows(estimate: Estimate) -> list[list[object]]:
    rows: list[list[object]] = []
    for group in _groups(estimate):
        first, count = group.forecasts[0], len(group.forecasts)
        if first.wall_s is None:
            rows.append([group.name, count, "no record", "", "", ""])
            continue
        is_range = first.range_s is not None or first.interval is not None
        expected = f"{duration(first.low_s)} to {duration(first.high_s)}" if is_range else ""
        hours = number(count * first.wall_s * first.wanted.charged_gpus / 3600, 3) if first.wanted.gpus else ""
        each = "" if first.range_s is not None else duration(first.wall_s)
        rows.append([group.name, count, each, expected, hours, _basis(first)])
    return rows


def _basis(forecast: Forecast) -> str:
    named = ", ".join(short_uid(uid) for uid in forecast.uids[:_NAMED])
    more = f" and {len(forecast.uids) - _NAMED} more" if len(forecast.uids) > _NAMED else ""
    return f"{named}{more}{' (not alike)' if forecast.basis == 'near' else ''}"


def _span(wall_s: float, low_s: float, high_s: float) -> str:
    ends = f" ({duration(low_s)} to {duration(high_s)}, if all are off the same way)" if low_s != high_s else ""
    return f"{duration(wall_s)}{ends}"
