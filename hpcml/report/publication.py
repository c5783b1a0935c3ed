"""`hpcml report`: the whole report as a document: conclusions first, then results, environment, methods, commands."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from hpcml.analysis.compare.result import Cell, Comparison, ReportGroup
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.model.told_apart import alike_words
from hpcml.report.charts import Styles, level_styles
from hpcml.report.comparison import comparison_section, hours_section, introduction
from hpcml.report.contents import Origin, Publication
from hpcml.report.curves import curve_chart
from hpcml.report.document import (
    Column,
    Commands,
    Document,
    Findings,
    Listing,
    Paragraph,
    Part,
    Remarks,
    Section,
    Tone,
)
from hpcml.report.finding import findings_of, tallied
from hpcml.report.live import live_section, so_far
from hpcml.report.runs import cause_words, key_metric, metric_beside_objectives, metric_words, objective_of
from hpcml.report.scaling import scaling_section
from hpcml.report.search import search_section
from hpcml.report.telemetry import telemetry_section
from hpcml.report.text import duration, safe
from hpcml.report.utilization import utilization_section


def publication_document(publication: Publication) -> Document:
    """Return the whole report; `hpcml.report.render` makes HTML, Markdown or LaTeX of it.

    A section of which nothing is known is left out: curves, telemetry, scaling, utilization. A new section is a
    function that returns a `Section` or None, and a line here.
    """
    styles = _styles(publication)
    sections: list[Section | None] = [
        _summary(publication),
        live_section(publication) if publication.live else None,
        search_section(publication.study) if publication.study else None,
        comparison_section(publication.comparison, styles) if publication.comparison else None,
        _curves(publication, styles),
        telemetry_section(publication, styles),
        scaling_section(publication.scaling) if publication.scaling else None,
        utilization_section(publication.attainment) if publication.attainment else None,
        hours_section(*publication.hours) if publication.hours else None,
        environment_section(publication),
        runs_section(publication),
        methods_section(publication),
        reproduction_section(publication),
    ]
    return Document(
        title=publication.title,
        introduction=f"{_counted(publication)} · by {publication.by} · {publication.made_at}",
        sections=[section for section in sections if section is not None],
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
        found = list(findings_of(publication.comparison, so_far=publication.live is not None))
        if verdicts := tallied([(each.verdict, each.about) for each in found]):
            parts.append(Remarks(lines=[f"{verdict}: {which}" for verdict, which in verdicts]))
        parts.append(Findings(findings=found))
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


def runs_section(publication: Publication) -> Section:
    """Return the section of all runs; those that do not count come first, with the reason.

    A run that has not completed does not count, nor one whose records are incomplete, or that the comparison excludes.
    """
    levels = {uid: level.name for group in publication.groups for level in group.levels for uid in level.uids}
    left_out = _left_out(publication, levels)
    parts: list[Part] = [left_out] if left_out.rows else [Paragraph(text="Every run counts.")]
    return Section(heading="Runs", parts=[*parts, _all_runs(publication, levels)])


def _left_out(publication: Publication, levels: Mapping[str, str]) -> Listing[tuple[RunRecord, str]]:
    found = publication.comparison
    without = (found.excluded, *(cell.excluded for cell in found.cells)) if found else ()
    why = {each.uid: each.reason for excluded in without for each in excluded}
    for run in publication.runs:
        if run.state is not State.COMPLETED:
            why.setdefault(run.uid, run.reason or run.state.value)
        elif run.incomplete is not None:
            why.setdefault(run.uid, f"incomplete: {run.incomplete}")
    runs = {run.uid: run for run in publication.runs}
    columns: list[Column[tuple[RunRecord, str]]] = [
        Column("run", "run", lambda row: row[0].uid),
        Column("name", "name", lambda row: row[0].name),
        Column("level", publication.by, lambda row: levels.get(row[0].uid)),
        Column("state", "state", lambda row: row[0].state.value, tone=lambda row: _tone(row[0])),
        Column("cause", "cause", lambda row: cause_words(row[0])),
        Column("exit_code", "exit code", lambda row: row[0].exit_code),
        Column("why", "why it does not count", lambda row: row[1]),
    ]
    rows = [(runs[uid], reason) for uid, reason in sorted(why.items()) if uid in runs]
    return Listing(caption="Runs that do not count", columns=columns, rows=rows)


def _all_runs(publication: Publication, levels: Mapping[str, str]) -> Listing[RunRecord]:
    metric = publication.comparison.metric if publication.comparison else None
    if metric is None:
        named = {objective_of(run) for run in publication.runs}
        metric = metric_beside_objectives(publication.runs) or (named.pop() if len(named) == 1 else None)
    columns: list[Column[RunRecord]] = [
        Column("run", "run", lambda run: run.uid),
        Column("name", "name", lambda run: run.name),
        Column("experiment", "experiment", lambda run: run.experiment),
        Column("level", publication.by, lambda run: levels.get(run.uid)),
        Column("seed", "seed", lambda run: run.seed),
        *([] if publication.by == "precision" else [_requested()]),
        Column("effective", "effective precision", lambda run: run.precision_effective or "not proven"),
        Column("numerics", "numerics", lambda run: run.numerics),
        Column("state", "state", lambda run: run.state.value, tone=_tone),
        Column(
            "metric",
            metric or "objective",
            lambda run: key_metric(run, metric)[1],
            lambda run: metric_words(key_metric(run, metric)[1]),
        ),
        Column("wall_s", "wall time", lambda run: run.wall_s, lambda run: duration(run.wall_s)),
        Column("attempt", "attempt", lambda run: run.attempt),
        Column("energy_kj", "energy", _energy_kj, unit="kJ"),
        Column("power_w", "mean power", lambda run: run.usage and run.usage.mean_power_w, unit="W"),
        Column("tags", "tags", lambda run: list(run.tags)),
        Column("git", "git", _commit),
    ]
    caption = "The only run" if len(publication.runs) == 1 else f"All {len(publication.runs)} runs"
    return Listing(caption=caption, columns=columns, rows=publication.runs)


def _requested() -> Column[RunRecord]:
    return Column("precision", "requested precision", lambda run: run.precision)


def _energy_kj(run: RunRecord) -> float | None:
    return None if run.usage is None or run.usage.energy_j is None else run.usage.energy_j / 1000


def _commit(run: RunRecord) -> str | None:
    return None if run.git_commit is None else f"{run.git_commit[:10]}{' + changes' * bool(run.git_dirty)}"


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


def _facts(runs: Sequence[RunRecord]) -> Listing[tuple[str, Counter[str]]]:
    counted: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for run in runs:
        for key, value in run.facts.items():
            counted[key]["none" if value is None else safe(value)] += 1

    def values(row: tuple[str, Counter[str]]) -> str:
        listed = [f"{value} ({n})" if len(row[1]) > 1 else value for value, n in row[1].most_common(_LISTED)]
        return "; ".join(listed) + (f" and {len(row[1]) - _LISTED} more values" if len(row[1]) > _LISTED else "")

    columns: list[Column[tuple[str, Counter[str]]]] = [
        Column("fact", "fact", lambda row: row[0]),
        Column("values", "value (runs)", values),
        Column("runs", "runs that recorded it", lambda row: row[1].total()),
    ]
    caption = "What the runs recorded of where they ran and with what"
    return Listing(caption=caption, columns=columns, rows=sorted(counted.items()))


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
            "half of the larger arm at least, or all; else by Welch. The notes below a table say which."
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
        yield from _speed_methods(comparison)
        if any(row.cost for cell in comparison.cells for row in cell.rows):
            yield (
                "Energy is that of the GPU boards alone, of whole runs; CO2 is that energy times the factor of the "
                "cluster's profile. The notes below a table say by which method, and where the factor is from."
            )
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
    """Yield how speeds were obtained, if any row has one."""
    speeds = [row.speed for cell in comparison.cells for row in cell.rows if row.speed is not None]
    if any(speed.step_ms is not None for speed in speeds):
        yield (
            "Speed is the median step time in steady state, of the steps that a note below the table names, or the "
            "mean where a footnote says so; speed-ups are ratios of time per sample, computed on logarithms. Only runs "
            "that were all computed natively have a speed."
        )


def reproduction_section(publication: Publication) -> Section:
    """Return the commands that submitted the runs and the one that makes the report."""
    parts: list[Part] = []
    origins = publication.origins
    if origins:
        parts.append(Paragraph(text="The runs were submitted by:"))
        parts.append(Commands(lines=[shlex.join(origin.command_line) for origin in origins]))
        columns: list[Column[Origin]] = [
            Column("command", "command", lambda origin: shlex.join(origin.command_line)),
            Column("runs", "runs", lambda origin: origin.n_runs),
            Column("folder", "in the folder", lambda origin: origin.cwd),
            Column(
                "git_commit",
                "git commit",
                lambda origin: origin.git_commit and f"{origin.git_commit}{' + changes' * bool(origin.git_dirty)}",
            ),
            Column("hpcml", "hpcml", lambda origin: origin.hpcml_version),
        ]
        caption = "Where each command was typed, and with which code"
        parts.append(Listing(caption=caption, columns=columns, rows=origins))
    if publication.without_origin:
        lines = [f"{_runs(n)}: {why}" for why, n in sorted(publication.without_origin.items())]
        parts += [Paragraph(text="Of these runs the command is not known:"), Remarks(lines=lines)]
    parts.append(Paragraph(text="This report is made again by:"))
    parts.append(Commands(lines=[shlex.join(publication.command_line)]))
    return Section(heading="Reproduce", parts=parts)
