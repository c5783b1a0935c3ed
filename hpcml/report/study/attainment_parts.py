"""How much of its devices' peaks the runs attained: a chart, a table, and apart from both what others published."""

from __future__ import annotations

from collections.abc import Sequence

from hpcml.attainment import Attained, Attainment, Published
from hpcml.report.study.drawing import drawn_text, titled
from hpcml.report.study.entries import figure, number_column, share, text_column, words
from hpcml.report.study.parts import Chart, Listed, Paragraph, Part, Section, Table, Trace, View
from hpcml.report.study.roofline_chart import attained_name, roofline_chart
from hpcml.report.study.styles import NEUTRAL, level_styles


def attainment_section(attainment: Attainment) -> Section:
    """Return what was attained, beside the peaks and below it what others published."""
    table = _table(attainment.attained)
    known = [each for each in attainment.attained if each.achieved_tflops is not None and each.peak_tflops is not None]
    parts: list[Part] = [_chart(known)] if known else []
    if (roofline := roofline_chart(attainment.attained)) is not None:
        parts.append(roofline)
    parts.append(table)
    if attainment.remarks:
        parts.append(Listed(lines=attainment.remarks))
    below = [_published(attainment.published)] if attainment.published else []
    return Section(heading="Peaks", parts=parts, sections=below)


def _chart(known: Sequence[Attained]) -> Chart:
    names = [drawn_text(attained_name(each)) for each in known]
    styles = level_styles([each.precision for each in known])
    peak = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "width": 0.8,
        "marker": {"color": "rgba(128,128,128,0.15)", "line": {"color": NEUTRAL, "width": 1.5}},
        "hovertemplate": "peak: %{x:.4g} TFLOP/s",
        "name": "",
    }
    achieved = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "width": 0.5,
        "marker": {"color": [styles[each.precision].colour for each in known]},
        "hovertemplate": "achieved: %{x:.4g} TFLOP/s",
        "name": "",
    }
    table = Table(
        caption="TFLOP/s of one device",
        columns=[text_column("runs"), number_column("achieved", "TFLOP/s"), number_column("peak", "TFLOP/s")],
        rows=[[words(attained_name(each)), figure(each.achieved_tflops), figure(each.peak_tflops)] for each in known],
    )
    spoken = "; ".join(f"{attained_name(each)}: {each.achieved_tflops:.3g} of {each.peak_tflops:.4g}" for each in known)
    return Chart(
        title="Achieved and peak",
        described=f"TFLOP/s of one device: filled what was achieved, outlined the peak of that precision. {spoken}.",
        traces=[
            Trace(level=None, drawn=peak, xs={"x": [each.peak_tflops for each in known]}),
            Trace(level=None, drawn=achieved, xs={"x": [each.achieved_tflops for each in known]}),
        ],
        views=[View(key="x", label="TFLOP/s", title="TFLOP/s of one device")],
        layout={
            "barmode": "overlay",
            "xaxis": titled("TFLOP/s of one device", rangemode="tozero"),
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
        },
        numbers=table,
        height_px=110 + 44 * len(known),
        repeats_a_table=True,
    )


def _table(attained: Sequence[Attained]) -> Table:
    columns = [
        text_column("runs"),
        text_column("device"),
        number_column("devices"),
        number_column("seeds"),
        number_column("step", "ms"),
        number_column("samples", "1/s"),
        number_column("tokens", "1/s"),
        number_column("model work of a step", "GFLOP"),
        number_column("achieved", "TFLOP/s"),
        number_column("peak", "TFLOP/s"),
        text_column("peak from"),
        number_column("MFU", "%"),
        number_column("memory bandwidth, at most", "GB/s"),
        number_column("memory busy", "%"),
        number_column("intensity", "FLOP/byte"),
        number_column("lower roof", "TFLOP/s"),
        text_column("no MFU because"),
        text_column("limited by"),
        text_column("remarks"),
    ]
    rows = [
        [
            words(attained_name(each)),
            words(each.device),
            figure(each.devices),
            figure(each.n),
            figure(each.step_ms),
            figure(each.samples_per_s),
            figure(each.tokens_per_s),
            figure(each.model_gflops_per_step),
            figure(each.achieved_tflops),
            figure(each.peak_tflops),
            words(each.peak_basis),
            share(each.mfu),
            figure(each.bandwidth_gbs),
            figure(each.dram_percent),
            figure(each.intensity_flop_per_byte),
            figure(each.roof_tflops),
            words(each.why_no_mfu),
            words("; ".join(each.limits)),
            words("; ".join(each.flags)),
        ]
        for each in attained
    ]
    shown = [at for at in range(len(columns)) if any(row[at].text for row in rows)]
    return Table(
        caption="What was attained, in steady state, for each device",
        columns=[columns[at] for at in shown],
        rows=[[row[at] for at in shown] for row in rows],
    )


def _published(published: Sequence[Published]) -> Section:
    columns = [text_column("workload"), text_column("device"), text_column("precision"), number_column("value")]
    columns += [text_column("unit"), text_column("source"), text_column("note")]
    rows = [
        [
            *map(words, (one.workload, one.device, one.precision)),
            figure(one.value),
            *map(words, (one.unit, one.source, one.note)),
        ]
        for one in published
    ]
    return Section(
        heading="Published by others",
        parts=[
            Paragraph(
                text="Published figures: measured by others, on other machines and with other software. They are part "
                "of no statistic of this report."
            ),
            Table(caption="Published figures", columns=columns, rows=rows),
        ],
    )
