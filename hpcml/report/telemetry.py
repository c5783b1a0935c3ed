"""Telemetry for people: usage and work of one run in words (`hpcml show`), timelines as charts (`hpcml report`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from rich.table import Table as RichTable
from rich.text import Text

from hpcml.model.query_results import TelemetrySpan, Timeline
from hpcml.model.records import Point, Usage, Work
from hpcml.report.charts import decimate, drawn_text, titled
from hpcml.report.document import (
    Chart,
    Entry,
    LevelStyle,
    Paragraph,
    Section,
    Table,
    TableColumn,
    Trace,
    View,
    figure,
    number_column,
    share,
    text_column,
    without_empty_columns,
    words,
)
from hpcml.report.runs import short_uid
from hpcml.report.text import number, safe
from hpcml.report.text_charts import sparkline

if TYPE_CHECKING:
    from hpcml.model.publication import Publication

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


def timelines_table(timelines: Sequence[Timeline]) -> RichTable | None:
    """Return power and utilization of each GPU as small curves over time; None where there are too few spans.

    All curves have the same axes: time from the first to the last sample, power from 0 to the highest, utilization to
    100 %. At most `_SHOWN` GPUs are drawn; the last line counts the others.
    """
    gpus = [line for line in timelines if line.device != "host" and len(line.spans) > 1]
    if not gpus:
        return None
    spans = [span for line in gpus for span in line.spans]
    ends = (min(span.t_s for span in spans), max(span.end_s for span in spans))
    most_w = max((span.mean_power_w for span in spans if span.mean_power_w is not None), default=0.0)
    table = RichTable(box=None, pad_edge=False, show_edge=False)
    for heading in ("GPU", f"power, to {number(most_w, 3)} W", "utilisation, to 100 %"):
        table.add_column(heading, no_wrap=True)
    for line in gpus[:_SHOWN]:
        power = _curve(line.spans, [span.mean_power_w for span in line.spans], ends, most_w)
        busy = _curve(line.spans, [span.util_percent for span in line.spans], ends, 100.0)
        name = f"{line.device} of {line.host}, attempt {line.attempt}"
        table.add_row(*(Text(safe(word)) for word in (name, power, busy)))
    if len(gpus) > _SHOWN:
        table.add_row(Text(f"... and {len(gpus) - _SHOWN} more"), Text(""), Text(""))
    return table


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
_VIEW = (View(key="time", label="time", title="seconds since the start"),)

Line = tuple[str, str, Timeline]  # uid, level


def telemetry_section(publication: Publication, styles: Mapping[str, LevelStyle]) -> Section | None:
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
    table = _table(publication, turns)
    return Section(heading="Telemetry", parts=[Paragraph(text=text), *(c for c in charts if c is not None), table])


_DRAWN: Sequence[tuple[str, str, Callable[[TelemetrySpan], float | None]]] = (
    ("GPU power", "W", lambda one: one.mean_power_w),
    ("GPU busy", "%", lambda one: one.util_percent),
    ("Tensor cores busy", "%", lambda one: one.tensor_percent),
    ("Memory in use", "MiB", lambda one: one.max_memory_mb),
    ("SM clock", "MHz", lambda one: one.sm_mhz),
    ("Temperature", "°C", lambda one: one.max_temperature_c),
    ("CPU cores busy", "cores", lambda one: one.cores_busy),
)


def _chart(
    title: str,
    unit: str,
    read: Callable[[TelemetrySpan], float | None],
    lines: Sequence[Line],
    styles: Mapping[str, LevelStyle],
) -> Chart | None:
    """Return the chart of one measurement, or None where no device gave it."""
    traces, rows, levels = [], [], []
    for uid, level, line in lines:
        known = [(one, value) for one in line.spans if (value := read(one)) is not None]
        if not known:
            continue
        name = f"{uid} {level}, {line.host} {line.device}, attempt {line.attempt}"
        traces.append(_trace(level, name, known, styles[level]))
        values = [value for _, value in known]
        lasting_s = sum(one.covered_s for one, _ in known)
        mean = sum(value * one.covered_s for one, value in known) / lasting_s if lasting_s else values[0]
        levels.append(level)
        rows.append([*_who(uid, level, line), figure(min(values)), figure(mean), figure(max(values))])
    if not traces:
        return None
    columns = [*_WHO, *(number_column(word, unit) for word in ("smallest", "mean", "largest"))]
    return Chart(
        title=title,
        described=f"{title} in {unit} over time, a line for each device of a run.",
        traces=traces,
        views=_VIEW,
        layout={
            "xaxis": titled(_VIEW[0].title, rangemode="tozero"),
            "yaxis": titled(f"{title} ({unit})", rangemode="tozero"),
        },
        numbers=Table(caption=f"{title} in {unit}", columns=columns, rows=rows),
        levels=list(dict.fromkeys(levels)),
        height_px=280,
        is_wide=False,
    )


def _trace(level: str, name: str, known: Sequence[tuple[TelemetrySpan, float]], style: LevelStyle) -> Trace:
    """Return a line with a tread for each span: a value is that of the whole span, and the line ends where it ends."""
    points = [Point(step=at, t_s=one.t_s, value=value) for at, (one, value) in enumerate(known)]
    kept = [known[point.step] for point in decimate(points, _POINTS)]
    is_line = any(one.covered_s for one, _ in kept)
    return Trace(
        level=level,
        drawn={
            "type": "scatter",
            "mode": "lines" if is_line else "markers",
            "y": [value for _, value in kept for _ in range(2)],
            "line": {"width": 1.5, "color": style.faint(0.8), "dash": style.dash},
            "marker": {"color": style.colour, "symbol": style.marker},
            "hovertemplate": f"%{{x:.5g}} s: %{{y:.4g}}<br>{drawn_text(name)}",
            "name": "",
        },
        xs={"time": [at_s for one, _ in kept for at_s in (one.t_s, one.end_s)]},
    )


_WHO: Sequence[TableColumn] = tuple(text_column(word) for word in ("run", "level", "host", "device"))


def _who(uid: str, level: str, line: Timeline) -> list[Entry]:
    return [words(short_uid(uid)), words(level), words(line.host), words(line.device)]


def _table(publication: Publication, turns: Sequence[tuple[str, str]]) -> Table:
    """Return what each sampled run used: the numbers that `hpcml show` prints of it."""
    runs = {run.uid: run for run in publication.runs}
    columns = [
        text_column("run"),
        text_column("level"),
        number_column("seed"),
        number_column("GPUs"),
        number_column("energy", "kJ"),
        number_column("mean power", "W"),
        number_column("GPU memory", "MiB"),
        number_column("hottest", "°C"),
        number_column("throttled, power", "%"),
        number_column("throttled, heat", "%"),
        number_column("CPU time", "s"),
        number_column("cores busy"),
        number_column("memory", "MiB"),
    ]
    listed = sorted(turns, key=lambda turn: turn[0])
    used = [(runs[uid], level, runs[uid].usage or Usage()) for uid, level in listed]
    rows = [
        [
            words(short_uid(run.uid)),
            words(level),
            figure(run.seed),
            figure(usage.gpus or None),
            figure(None if usage.energy_j is None else usage.energy_j / 1000),
            figure(usage.mean_power_w),
            figure(usage.max_memory_mb),
            figure(usage.max_temperature_c),
            share(usage.throttled_power_share),
            share(usage.throttled_thermal_share),
            figure(usage.cpu_s),
            figure(cores_busy(publication.timelines[run.uid])),
            figure(usage.max_host_memory_mb),
        ]
        for run, level, usage in used
    ]
    return without_empty_columns(Table(caption="What was sampled, in all", columns=columns, rows=rows))
