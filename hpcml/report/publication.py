"""`hpcml report`: the whole report as a document: conclusions first, then results, environment, methods, commands."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hpcml.model.comparison import Cell, Comparison
from hpcml.model.publication import Publication
from hpcml.model.query_results import ReportGroup
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.model.told_apart import alike_words
from hpcml.report.asked_used import asked_used_section
from hpcml.report.charts import level_styles
from hpcml.report.comparison import closing, comparison_section, hours_section, introduction
from hpcml.report.comparison_rows import RowQuantities, row_quantities
from hpcml.report.curves import curve_chart
from hpcml.report.document import (
    NOTHING,
    Commands,
    Document,
    Entry,
    Findings,
    LevelStyle,
    Paragraph,
    Part,
    Remarks,
    Section,
    Table,
    TableColumn,
    Tone,
    figure,
    number_column,
    span,
    text_column,
    without_empty_columns,
    words,
)
from hpcml.report.finding import findings_of, heading
from hpcml.report.live import live_section, so_far
from hpcml.report.runs import cause_words, key_metric, metric_beside_objectives, metric_words, objective_of
from hpcml.report.scaling import scaling_section
from hpcml.report.telemetry import telemetry_section
from hpcml.report.text import safe
from hpcml.report.utilization import utilization_section

Styles = Mapping[str, LevelStyle]


def publication_document(publication: Publication, quantities: RowQuantities = row_quantities) -> Document:
    """Return the whole report; `hpcml.report.render` makes HTML, Markdown or LaTeX of it.

    A section of which nothing is known is left out: curves, telemetry, scaling, utilization. A new section is a
    function that returns a `Section` or None, and a line here. *quantities* makes the columns of the comparison.
    """
    styles = _styles(publication)
    sections: list[Section | None] = [
        _summary(publication),
        live_section(publication) if publication.live else None,
        comparison_section(publication.comparison, styles, quantities) if publication.comparison else None,
        _curves(publication, styles),
        telemetry_section(publication, styles),
        scaling_section(publication.scaling) if publication.scaling else None,
        utilization_section(publication.attainment) if publication.attainment else None,
        hours_section(*publication.hours) if publication.hours else None,
        asked_used_section(publication.runs),
        environment_section(publication),
        runs_section(publication),
        methods_section(publication),
        reproduction_section(publication),
    ]
    return Document(
        title=publication.title,
        introduction=f"{_counted(publication)} · by {publication.by} · {publication.made_at}",
        sections=[section for section in sections if section is not None],
        styles=styles,
        made_by=publication.hpcml_version,
    )


def _styles(publication: Publication) -> Styles:
    """Return the style of each level, the same in all charts of the report."""
    levels = [level.name for group in publication.groups for level in group.levels]
    cells = publication.comparison.cells if publication.comparison else ()
    return level_styles([*levels, *(row.level for cell in cells for row in cell.rows)])


def _counted(publication: Publication) -> str:
    states = Counter(run.state.value for run in publication.runs)
    listed = ", ".join(f"{n} {state}" for state, n in states.most_common())
    return f"{_runs(len(publication.runs))} ({listed})"


def _runs(n: int) -> str:
    return f"{n} run{'s'[: n != 1]}"


def _summary(publication: Publication) -> Section:
    parts: list[Part] = []
    if publication.comparison is not None:
        found = findings_of(publication.comparison, so_far=publication.live is not None)
        parts.append(Findings(of=list(found)))
    if publication.live is not None:
        parts += so_far(publication.live, len(publication.runs))
    if publication.not_compared is not None:
        parts.append(Paragraph(text="These runs were not compared:", tone="doubt"))
        parts.append(Remarks(lines=[line.strip() for line in publication.not_compared.splitlines()]))
    scaling = publication.scaling
    said = [
        *(scaling.pays_from if scaling else ()),
        *(s for cell in (scaling.cells if scaling else ()) for s in cell.sentences),
    ]
    if said:
        parts.append(Remarks(lines=said))
    return Section(heading="Summary", parts=parts)


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


def _where(group: ReportGroup) -> str:
    """Return the settings that all runs of the group have in common, in one line."""
    return " · ".join(alike_words(group.where)) or "all runs"


_LISTED = 6  # values of one fact
_MANY = 30  # runs, from which on a table says once what is alike in all of them


def runs_section(publication: Publication) -> Section:
    """Return the section of all runs; those that do not count come first, with the reason.

    A run that has not completed does not count, nor one whose records are incomplete, or that the comparison excludes.
    """
    levels = {uid: level.name for group in publication.groups for level in group.levels for uid in level.uids}
    left_out = _left_out(publication, levels)
    parts: list[Part] = [left_out] if left_out.rows else [Paragraph(text="Every run counts.")]
    return Section(heading="Runs", parts=[*parts, _all_runs(publication, levels)])


def _left_out(publication: Publication, levels: Mapping[str, str]) -> Table:
    found = publication.comparison
    without = (found.excluded, *(cell.excluded for cell in found.cells)) if found else ()
    why = {each.uid: each.reason for of in without for each in of}
    for run in publication.runs:
        if run.state is not State.COMPLETED:
            why.setdefault(run.uid, run.reason or run.state.value)
        elif run.incomplete is not None:
            why.setdefault(run.uid, f"incomplete: {run.incomplete}")
    runs = {run.uid: run for run in publication.runs}
    rows = [
        [
            words(uid),
            words(runs[uid].name),
            words(levels.get(uid)),
            words(runs[uid].state.value, _tone(runs[uid])),
            words(cause_words(runs[uid]) or None),
            figure(runs[uid].exit_code),
            words(reason),
        ]
        for uid, reason in sorted(why.items())
        if uid in runs
    ]
    columns: list[TableColumn] = [*map(text_column, ("run", "name", publication.by, "state", "cause"))]
    columns += [number_column("exit code"), text_column("why it does not count")]
    return Table(caption="Runs that do not count", columns=columns, rows=rows)


def _all_runs(publication: Publication, levels: Mapping[str, str]) -> Table:
    metric = publication.comparison.metric if publication.comparison else None
    if metric is None:
        named = {objective_of(run) for run in publication.runs}
        metric = metric_beside_objectives(publication.runs) or (named.pop() if len(named) == 1 else None)
    columns = [
        text_column("run"),
        text_column("name"),
        text_column("experiment"),
        text_column(publication.by),
        number_column("seed"),
        text_column("requested precision"),
        text_column("effective precision"),
        text_column("numerics"),
        text_column("state"),
        number_column(metric or "objective"),
        number_column("wall time"),
        number_column("attempt"),
        number_column("energy", "kJ"),
        number_column("mean power", "W"),
        text_column("tags"),
        text_column("git"),
    ]
    rows = [
        [
            words(run.uid),
            words(run.name),
            words(run.experiment),
            words(levels.get(run.uid)),
            figure(run.seed),
            NOTHING if publication.by == "precision" else words(run.precision),
            words(run.precision_effective or "not proven"),
            words(run.numerics),
            words(run.state.value, _tone(run)),
            _metric(run, metric),
            span(run.wall_s),
            figure(run.attempt),
            figure(None if run.usage is None or run.usage.energy_j is None else run.usage.energy_j / 1000),
            figure(None if run.usage is None else run.usage.mean_power_w),
            words(", ".join(run.tags)),
            words(None if run.git_commit is None else f"{run.git_commit[:10]}{' + changes' * bool(run.git_dirty)}"),
        ]
        for run in publication.runs
    ]
    caption = "The only run" if len(rows) == 1 else f"All {len(rows)} runs"
    table = without_empty_columns(Table(caption=caption, columns=columns, rows=rows))
    return table if len(rows) <= _MANY else _said_once(table)


def _said_once(table: Table) -> Table:
    """Return *table* without the columns that say the same in each row: its caption says that."""
    alike = [at for at in range(1, len(table.columns)) if len({row[at].text for row in table.rows}) == 1]
    told = [f"{table.columns[at].title} {table.rows[0][at].text}" for at in alike]
    shown = [at for at in range(len(table.columns)) if at not in alike]
    return replace(
        table,
        caption=f"{table.caption}; in all: {', '.join(told)}" if told else table.caption,
        columns=[table.columns[at] for at in shown],
        rows=[[row[at] for at in shown] for row in table.rows],
    )


def _metric(run: RunRecord, metric: str | None) -> Entry:
    value = key_metric(run, metric)[1]
    return NOTHING if value is None else Entry(text=metric_words(value), order=figure(value).order)


def _tone(run: RunRecord) -> Tone:
    if run.state is State.COMPLETED:
        return "plain" if run.incomplete is None else "doubt"
    return "bad" if run.state.is_final else "doubt"


def environment_section(publication: Publication) -> Section:
    """Return the section of facts: those that differ although they should not, those that may, and all others.

    Facts are what the agent recorded on the compute node: hardware, drivers, versions of libraries. Of each at most
    `_LISTED` values are listed, the most frequent first.
    """
    parts: list[Part] = []
    confounders = [f"CONFOUNDED by {each.kind} {each}" for cell in _cells(publication) for each in cell.confounders]
    if confounders:
        parts.append(Remarks(lines=list(dict.fromkeys(confounders)), tones=["bad"] * len(dict.fromkeys(confounders))))
    elif publication.comparison is not None:
        parts.append(
            Paragraph(text="Within each cell the runs that count are alike in all settings but the compared one.")
        )
    notes = list(dict.fromkeys(str(each) for cell in _cells(publication) for each in cell.notes))
    if notes:
        parts += [Paragraph(text="These differ, and may:"), Remarks(lines=notes)]
    facts = _facts(publication.runs)
    return Section(heading="Environment and confounders", parts=[*parts, *([facts] if facts.rows else [])])


def _cells(publication: Publication) -> Sequence[Cell]:
    return publication.comparison.cells if publication.comparison else ()


def _facts(runs: Sequence[RunRecord]) -> Table:
    counted: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for run in runs:
        for key, value in run.facts.items():
            counted[key]["none" if value is None else safe(value)] += 1
    rows = []
    for key, values in sorted(counted.items()):
        listed = [f"{value} ({n})" if len(values) > 1 else value for value, n in values.most_common(_LISTED)]
        more = f" and {len(values) - _LISTED} more values" if len(values) > _LISTED else ""
        rows.append([words(key), words("; ".join(listed) + more), figure(values.total())])
    columns = [text_column("fact"), text_column("value (runs)"), number_column("runs that recorded it")]
    return Table(caption="What the runs recorded of where they ran and with what", columns=columns, rows=rows)


def methods_section(publication: Publication) -> Section:
    """Return the section that defines each kind of number and names its method; only of what the report contains."""
    return Section(heading="How the numbers were obtained", parts=[Remarks(lines=list(_methods(publication)))])


def _methods(publication: Publication) -> Iterator[str]:
    comparison = publication.comparison
    if comparison is not None:
        yield introduction(comparison) + "."
        yield (
            "The unit is the seed: a run gives one number, the last value of its metric, and runs with the same seed "
            "are averaged first. Means and speed-ups have 95 % intervals of Student's t; differences have 90 % "
            "intervals: paired by the seeds that a row shares with the reference, where these are three or more and "
            "half of the larger arm at least, or all; else by Welch. The table says which."
        )
        if any(row.unit == "runs" for cell in comparison.cells for row in cell.rows):
            yield (
                f"Where all runs repeat one seed, each run is a unit, since {comparison.metric} is a time or a rate; "
                "what another seed would do to it is in no interval."
            )
        yield (
            "A verdict compares the 90 % interval of the difference with a margin: equivalent, it lies inside; better "
            "or worse, it lies on one side of zero; non-inferior, its worse end lies inside; inconclusive, these runs "
            "cannot tell, which never means that there is no difference. The larger p value of two one-sided tests "
            "(TOST) says the same as the interval."
        )
        yield from _origin_cells(publication)
        yield from _speed_methods(comparison)
        if any(row.cost for cell in comparison.cells for row in cell.rows):
            yield (
                "Energy is that of the GPU boards alone, of whole runs, as the table says by which method and in "
                "which scope; CO2 is that energy times the factor of the cluster's profile, whose source stands in "
                "the table."
            )
        if (warning := closing(comparison)) is not None:
            yield f"{warning}."
    if publication.curves:
        yield (
            "Curves: the band is the 95 % interval of the mean over seeds, at each place by itself, as far as all "
            "seeds go. A curve with too many points is cut into stretches, and the smallest and the largest value of "
            "each stay."
        )
    for what, why in publication.left_out.items():
        yield f"{what} is not in this report: {'; '.join(line.strip() for line in why.splitlines())}."
    yield (
        "Effective precision is what a program's own products were seen to compute in; where they were not observed, "
        "what a probe measured on the device of the run; never what was asked for."
    )
    yield (
        f"Made by hpcml {publication.hpcml_version} at {publication.made_at} out of {_runs(len(publication.runs))}. An "
        "empty place in a table means that the value was not measured."
    )


def _speed_methods(comparison: Comparison) -> Iterator[str]:
    """Yield how speeds were obtained, if any row has one: of medians, or in cells where these mislead of means."""
    speeds = [(cell, row.speed) for cell in comparison.cells for row in cell.rows if row.speed is not None]
    if all(speed.step_ms is None for _, speed in speeds):
        return
    together = all(cell.steady_from_step is not None for cell, speed in speeds if speed.step_ms is not None)
    steps = "the same steps of all arms" if together else "the last half of each run's steps where runs share too few"
    yield (
        f"Speed is the median step time in steady state, over {steps}; speed-ups are ratios of time per sample, "
        "computed on logarithms. Only runs that were all computed natively have a speed."
    )
    if any(speed.speedup_of == "means" for _, speed in speeds):
        yield (
            "Where steps are of two kinds, or means tell another speed-up than medians, speed-ups and samples per "
            "second are of mean step times, as the column 'speed-up of' says; the column 'step' has the median."
        )


def _origin_cells(publication: Publication) -> Iterator[str]:
    assert publication.comparison is not None
    for cell in publication.comparison.cells:
        said = []
        if cell.margin is not None:
            config = cell.margin_source == "config"
            source = "fixed in the configuration before the runs" if config else "given afterwards, on the command line"
            said.append(f"margin {cell.margin:g}, {source}")
        if cell.steady_from_step is not None:
            said.append(f"step times over steps {cell.steady_from_step} to {cell.steady_to_step}")
        if said:
            yield f"{heading(cell)}: {'; '.join(said)}."


def reproduction_section(publication: Publication) -> Section:
    """Return the commands that submitted the runs and the one that makes the report."""
    parts: list[Part] = []
    origins = publication.origins
    if origins:
        parts.append(Paragraph(text="The runs were submitted by:"))
        parts.append(Commands(lines=[shlex.join(origin.command_line) for origin in origins]))
        columns = [
            text_column("command"),
            number_column("runs"),
            text_column("in the folder"),
            text_column("git commit"),
            text_column("hpcml"),
        ]
        rows = [
            [
                words(shlex.join(origin.command_line)),
                figure(origin.n_runs),
                words(origin.cwd),
                words(
                    None if origin.git_commit is None else f"{origin.git_commit}{' + changes' * bool(origin.git_dirty)}"
                ),
                words(origin.hpcml_version),
            ]
            for origin in origins
        ]
        parts.append(Table(caption="Where each command was typed, and with which code", columns=columns, rows=rows))
    if publication.without_origin:
        lines = [f"{_runs(n)}: {why}" for why, n in sorted(publication.without_origin.items())]
        parts += [Paragraph(text="Of these runs the command is not known:"), Remarks(lines=lines)]
    parts.append(Paragraph(text="This report is made again by:"))
    parts.append(Commands(lines=[shlex.join(publication.command_line)]))
    return Section(heading="Reproduce", parts=parts)
