"""What GPUs and nodes did over time, for a few runs of each level."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest

from hpcml.answers import Span, Timeline
from hpcml.publication import Publication
from hpcml.records import Point
from hpcml.report.run_words import short_uid
from hpcml.report.study.decimation import decimate
from hpcml.report.study.drawing import drawn_text, titled
from hpcml.report.study.entries import figure, number_column, span, text_column, words
from hpcml.report.study.parts import Chart, Column, Entry, Paragraph, Section, Table, Trace, View
from hpcml.report.study.styles import LevelStyle

RUNS = 12  # that are drawn: more lines than that nobody tells apart
_POINTS = 400  # of one line
_HOST = "host"
_VIEW = (View(key="time", label="time", title="seconds since the start"),)

Line = tuple[str, str, Timeline]  # uid, level


def telemetry_section(publication: Publication, styles: Mapping[str, LevelStyle]) -> Section | None:
    """Return the timelines of at most `RUNS` runs, taken from the levels in turn; None where there are none."""
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
    text = f"{len(turns)} runs were sampled{chosen}. Values are those of spans of ten seconds; what a device does not "
    text += "tell is not drawn."
    return Section(
        heading="Telemetry", parts=[Paragraph(text=text), *(c for c in charts if c is not None), _table(lines)]
    )


_DRAWN: Sequence[tuple[str, str, Callable[[Span], float | None]]] = (
    ("GPU power", "W", lambda one: one.mean_power_w),
    ("GPU busy", "%", lambda one: one.util_percent),
    ("Tensor cores busy", "%", lambda one: one.tensor_percent),
    ("Memory in use", "MiB", lambda one: one.max_memory_mb),
    ("SM clock", "MHz", lambda one: one.sm_mhz),
    ("Temperature", "°C", lambda one: one.max_temperature_c),
    (
        "CPU cores busy",
        "cores",
        lambda one: one.cpu_s / one.covered_s if one.cpu_s is not None and one.covered_s else None,
    ),
)


def _chart(
    title: str,
    unit: str,
    read: Callable[[Span], float | None],
    lines: Sequence[Line],
    styles: Mapping[str, LevelStyle],
) -> Chart | None:
    traces, rows, levels = [], [], []
    for uid, level, line in lines:
        read_off = [(one.t_s, read(one)) for one in line.spans]
        known = [Point(step=at, t_s=t_s, value=value) for at, (t_s, value) in enumerate(read_off) if value is not None]
        if not known:
            continue
        name = f"{uid} {level}, {line.host} {line.device}, attempt {line.attempt}"
        traces.append(_trace(level, name, decimate(known, _POINTS), styles[level]))
        values = [point.value for point in known]
        levels.append(level)
        rows.append(
            [*_who(uid, level, line), figure(min(values)), figure(sum(values) / len(values)), figure(max(values))]
        )
    if not traces:
        return None
    columns = [*_WHO, *(number_column(word, unit) for word in ("smallest", "mean", "largest"))]
    return Chart(
        title=title,
        described=f"{title} in {unit} over time, a line for each device of a run.",
        traces=traces,
        views=_VIEW,
        layout={"xaxis": titled(_VIEW[0].title), "yaxis": titled(f"{title} ({unit})", rangemode="tozero")},
        numbers=Table(caption=f"{title} in {unit}", columns=columns, rows=rows),
        levels=list(dict.fromkeys(levels)),
        height_px=280,
        is_wide=False,
    )


def _trace(level: str, name: str, kept: Sequence[Point], style: LevelStyle) -> Trace:
    return Trace(
        level=level,
        drawn={
            "type": "scatter",
            "mode": "lines" if len(kept) > 1 else "markers",
            "y": [point.value for point in kept],
            "line": {"width": 1.5, "color": style.faint(0.8), "dash": style.dash},
            "marker": {"color": style.colour, "symbol": style.marker},
            "hovertemplate": f"%{{x:.5g}} s: %{{y:.4g}}<br>{drawn_text(name)}",
            "name": "",
        },
        xs={"time": [point.t_s for point in kept]},
    )


_WHO: Sequence[Column] = tuple(text_column(word) for word in ("run", "level", "host", "device"))


def _who(uid: str, level: str, line: Timeline) -> list[Entry]:
    return [words(short_uid(uid)), words(level), words(line.host), words(line.device)]


def _table(lines: Sequence[Line]) -> Table:
    columns = [
        *_WHO,
        number_column("attempt"),
        number_column("sampled"),
        number_column("energy", "kJ"),
        number_column("mean power", "W"),
        number_column("most memory", "MiB"),
        number_column("hottest", "°C"),
        number_column("throttled, power"),
        number_column("throttled, heat"),
    ]
    rows = [[*_who(uid, level, line), *_row(line)] for uid, level, line in lines]
    return Table(caption="What was sampled", columns=columns, rows=rows)


def _row(line: Timeline) -> Iterator[Entry]:
    spans = line.spans
    energy = [one.energy_j for one in spans]
    power = [one.mean_power_w for one in spans if one.mean_power_w is not None]
    yield figure(line.attempt)
    yield span(sum(one.covered_s for one in spans))
    yield figure(None if None in energy or not energy else sum(one for one in energy if one is not None) / 1000)
    yield figure(sum(power) / len(power) if power else None)
    yield figure(max((one.max_memory_mb for one in spans if one.max_memory_mb is not None), default=None))
    yield figure(max((one.max_temperature_c for one in spans if one.max_temperature_c is not None), default=None))
    for seconds in ([one.throttled_power_s for one in spans], [one.throttled_thermal_s for one in spans]):
        known = [one for one in seconds if one is not None]
        yield span(sum(known) if known else None)
