"""A publication put into sections: conclusions first, then what they rest on, then where that came from."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from hpcml.comparison import Cell, Comparison
from hpcml.publication import Group, Publication
from hpcml.report.comparison_cells import heading, remarks
from hpcml.report.study.attainment_parts import attainment_section
from hpcml.report.study.comparison_charts import comparison_charts
from hpcml.report.study.comparison_tables import cost_table, load_table, outcome_table, speed_table, target_table
from hpcml.report.study.curve_charts import curve_chart
from hpcml.report.study.findings import findings_of
from hpcml.report.study.origin_parts import methods_section, reproduction_section
from hpcml.report.study.parts import Findings, Listed, Paragraph, Part, Section, Study, Tone
from hpcml.report.study.run_parts import environment_section, runs_section
from hpcml.report.study.scaling_parts import scaling_section
from hpcml.report.study.styles import LevelStyle, level_styles
from hpcml.report.study.telemetry_parts import telemetry_section

Styles = Mapping[str, LevelStyle]


def study_of(publication: Publication) -> Study:
    """Return the whole report, in no form yet."""
    styles = styles_of(publication)
    sections: list[Section | None] = [
        _summary(publication),
        _comparison(publication.comparison, styles) if publication.comparison else None,
        _curves(publication, styles),
        telemetry_section(publication, styles),
        scaling_section(publication.scaling) if publication.scaling else None,
        attainment_section(publication.attainment) if publication.attainment else None,
        environment_section(publication),
        runs_section(publication),
        methods_section(publication),
        reproduction_section(publication),
    ]
    return Study(
        title=publication.title,
        subtitle=f"{_counted(publication)} · by {publication.by} · {publication.made_at}",
        sections=[section for section in sections if section is not None],
    )


def styles_of(publication: Publication) -> Styles:
    """Return how each level is drawn, the same everywhere in the report."""
    levels = [level.name for group in publication.groups for level in group.levels]
    cells = publication.comparison.cells if publication.comparison else ()
    return level_styles([*levels, *(row.level for cell in cells for row in cell.rows)])


def _counted(publication: Publication) -> str:
    states = Counter(run.state.value for run in publication.runs)
    listed = ", ".join(f"{n} {state}" for state, n in states.most_common())
    return f"{len(publication.runs)} run{'s'[: len(publication.runs) != 1]} ({listed})"


def _summary(publication: Publication) -> Section:
    parts: list[Part] = []
    if publication.comparison is not None:
        parts.append(Findings(of=list(findings_of(publication.comparison))))
    if publication.not_compared is not None:
        parts.append(Paragraph(text="These runs were not compared:", tone="doubt"))
        parts.append(Listed(lines=[line.strip() for line in publication.not_compared.splitlines()]))
    scaling = publication.scaling
    said = [
        *(scaling.pays_from if scaling else ()),
        *(s for cell in (scaling.cells if scaling else ()) for s in cell.sentences),
    ]
    if said:
        parts.append(Listed(lines=said))
    return Section(heading="Summary", parts=parts)


def _comparison(comparison: Comparison, styles: Styles) -> Section:
    return Section(
        heading=f"Comparison by {comparison.by}",
        sections=[_cell(comparison, cell, styles) for cell in comparison.cells],
    )


def _cell(comparison: Comparison, cell: Cell, styles: Styles) -> Section:
    tables = [
        outcome_table(comparison, cell),
        speed_table(comparison, cell),
        cost_table(comparison, cell),
        load_table(comparison, cell),
        target_table(comparison, cell),
    ]
    lines = list(remarks(cell, comparison))
    tones: list[Tone] = ["bad" if line.startswith("CONFOUNDED") else "plain" for line in lines]
    return Section(
        heading=heading(cell) or "all runs",
        parts=[
            *(table for table in tables if table is not None),
            *comparison_charts(comparison, cell, styles),
            Listed(lines=lines, tones=tones),
        ],
    )


def _curves(publication: Publication, styles: Styles) -> Section | None:
    drawn = sum(len([points for points in found.curves.points.values() if points]) for found in publication.curves)
    below: defaultdict[int, list[Part]] = defaultdict(list)
    for found in publication.curves:
        chart = curve_chart(found, publication.groups[found.group], styles, curves=max(drawn, 1))
        if chart is not None:
            below[found.group].append(chart)
    if not below:
        return None
    sections = [Section(heading=_where(publication.groups[at]), parts=parts) for at, parts in sorted(below.items())]
    return Section(heading="Training curves", sections=sections)


def _where(group: Group) -> str:
    return (
        " · ".join(f"{key} {name}" for key, name in group.where.items() if name not in ("not set", "none"))
        or "all runs"
    )
