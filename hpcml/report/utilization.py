"""`hpcml peak` as a document, and the section of utilization in `hpcml report`; published figures stand apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from hpcml.analysis.attained import Attained, Attainment, Published
from hpcml.codec import encode
from hpcml.model.record_keys import ARGUMENTS
from hpcml.model.told_apart import alike_words
from hpcml.report.document import Column, Document, Listing, Paragraph, Part, Remarks, Section
from hpcml.report.text import number
from hpcml.report.text_charts import bar

FORMAT = 2  # of JSON; grows when a key changes its meaning or goes
_BAR_WIDTH = 10


def utilization_document(attainment: Attainment) -> Document:
    """Return the document of ``hpcml peak``: for each cell a table with bars, then the published figures.

    Rates are of one device, in TFLOP/s; bars are the share of the peak. CSV has a line for each cell and precision of
    runs, or where there are no runs, one for each published figure; never both in one table.
    """
    wheres = list(dict.fromkeys(key for row in attainment.attained for key in row.where))
    sections = []
    for heading, members in groupby(attainment.attained, key=_heading):
        rows = list(members)
        sections.append(
            Section(
                heading=heading,
                parts=[
                    Listing(columns=_columns(), rows=rows),
                    Remarks(lines=list(_doubts([(row.precision, row) for row in rows]))),
                ],
            )
        )
    remarks = Section(heading="", parts=[Paragraph(text=remark) for remark in map(str, attainment.flags)])
    if sections:
        last = sections[-1]
        sections[-1] = Section(heading=last.heading, parts=[*last.parts, *remarks.parts])
    elif remarks.parts:
        sections.append(remarks)
    if attainment.published:
        sections.append(_published(attainment.published))
    runs = Listing(columns=[*(_where(key) for key in wheres), *_columns()], rows=attainment.attained)
    figures = Listing(columns=_published_columns(), rows=attainment.published)
    return Document(
        introduction=f"{attainment.n_runs} runs · one device in steady state, medians over seeds; peaks are dense, of "
        "the precision that was measured"
        if attainment.attained
        else "",
        sections=sections,
        record={"format": FORMAT, **encode(attainment)},
        data=[runs if attainment.attained else figures],
    )


def utilization_section(attainment: Attainment) -> Section:
    """Return the section of a report: what runs attained beside the peaks, and below it what others published."""
    named = list(zip(_names(attainment.attained), attainment.attained, strict=True))
    names: Column[Attained] = Column("", "runs", lambda row: next(name for name, each in named if each is row))
    parts: list[Part] = [
        Listing(
            caption="What was attained, in steady state, for each device",
            columns=[names, *_columns()],
            rows=attainment.attained,
        ),
        Remarks(lines=[*_doubts(named), *map(str, attainment.flags)]),
    ]
    below = [_published(attainment.published)] if attainment.published else []
    return Section(heading="Peaks", parts=parts, sections=below)


def _names(attained: Sequence[Attained]) -> list[str]:
    """Return a name for each of *attained* that distinguishes it from the others, in their order.

    That is the model and the precision, and between them each other setting, and the device, in which these differ.
    """
    settings: dict[str, list[str]] = {}
    for key in dict.fromkeys(key for each in attained for key in each.where):
        settings[key.removeprefix(ARGUMENTS)] = [each.where.get(key, "not set") for each in attained]
    settings["device"] = [each.device or "not known" for each in attained]
    telling = [key for key, values in settings.items() if key != "model" and len(set(values)) > 1]
    return [
        " · ".join(
            [
                *([each.where["model"]] if "model" in each.where else []),
                *(f"{key} {settings[key][at]}" for key in telling),
                each.precision,
            ]
        )
        for at, each in enumerate(attained)
    ]


def _heading(row: Attained) -> str:
    parts = alike_words(row.where)
    return " · ".join([*parts, *([f"device {row.device}"] if row.device else [])])


def _doubts(named: Sequence[tuple[str, Attained]]) -> Iterator[str]:
    """Yield the limits of the runs, each with its name, and what is needed to read their table."""
    for name, row in named:
        for limit in row.limits:
            yield f"{name}: {limit}"
        if not row.limits:
            yield f"{name}: nothing that was recorded says what limits it"
        if row.why_no_mfu is not None:
            yield f"{name}: no MFU: {row.why_no_mfu}"
        if (roof := _lower_roof(row)) is not None:
            yield f"{name}: {roof}"
        if row.peak_basis not in (None, "data sheet"):
            yield f"{name}: the peak is {row.peak_basis}"
        for flag in row.flags:
            yield f"{name}: {flag}"


def _lower_roof(row: Attained) -> str | None:
    if row.ridge_flop_per_byte is None:
        return None
    ridge = f"the memory ({row.bandwidth_gbs:g} GB/s) is the lower roof below {row.ridge_flop_per_byte:.0f} FLOP/byte"
    if row.intensity_flop_per_byte is None or row.roof_tflops is None:
        return f"{ridge}; what the runs do for a byte was not measured"
    which = "memory" if row.intensity_flop_per_byte < row.ridge_flop_per_byte else "arithmetic"
    return f"{ridge}; they do {row.intensity_flop_per_byte:.3g}: at most {row.roof_tflops:.3g} TFLOP/s, by {which}"


def _where(key: str) -> Column[Attained]:
    return Column(key, None, lambda row: row.where.get(key))


def _columns() -> list[Column[Attained]]:
    """Return the columns of the runs of a cell in one precision, in the order of CSV."""

    def column(key: str, heading: str | None = None, write: Callable[[Any], str] | None = None) -> Column[Attained]:
        def text(row: Attained) -> str:
            value = getattr(row, key)
            return "" if write is None or value is None else write(value)

        return Column(key, heading, attrgetter(key), text if write else None)

    def doubtful_peak(row: Attained) -> str:
        doubt = "" if row.peak_basis in (None, "data sheet") else "~"
        return "" if row.peak_tflops is None else f"{doubt}{row.peak_tflops:.4g}"

    whole = "{:.0f}".format
    return [
        column("precision", "precision"),
        column("device"),
        column("n", "n"),
        column("devices", "devices"),
        column("step_ms", "step ms"),
        column("samples_per_s", "samples/s"),
        column("tokens_per_s", "tokens/s"),
        column("model_gflops_per_step"),
        column("achieved_tflops", "TFLOP/s", partial(number, digits=3)),
        Column("peak_tflops", "peak", lambda row: row.peak_tflops, doubtful_peak),
        column("peak_basis"),
        column("mfu", "MFU", lambda mfu: f"{mfu * 100:.1f} %"),
        Column(
            "",
            "of peak",
            lambda row: row.mfu,
            lambda row: bar(row.mfu, width=_BAR_WIDTH, is_plain=False),
            is_number=False,
        ),
        column("why_no_mfu"),
        column("bandwidth_gbs"),
        column("ridge_flop_per_byte"),
        column("util_percent", "GPU %", whole),
        column("sm_active_percent", "SM %", whole),
        column("tensor_percent", "tensor %", whole),
        column("dram_percent", "DRAM %", whole),
        column("intensity_flop_per_byte"),
        column("roof_tflops"),
        column("data_share"),
        column("communication_share"),
        Column("limits", None, lambda row: "; ".join(row.limits)),
        Column("flags", None, lambda row: "; ".join(map(str, row.flags))),
    ]


def _published_columns() -> list[Column[Published]]:
    """Return the columns of a published figure, in the order of CSV."""
    shown = {"size": "N"} | {key: key for key in ("workload", "device", "precision", "value", "unit")}
    order = (
        *("workload", "device", "precision", "value", "unit", "source", "note"),
        *("architecture", "devices", "size", "seconds", "operations"),
    )
    return [Column(key, shown.get(key), attrgetter(key)) for key in order]


def _published(figures: Sequence[Published]) -> Section:
    """Return the section with the figures, their notes (each once) and their sources."""
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
        parts=[Listing(columns=_published_columns(), rows=figures), Remarks(lines=remarks)],
    )
