"""The runs behind a report: all of them, those that do not count, and what they ran on and with."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from hpcml.comparison import Cell
from hpcml.publication import Publication
from hpcml.records import RunRecord
from hpcml.report.plain_text import safe
from hpcml.report.run_words import key_metric, metric_words, title
from hpcml.report.study.entries import NOTHING, figure, number_column, span, text_column, words
from hpcml.report.study.parts import Column, Entry, Listed, Paragraph, Part, Section, Table, Tone
from hpcml.states import State

_LISTED = 6  # values of one fact


def runs_section(publication: Publication) -> Section:
    """Return all runs, and before them those that do not count, with the reason."""
    levels = {uid: level.name for group in publication.groups for level in group.levels for uid in level.uids}
    left_out = _left_out(publication, levels)
    parts: list[Part] = [left_out] if left_out.rows else [Paragraph(text="Every run counts.")]
    return Section(heading="Runs", parts=[*parts, _all_runs(publication, levels)])


def _left_out(publication: Publication, levels: Mapping[str, str]) -> Table:
    cells = publication.comparison.cells if publication.comparison else ()
    why = {each.uid: each.reason for cell in cells for each in cell.excluded}
    for run in publication.runs:
        if run.state is not State.COMPLETED:
            why.setdefault(run.uid, run.reason or run.state.value)
    runs = {run.uid: run for run in publication.runs}
    rows = [
        [
            words(uid),
            words(title(runs[uid]) or None),
            words(levels.get(uid)),
            words(runs[uid].state.value, _tone(runs[uid])),
            words(runs[uid].cause),
            figure(runs[uid].exit_code),
            words(reason),
        ]
        for uid, reason in sorted(why.items())
        if uid in runs
    ]
    columns: list[Column] = [*map(text_column, ("run", "name", publication.by, "state", "cause"))]
    columns += [number_column("exit code"), text_column("why it does not count")]
    return Table(caption="Runs that do not count", columns=columns, rows=rows)


def _all_runs(publication: Publication, levels: Mapping[str, str]) -> Table:
    metric = publication.comparison.metric if publication.comparison else None
    if metric is None:
        named = {key_metric(run, None)[0] for run in publication.runs}
        metric = named.pop() if len(named) == 1 else None
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
        number_column("attempts"),
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
    shown = [at for at in range(len(columns)) if any(row[at].text for row in rows)]
    return Table(
        caption=f"All {len(rows)} runs",
        columns=[columns[at] for at in shown],
        rows=[[row[at] for at in shown] for row in rows],
    )


def _metric(run: RunRecord, metric: str | None) -> Entry:
    value = key_metric(run, metric)[1]
    return NOTHING if value is None else Entry(text=metric_words(value), order=figure(value).order)


def _tone(run: RunRecord) -> Tone:
    if run.state is State.COMPLETED:
        return "plain"
    return "bad" if run.state.is_final else "doubt"


def environment_section(publication: Publication) -> Section:
    """Return what was not alike although it should have been, what may differ, and every fact of the runs."""
    parts: list[Part] = []
    confounders = [f"CONFOUNDED by {each.kind} {each}" for cell in _cells(publication) for each in cell.confounders]
    if confounders:
        parts.append(Listed(lines=list(dict.fromkeys(confounders)), tones=["bad"] * len(dict.fromkeys(confounders))))
    elif publication.comparison is not None:
        parts.append(
            Paragraph(text="Within each cell the runs that count are alike in all settings but the compared one.")
        )
    notes = list(dict.fromkeys(str(each) for cell in _cells(publication) for each in cell.notes))
    if notes:
        parts += [Paragraph(text="These differ, and may:"), Listed(lines=notes)]
    facts = _facts(publication.runs)
    return Section(heading="Environment and confounders", parts=[*parts, *([facts] if facts.rows else [])])


def _cells(publication: Publication) -> Sequence[Cell]:
    return publication.comparison.cells if publication.comparison else ()


def _facts(runs: Sequence[RunRecord]) -> Table:
    counted: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for run in runs:
        for key, value in run.facts.items():
            counted[key][safe(value)] += 1
    rows = []
    for key, values in sorted(counted.items()):
        listed = [f"{value} ({n})" if len(values) > 1 else value for value, n in values.most_common(_LISTED)]
        more = f" and {len(values) - _LISTED} more values" if len(values) > _LISTED else ""
        rows.append([words(key), words("; ".join(listed) + more), figure(values.total())])
    columns = [text_column("fact"), text_column("value (runs)"), number_column("runs that recorded it")]
    return Table(caption="What the runs recorded of where they ran and with what", columns=columns, rows=rows)
