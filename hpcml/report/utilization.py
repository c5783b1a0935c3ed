"""`hpcml peak` as a document, and the section of utilization in `hpcml report`; published figures stand apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

from hpcml.codec import encode
from hpcml.model.told_apart import alike_words
from hpcml.model.utilization import Attained, Attainment, Published
from hpcml.report.document import Document, Paragraph, Part, Remarks, Section
from hpcml.report.quantities import (
    Entry,
    Quantity,
    Short,
    Value,
    derived,
    flat_line,
    flat_listing,
    report_table,
    share,
    short_table,
    words,
)
from hpcml.report.text import number
from hpcml.report.text_charts import bar
from hpcml.report.utilization_charts import achieved_chart, attained_names, roofline_chart

FORMAT = 1  # of JSON; grows when a key changes its meaning or goes
_REPORT = "report"
_BAR_WIDTH = 10


def utilization_document(attainment: Attainment) -> Document:
    """Return the document of ``hpcml peak``: for each cell a table with bars, then the published figures.

    Rates are of one device, in TFLOP/s; bars are the share of the peak. CSV has a line for each cell and precision of
    runs, or where there are no runs, one for each published figure; never both in one table.
    """
    wheres = list(dict.fromkeys(key for row in attainment.attained for key in row.where))
    quantities, figures = _quantities(wheres), _published_quantities()
    sections = []
    for heading, members in groupby(attainment.attained, key=_heading):
        rows = list(members)
        sections.append(
            Section(heading=heading, parts=[short_table(quantities, rows), Remarks(lines=list(_doubts(rows)))])
        )
    remarks = Section(heading="", parts=[Paragraph(text=remark) for remark in attainment.remarks])
    if sections:
        last = sections[-1]
        sections[-1] = Section(heading=last.heading, parts=[*last.parts, *remarks.parts])
    elif remarks.parts:
        sections.append(remarks)
    if attainment.published:
        sections.append(_published_by_others(attainment.published))
    record = encode(attainment)
    for one, row in zip(record["attained"], attainment.attained, strict=True):
        one.update(derived(quantities, row))
    return Document(
        introduction=f"{attainment.n_runs} runs · one device in steady state, medians over seeds; peaks are dense, of "
        "the precision that was measured"
        if attainment.attained
        else "",
        sections=sections,
        record={"format": FORMAT, **record},
        data=[
            flat_listing(
                [flat_line(quantities, row) for row in attainment.attained]
                or [flat_line(figures, each) for each in attainment.published]
            )
        ],
    )


def utilization_section(attainment: Attainment) -> Section:
    """Return the section of a report: what runs attained beside the peaks, and below it what others published.

    The charts have only the cells whose rate and peak are both known; the table has all.
    """
    charts = achieved_chart(attainment.attained), roofline_chart(attainment.attained)
    parts: list[Part] = [chart for chart in charts if chart is not None]
    names = dict(zip(map(id, attainment.attained), attained_names(attainment.attained), strict=True))
    chosen = [
        Quantity(heading="runs", kind="text", value=lambda row: names[id(row)], section=_REPORT, short=None),
        *(each for each in _quantities([]) if each.section == _REPORT),
    ]
    parts.append(report_table("What was attained, in steady state, for each device", chosen, attainment.attained))
    if attainment.remarks:
        parts.append(Remarks(lines=attainment.remarks))
    below = [_published(attainment.published)] if attainment.published else []
    return Section(heading="Peaks", parts=parts, sections=below)


def _heading(row: Attained) -> str:
    parts = alike_words(row.where)
    return " · ".join([*parts, *([f"device {row.device}"] if row.device else [])])


def _doubts(rows: Sequence[Attained]) -> Iterator[str]:
    """Yield the limits of the runs, and what is needed to read their table."""
    for row in rows:
        for limit in row.limits:
            yield f"{row.precision}: {limit}"
        if not row.limits:
            yield f"{row.precision}: nothing that was recorded says what limits it"
        if row.why_no_mfu is not None:
            yield f"{row.precision}: no MFU: {row.why_no_mfu}"
        if (roof := _lower_roof(row)) is not None:
            yield f"{row.precision}: {roof}"
        if row.peak_basis not in (None, "data sheet"):
            yield f"{row.precision}: the peak is {row.peak_basis}"
        for flag in row.flags:
            yield f"{row.precision}: {flag}"


def _lower_roof(row: Attained) -> str | None:
    if row.ridge_flop_per_byte is None:
        return None
    ridge = f"the memory ({row.bandwidth_gbs:g} GB/s) is the lower roof below {row.ridge_flop_per_byte:.0f} FLOP/byte"
    if row.intensity_flop_per_byte is None or row.roof_tflops is None:
        return f"{ridge}; what the runs do for a byte was not measured"
    which = "memory" if row.intensity_flop_per_byte < row.ridge_flop_per_byte else "arithmetic"
    return f"{ridge}; they do {row.intensity_flop_per_byte:.3g}: at most {row.roof_tflops:.3g} TFLOP/s, by {which}"


def _quantities(wheres: Sequence[str]) -> list[Quantity[Attained]]:
    """Return the quantities of the runs of a cell in one precision, in the order of the columns in CSV."""
    return [
        *(_hidden(key, partial(lambda key, row: row.where.get(key), key)) for key in wheres),
        Quantity(key="precision", heading="precision", kind="text", value=lambda row: row.precision,
                 short=Short(order=-2)),
        Quantity(key="device", heading="device", kind="text", value=lambda row: row.device, section=_REPORT,
                 short=None),
        Quantity(key="devices", heading="devices", value=lambda row: row.devices, section=_REPORT, short=Short()),
        Quantity(key="n", heading="seeds", value=lambda row: row.n, section=_REPORT,
                 short=Short(heading="n", order=-1)),
        *_rates(),
        *_roofs(),
        _hidden("data_share", lambda row: row.data_share),
        _hidden("communication_share", lambda row: row.communication_share),
        Quantity(key="limits", heading="limited by", kind="text", value=lambda row: "; ".join(row.limits),
                 section=_REPORT, order=1, short=None),
        Quantity(key="flags", heading="remarks", kind="text", value=lambda row: "; ".join(row.flags), section=_REPORT,
                 order=1, short=None),
    ]  # fmt: skip


def _rates() -> list[Quantity[Attained]]:
    def with_doubt(row: Attained) -> Entry:
        doubt = "" if row.peak_basis in (None, "data sheet") else "~"
        return words(None if row.peak_tflops is None else f"{doubt}{row.peak_tflops:g}")

    return [
        Quantity(key="step_ms", heading="step", unit="ms", value=lambda row: row.step_ms, section=_REPORT,
                 short=Short(heading="step ms")),
        Quantity(key="samples_per_s", heading="samples", unit="1/s", value=lambda row: row.samples_per_s,
                 section=_REPORT, short=Short(heading="samples/s")),
        Quantity(key="tokens_per_s", heading="tokens", unit="1/s", value=lambda row: row.tokens_per_s,
                 section=_REPORT, short=Short(heading="tokens/s")),
        Quantity(key="model_gflops_per_step", heading="model work of a step", unit="GFLOP",
                 value=lambda row: row.model_gflops_per_step, section=_REPORT, short=None),
        Quantity(key="achieved_tflops", heading="achieved", unit="TFLOP/s", value=lambda row: row.achieved_tflops,
                 section=_REPORT,
                 short=Short(heading="TFLOP/s", write=lambda row: words(number(row.achieved_tflops, 3)))),
        Quantity(key="peak_tflops", heading="peak", unit="TFLOP/s", value=lambda row: row.peak_tflops,
                 section=_REPORT, short=Short(heading="peak", write=with_doubt)),
        Quantity(key="peak_basis", heading="peak from", kind="text", value=lambda row: row.peak_basis,
                 section=_REPORT, short=None),
        Quantity(
            key="mfu",
            heading="MFU",
            unit="%",
            value=lambda row: row.mfu,
            write=lambda row: share(row.mfu),
            section=_REPORT,
            short=Short(
                heading="MFU", write=lambda row: words(None if row.mfu is None else f"{row.mfu * 100:.1f} %")
            ),
        ),
        Quantity(
            heading="of peak",
            kind="bar",
            short=Short(
                write=lambda row: Entry(text=bar(row.mfu, width=_BAR_WIDTH, is_plain=False), order=row.mfu)
            ),
        ),
        Quantity(key="why_no_mfu", heading="no MFU because", kind="text", value=lambda row: row.why_no_mfu,
                 section=_REPORT, order=1, short=None),
    ]  # fmt: skip


def _roofs() -> list[Quantity[Attained]]:
    def percent(read: Callable[[Attained], float | None]) -> Callable[[Attained], Entry]:
        return lambda row: words(None if (value := read(row)) is None else f"{value:.0f}")

    return [
        Quantity(key="bandwidth_gbs", heading="memory bandwidth, at most", unit="GB/s",
                 value=lambda row: row.bandwidth_gbs, section=_REPORT, short=None),
        _hidden("ridge_flop_per_byte", lambda row: row.ridge_flop_per_byte),
        Quantity(key="util_percent", value=lambda row: row.util_percent,
                 short=Short(heading="GPU %", write=percent(lambda row: row.util_percent))),
        Quantity(key="sm_active_percent", value=lambda row: row.sm_active_percent,
                 short=Short(heading="SM %", write=percent(lambda row: row.sm_active_percent))),
        Quantity(key="tensor_percent", value=lambda row: row.tensor_percent,
                 short=Short(heading="tensor %", write=percent(lambda row: row.tensor_percent))),
        Quantity(key="dram_percent", heading="memory busy", unit="%", value=lambda row: row.dram_percent,
                 section=_REPORT, short=Short(heading="DRAM %", write=percent(lambda row: row.dram_percent))),
        Quantity(key="intensity_flop_per_byte", heading="intensity", unit="FLOP/byte",
                 value=lambda row: row.intensity_flop_per_byte, section=_REPORT, short=None),
        Quantity(key="roof_tflops", heading="lower roof", unit="TFLOP/s", value=lambda row: row.roof_tflops,
                 section=_REPORT, short=None),
    ]  # fmt: skip


def _hidden(key: str, value: Callable[[Attained], Value]) -> Quantity[Attained]:
    """Return a quantity for CSV and JSON alone."""
    return Quantity(key=key, kind="text", value=value, short=None)


def _published_quantities() -> list[Quantity[Published]]:
    """Return the quantities of a published figure, in the order of the columns in CSV."""

    def text(name: str, *, order: int = 0, is_short: bool = False) -> Quantity[Published]:
        return Quantity(key=name, heading=name, kind="text", value=lambda one: getattr(one, name), section=_REPORT,
                        short=Short(order=order) if is_short else None)  # fmt: skip

    def hidden(name: str) -> Quantity[Published]:
        return Quantity(key=name, kind="text", value=lambda one: getattr(one, name), short=None)

    return [
        *(text(name, is_short=True) for name in ("workload", "device", "precision")),
        Quantity(key="value", heading="value", value=lambda one: one.value, section=_REPORT, short=Short(order=1)),
        text("unit", order=1, is_short=True),
        text("source"),
        text("note"),
        hidden("architecture"),
        hidden("devices"),
        Quantity(key="size", value=lambda one: one.size, short=Short(heading="N")),
        hidden("seconds"),
        hidden("operations"),
    ]


def _published_by_others(figures: Sequence[Published]) -> Section:
    """Return the section of ``hpcml peak`` with the figures, their notes (each once) and their sources."""
    remarks = []
    for (workload, device, note), members in groupby(
        figures, key=lambda figure: (figure.workload, figure.device, figure.note)
    ):
        if note is not None:
            precisions = ", ".join(dict.fromkeys(figure.precision for figure in members))
            remarks.append(f"{workload}, {device}, {precisions}: {note}")
    remarks += [f"source: {source}" for source in dict.fromkeys(figure.source for figure in figures)]
    return Section(
        heading="Published by others: not measured by hpcml, and in no statistics",
        parts=[short_table(_published_quantities(), figures, keeps_empty=True), Remarks(lines=remarks)],
    )


def _published(figures: Sequence[Published]) -> Section:
    """Return the section of a report."""
    chosen = [each for each in _published_quantities() if each.section == _REPORT]
    return Section(
        heading="Published by others",
        parts=[
            Paragraph(
                text="Published figures: measured by others, on other machines and with other software. They are part "
                "of no statistic of this report."
            ),
            report_table("Published figures", chosen, figures, keeps_empty=True),
        ],
    )
