"""Telemetry for people: usage and work of one run in words (`hpcml show`), timelines as charts (`hpcml report`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from hpcml.model.query_results import TelemetrySpan, Timeline
from hpcml.model.records import Point, RunRecord, Usage, Work
from hpcml.report.charts import Styles, decimate, drawn_text, plot, titled
from hpcml.report.document import Column, Figure, Listing, Paragraph, Section, percent
from hpcml.report.runs import short_uid
from hpcml.report.text import number
from hpcml.report.text_charts import sparkline

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

    from hpcml.report.contents import Publication

_SCOPES = {
    "board": "of whole boards, of which the run had instances",
    "shared": "of GPUs that may not have been the run's alone",
}
_WIDTH = 32  # characters of a timeline
_SHOWN = 16  # timelines of GPUs


def cores_busy(timelines: Sequence[Timeline]) -> float | None:
    """Return how many cores the run kept busy, over all its nodes; None where it was not measured on each of them.

    Of several attempts the longest counts.
    """
    hosts = [line for line in timelines if line.device == _HOST]
    attempts = {line.attempt: 0.0 for line in hosts}
    for line in hosts:
        attempts[line.attempt] += sum(span.covered_s for span in line.spans)
    longest = max(attempts, key=lambda attempt: attempts[attempt], default=None)
    busy = [line.cores_busy for line in hosts if line.attempt == longest]
    known = [cores for cores in busy if cores is not None]
    return sum(known) if known and len(known) == len(busy) else None


def usage_words(usage: Usage, cores: float | None = None) -> Iterator[tuple[str, object]]:
    """Yield label and value of each measurement; None where it was not measured.

    *cores* is what `cores_busy` returned. Energy and power are those of GPU boards; shares of time and utilization are
    in percent.
    """
    yield "GPUs", _gpus(usage)
    yield "energy", _energy(usage)
    yield "energy, remarks", usage.energy_reason
    co2 = None if usage.co2_g is None else f"{number(usage.co2_g)} g"
    yield "CO2", _joined(co2, usage.co2_source and f"({usage.co2_source})", by="  ")
    power = (("mean", usage.mean_power_w), ("highest", usage.max_power_w), ("limit", usage.power_limit_w))
    yield "power of a GPU", _joined(*(_with(name, value, "W") for name, value in power))
    throttled = (("power cap", usage.throttled_power_share), ("heat", usage.throttled_thermal_share))
    shares = [_with(name, None if share is None else 100 * share, "%") for name, share in throttled]
    yield "clocks lowered", _joined(*shares, "of the time" if any(shares) else None)
    yield "SM clock", _with("median", usage.sm_mhz, "MHz")
    yield "utilisation", _joined(_with("", usage.util_percent, "%"), _with("memory", usage.memory_util_percent, "%"))
    yield (
        "active",
        _joined(
            _with("SMs", usage.sm_active_percent, "%"),
            _with("tensor cores", usage.tensor_percent, "%"),
            _with("memory bandwidth", usage.dram_percent, "%"),
        ),
    )
    yield "GPU memory", _with("at most", usage.max_memory_mb, "MiB")
    yield "temperature", _with("at most", usage.max_temperature_c, "degrees Celsius")
    yield "CPU time", _joined(_with("", usage.cpu_s, "s"), _with("", cores, "cores busy on average"))
    yield "memory", _with("at most", usage.max_host_memory_mb, "MiB on a node")
    yield "Xid errors", usage.xids
    yield "incomplete", usage.incomplete


def work_words(work: Work) -> Iterator[tuple[str, object]]:
    """Yield label and value of the work of one optimiser step over all devices, as the program counted it.

    None where the program did not count it. FLOPs are those of the model, forward and backward.
    """
    yield "devices", work.devices
    flops = None if work.model_flops is None else f"{number(work.model_flops)} forward and backward"
    yield "FLOPs of a step", flops
    yield "FLOPs, remarks", work.flops_doubt
    yield "samples of a step", number(work.samples) or None
    yield "tokens of a step", number(work.tokens) or None
    allocated, reserved = work.peak_allocated_mb, work.peak_reserved_mb
    words = (_with("allocated", allocated, "MiB"), _with("reserved", reserved, "MiB"))
    yield "peak memory", _joined(*words, "on the fullest device" if any(words) else None)


def timelines_listing(timelines: Sequence[Timeline]) -> Listing[Timeline] | None:
    """Return power and utilization of each GPU as small curves over time; None where there are too few spans.

    All curves have the same axes: time from the first to the last sample, power from 0 to the highest, utilization to
    100 %. At most `_SHOWN` GPUs are drawn; a note counts the others.
    """
    gpus = [line for line in timelines if line.device != _HOST and len(line.spans) > 1]
    if not gpus:
        return None
    spans = [span for line in gpus for span in line.spans]
    ends = (min(span.t_s for span in spans), max(span.end_s for span in spans))
    most_w = max((span.mean_power_w for span in spans if span.mean_power_w is not None), default=0.0)

    def power(line: Timeline) -> str:
        return _curve(line.spans, [span.mean_power_w for span in line.spans], ends, most_w)

    def busy(line: Timeline) -> str:
        return _curve(line.spans, [span.util_percent for span in line.spans], ends, 100.0)

    columns: list[Column[Timeline]] = [
        Column("", "GPU", lambda line: f"{line.device} of {line.host}, attempt {line.attempt}"),
        Column("", f"power, to {number(most_w, 3)} W", power),
        Column("", "utilisation, to 100 %", busy),
    ]
    more = len(gpus) - _SHOWN
    return Listing(columns=columns, rows=gpus[:_SHOWN], notes=[f"... and {more} more"] if more > 0 else [])


_HARDLY = 0.05  # of a character's time: a span that covers no more of it is not drawn there


def _curve(
    spans: Sequence[TelemetrySpan], values: Sequence[float | None], ends: tuple[float, float], most: float
) -> str:
    """Return a character for each ten seconds between *ends*, or for longer where they are many: the mean of its spans.

    *values* are those of *spans*; None is drawn as a blank.
    """
    begin_s, end_s = ends
    width = max(1, min(_WIDTH, round((end_s - begin_s) / 10)))
    each_s = (end_s - begin_s) / width
    points = []
    for span, value in zip(spans, values, strict=True):
        if value is not None:
            first = math.floor((span.t_s - begin_s) / each_s + _HARDLY)
            behind = math.ceil((span.end_s - begin_s) / each_s - _HARDLY)
            points += [Point(at, span.t_s, value) for at in range(first, min(behind, width))]
    return sparkline(points, width=width, steps=(0, width - 1), values=(0.0, most))


def _gpus(usage: Usage) -> str | None:
    if not usage.gpus:
        return None
    hours = None if usage.gpu_s is None else f"{number(usage.gpu_s / 3600)} GPU hours"
    return _joined(str(usage.gpus), hours)


def _energy(usage: Usage) -> str | None:
    if usage.energy_j is None:
        return "not known" if usage.gpus else None
    uncertain = usage.energy_uncertainty_j
    by = None if usage.energy_method is None else f"by {usage.energy_method}"
    return _joined(
        f"{number(usage.energy_j / 1e3)} kJ",
        None if uncertain is None else f"+- {number(uncertain / 1e3, 2)} kJ of sampling",
        by,
        _SCOPES.get(usage.energy_scope or ""),
        "the two ways disagree" if usage.energy_disagrees else None,
    )


def _with(name: str, value: float | None, unit: str) -> str | None:
    return None if value is None else f"{name} {number(value, 3 if unit == '%' else 4)} {unit}".lstrip()


def _joined(*words: str | None, by: str = ", ") -> str | None:
    return by.join(word for word in words if word) or None


RUNS = 12  # that are drawn: more lines than that nobody tells apart
_POINTS = 400  # of one line
_HOST = "host"
Line = tuple[str, str, Timeline]  # uid, level


def telemetry_section(publication: Publication, styles: Styles) -> Section | None:
    """Return the timelines of at most `RUNS` runs, taken from the levels in turn; None where there are none.

    *styles* has the style of each level. There is a chart for each measurement that any device gave, and a table of
    all.
    """
    known = [
        [(uid, level.name) for uid in level.uids if publication.timelines.get(uid)]
        for group in publication.groups
        for level in group.levels
    ]
    turns = [one for one in chain.from_iterable(zip_longest(*known)) if one is not None]
    if not turns:
        return None
    lines = [(uid, level, line) for uid, level in turns[:RUNS] for line in publication.timelines[uid]]
    charts = [_chart(title, unit, read, lines, styles) for title, unit, read in _DRAWN]
    chosen = f", {RUNS} of them drawn, taken from the levels in turn" if len(turns) > RUNS else ""
    text = f"{len(turns)} runs were sampled{chosen}. Values are those of about ten seconds each, counted from the "
    text += "start of the run; what a device does not tell is not drawn."
    listing = _usage(publication, turns)
    return Section(heading="Telemetry", parts=[Paragraph(text=text), *(c for c in charts if c is not None), listing])


_DRAWN: Sequence[tuple[str, str, Callable[[TelemetrySpan], float | None]]] = (
    ("GPU power", "W", lambda one: one.mean_power_w),
    ("GPU busy", "%", lambda one: one.util_percent),
    ("Tensor cores busy", "%", lambda one: one.tensor_percent),
    ("Memory in use", "MiB", lambda one: one.max_memory_mb),
    ("SM clock", "MHz", lambda one: one.sm_mhz),
    ("Temperature", "°C", lambda one: one.max_temperature_c),
    ("CPU cores busy", "cores", lambda one: one.cores_busy),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """One measurement of one device of a run: the spans that have it, each with its value."""

    uid: str
    level: str
    line: Timeline
    spans: Sequence[tuple[TelemetrySpan, float]]

    @property
    def values(self) -> list[float]:
        return [value for _, value in self.spans]

    @property
    def mean(self) -> float:
        """The mean over the time that the spans cover."""
        lasting_s = sum(span.covered_s for span, _ in self.spans)
        return sum(value * span.covered_s for span, value in self.spans) / lasting_s if lasting_s else self.values[0]


def _chart(
    title: str, unit: str, read: Callable[[TelemetrySpan], float | None], lines: Sequence[Line], styles: Styles
) -> Figure | None:
    """Return the chart of one measurement, or None where no device gave it."""
    found = [
        _Measured(uid=uid, level=level, line=line, spans=spans)
        for uid, level, line in lines
        if (spans := [(span, value) for span in line.spans if (value := read(span)) is not None])
    ]
    if not found:
        return None
    columns: list[Column[_Measured]] = [
        Column("run", "run", lambda one: short_uid(one.uid)),
        Column("level", "level", lambda one: one.level),
        Column("host", "host", lambda one: one.line.host),
        Column("device", "device", lambda one: one.line.device),
        Column("smallest", "smallest", lambda one: min(one.values), unit=unit),
        Column("mean", "mean", lambda one: one.mean, unit=unit),
        Column("largest", "largest", lambda one: max(one.values), unit=unit),
    ]
    return Figure(
        title=title,
        described=f"{title} in {unit} over time, a line for each device of a run.",
        draw=partial(_plot, f"{title} ({unit})", found, styles),
        numbers=Listing(caption=f"{title} in {unit}", columns=columns, rows=found),
    )


def _plot(title: str, found: Sequence[_Measured], styles: Styles) -> Plot:
    """Return lines with a tread for each span: a value is that of the whole span, and the line ends where it ends."""
    drawn = plot(
        x=titled("seconds since the start", rangemode="tozero"),
        y=titled(title, rangemode="tozero"),
        height_px=280,
        showlegend=True,
    )
    in_legend = set[str]()
    for one in found:
        points = [Point(step=index, t_s=span.t_s, value=value) for index, (span, value) in enumerate(one.spans)]
        kept = [one.spans[point.step] for point in decimate(points, _POINTS)]
        style = styles[one.level]
        name = f"{one.uid} {one.level}, {one.line.host} {one.line.device}, attempt {one.line.attempt}"
        drawn.add_scatter(
            mode="lines" if any(span.covered_s for span, _ in kept) else "markers",
            x=[at_s for span, _ in kept for at_s in (span.t_s, span.end_s)],
            y=[value for _, value in kept for _ in range(2)],
            line={"width": 1.5, "color": style.faint(0.8), "dash": style.dash},
            marker={"color": style.colour, "symbol": style.marker},
            hovertemplate=f"%{{x:.5g}} s: %{{y:.4g}}<br>{drawn_text(name)}<extra></extra>",
            name=drawn_text(one.level),
            legendgroup=drawn_text(one.level),
            showlegend=one.level not in in_legend,
        )
        in_legend.add(one.level)
    return drawn


def _usage(publication: Publication, turns: Sequence[tuple[str, str]]) -> Listing[tuple[RunRecord, str, Usage]]:
    """Return what each sampled run used: the numbers that `hpcml show` prints of it."""
    runs = {run.uid: run for run in publication.runs}
    columns: list[Column[tuple[RunRecord, str, Usage]]] = [
        Column("run", "run", lambda row: short_uid(row[0].uid)),
        Column("level", "level", lambda row: row[1]),
        Column("seed", "seed", lambda row: row[0].seed),
        Column("gpus", "GPUs", lambda row: row[2].gpus or None),
        Column(
            "energy_j", "energy", lambda row: None if row[2].energy_j is None else row[2].energy_j / 1000, unit="kJ"
        ),
        Column("mean_power_w", "mean power", lambda row: row[2].mean_power_w, unit="W"),
        Column("max_memory_mb", "GPU memory", lambda row: row[2].max_memory_mb, unit="MiB"),
        Column("max_temperature_c", "hottest", lambda row: row[2].max_temperature_c, unit="°C"),
        Column("throttled_power", "throttled, power", lambda row: percent(row[2].throttled_power_share), unit="%"),
        Column("throttled_heat", "throttled, heat", lambda row: percent(row[2].throttled_thermal_share), unit="%"),
        Column("cpu_s", "CPU time", lambda row: row[2].cpu_s, unit="s"),
        Column("cores_busy", "cores busy", lambda row: cores_busy(publication.timelines[row[0].uid])),
        Column("max_host_memory_mb", "memory", lambda row: row[2].max_host_memory_mb, unit="MiB"),
    ]
    rows = [(runs[uid], level, runs[uid].usage or Usage()) for uid, level in sorted(turns)]
    return Listing(caption="What was sampled, in all", columns=columns, rows=rows)
