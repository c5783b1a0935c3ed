"""`hpcml runs`: runs as table, Markdown, CSV and JSON; also short texts about one run that other commands use."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any, Literal

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hpcml.codec import Json, encode
from hpcml.model.choices import Numerics
from hpcml.model.divergence import divergence_words
from hpcml.model.metric_goal import shown_metric
from hpcml.model.precision import contradicts
from hpcml.model.record_keys import MEASURED, begun_at, value_of
from hpcml.model.records import RunRecord, spell_job
from hpcml.model.state import State
from hpcml.report.render.data import csv_text, json_ready, json_text
from hpcml.report.render.markdown import markdown_table, safe_markdown
from hpcml.report.text import duration, number, safe


def short_uid(uid: str) -> str:
    """Return the part of *uid* that people type: what follows its date and time.

    >>> short_uid("20261122-181500-a1b2c3")
    'a1b2c3'
    """
    return uid.rpartition("-")[2]


def title(run: RunRecord) -> str:
    """Return the run's name, else its model's, else ""."""
    return run.name or str(run.params.get("model.name") or "")


def name_heading(runs: Iterable[RunRecord]) -> str:
    """Return what the names of a table of *runs* are, as ``--where`` calls it: models where none has a name."""
    return "name" if any(run.name for run in runs) else "model"


def name_words(run: RunRecord, heading: str) -> str:
    """Return the run's name, or its model, as the *heading* of `name_heading` says."""
    return str((run.name if heading == "name" else run.params.get("model.name")) or "")


def tags_line(run: RunRecord) -> str:
    """Return one line with the uid and the tags of the run."""
    return safe(f"{run.uid}  {', '.join(run.tags) or 'no tags'}")


def notes_line(run: RunRecord) -> str:
    """Return one line with the uid and the number of notes of the run."""
    return f"{run.uid}  {len(run.notes)} note{'s' if len(run.notes) != 1 else ''}"


def precision_words(run: RunRecord) -> str:
    """Return the precision asked for; also the measured one and the numerics, where they differ from that.

    For example ``tf32``, ``tf32 -> fp32``, ``bf16 (emulated)``, or ``own: fp32`` where nothing was asked for.
    """
    sign = " -> " if contradicts(run.precision, run.precision_effective) else ": "
    differs = run.precision_effective not in (None, run.precision)
    measured = f"{sign}{run.precision_effective}" if differs else ""
    return f"{run.precision}{measured}{'' if is_native(run) else f' ({run.numerics})'}"


def objective_of(run: RunRecord) -> str:
    """Return the metric by which the run is judged, "" where it has none."""
    return str(run.params.get("objective.metric") or "")


def key_metric(run: RunRecord, metric: str | None) -> tuple[str, float | None]:
    """Return name and last value of *metric*, by default the run's objective; nan where the value is not finite.

    The value is None where the run has no such metric, the name "" where it has no objective either.
    """
    name = metric or objective_of(run)
    summary = run.metrics.get(name)
    return name, None if summary is None else summary.last_or_nan


def metric_beside_objectives(runs: Sequence[RunRecord]) -> str | None:
    """Return a metric to show of *runs* none of which reported its objective; None where one did, and without any."""
    if any(objective_of(run) in run.metrics for run in runs):
        return None
    return shown_metric(None, {name for run in runs for name in run.metrics})


def metric_words(value: float | None) -> str:
    """Return the last value of a metric as text, "not finite" for nan, which may stand for an infinity; "" for None."""
    return "not finite" if value is not None and math.isnan(value) else number(value)


def submitted_at(run: RunRecord) -> float | None:
    """Return when the run was submitted, else when it started, in unix seconds; None where neither is known."""
    return begun_at(run.submitted_at, run.t_start)


def is_native(run: RunRecord) -> bool:
    """Whether all arithmetic of the run was native, so that its times say something about its precision."""
    return run.numerics == Numerics.native.name


def job_words(run: RunRecord) -> str:
    """Return the id of the run's job as its scheduler writes it, and whether several runs share the job.

    For example ``slurm 4711_3``, ``pbs 4711[3].server (shared)``, ``slurm 4711 on big`` where the site has several
    clusters; "-" stands for a job that is not known yet.
    """
    job = "-" if run.job_id is None else spell_job(run.job_id, run.array_index)
    where = f" on {run.job_cluster}" if run.job_cluster else ""
    return f"{run.scheduler} {job}{where}{' (shared)' * run.is_shared}"


def keys_in(columns: str | None) -> list[str]:
    """Return the keys of a list like ``uid,state,val_accuracy``; [] for None.

    >>> keys_in("uid, state,")
    ['uid', 'state']
    """
    return [key.strip() for key in (columns or "").split(",") if key.strip()]


def rows_of(runs: Sequence[RunRecord], keys: Sequence[str], *, now: float) -> list[list[Any]]:
    """Return the values of each run under *keys*; *now* is in unix seconds, for the age. None where a run has none."""
    return [[value_of(run, key, now=now) for key in keys] for run in runs]


SHOWN_SETTINGS = ("model.name", "objective.metric")  # those that a table of runs has a use for
_NONE: Mapping[str, str] = {}
_HEADINGS = ("run", "experiment", "name", "settings", "precision", "seed", "state", "cause", "", "wall", "age")
_EXPERIMENT, _NAME, _SETTINGS, _PRECISION, _SEED, _STATE, _CAUSE, _METRIC, _WALL, _AGE = range(1, len(_HEADINGS))
_RIGHT = (_SEED, _METRIC, _WALL, _AGE)
_CUT = {
    _SETTINGS: 24,
    _PRECISION: 19,
    _NAME: 10,
    _EXPERIMENT: 8,
}  # may end in an ellipsis, but not before so many characters
_METRIC_TITLE = 12  # of its title so much is kept, of its values all
_DISPENSABLE = (
    _AGE,
    _WALL,
    _EXPERIMENT,
    _NAME,
    _SEED,
    _SETTINGS,
    _CAUSE,  # alone says of a run that completed that it diverged
    _METRIC,
)  # left out where there is no room, in this order
_TELLING_NOTHING = (_EXPERIMENT, _NAME, _PRECISION)  # where they are the same in all runs: left out after the times
STATE_STYLES = {State.COMPLETED: "green", State.RUNNING: "cyan", State.PENDING: "dim"}


def runs_table(
    runs: Sequence[RunRecord],
    *,
    console: Console,
    now: float,
    metric: str | None = None,
    apart: Mapping[str, str] = _NONE,
) -> RenderableType:
    """Return a table with a line for each of *runs*, in their order; *metric* is by default each run's objective.

    *now* is in unix seconds; an age counts from submission. *apart* is by uid what tells a run from the
    others. In a narrow console names are cut and columns left out.
    """
    if_any = _if_any(metric)
    show_uid, metric = _uid_words(runs), metric or metric_beside_objectives(runs)
    headings = [safe(heading) for heading in _headings(runs, metric)]
    rows = [[safe(word) for word in _words(run, headings[_NAME], now, metric, show_uid, apart)] for run in runs]
    widths, gap = _lay_out(headings, rows, console.width, if_any)
    if sum(widths.values()) + gap * (len(widths) - 1) > console.width:  # nothing more can be left out: rich cuts
        return _cut_table(headings, rows, [run.state for run in runs], widths, gap if console.is_terminal else None)
    return _Lines(headings=headings, rows=rows, states=[run.state for run in runs], widths=widths, gap=gap)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """What rich's own table would draw of words and widths that are known, which takes it most of a second a thousand.

    On a terminal the headings are bold and have a line below them, and states are coloured.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    states: Sequence[State]
    widths: Mapping[int, int]
    gap: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield the lines, as rich asks for them."""
        space, styles = " " * self.gap, {state: console.get_style(STATE_STYLES.get(state, "red")) for state in State}
        yield Segment(space.join(self._cells(self.headings)), console.get_style("table.header"))
        yield Segment.line()
        if console.is_terminal:
            yield Segment("─" * (sum(self.widths.values()) + self.gap * (len(self.widths) - 1)))
            yield Segment.line()
        at = list(self.widths).index(_STATE)
        for row, state in zip(self.rows, self.states, strict=True):
            cells = self._cells(row)
            yield Segment(space.join([*cells[:at], ""]))
            yield Segment(cells[at], styles[state])
            yield Segment(space.join(["", *cells[at + 1 :]]))
            yield Segment.line()

    def _cells(self, words: Sequence[str]) -> list[str]:
        return [_cell(words[column], width, column) for column, width in self.widths.items()]


def _cell(word: str, width: int, column: int) -> str:
    missing = width - cell_len(word)
    if missing < 0:
        return f"{set_cell_size(word, width - 1)}…"
    return f"{' ' * missing}{word}" if column in _RIGHT else f"{word}{' ' * missing}"


def _cut_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    states: Sequence[State],
    widths: Mapping[int, int],
    gap: int | None,
) -> Table:
    """Return the table as rich draws it, for consoles that are too narrow; *gap* is None where it is no terminal."""
    # SIMPLE_HEAD brings one column of space along
    drawn, padding = (None, 1) if gap is None else (box.SIMPLE_HEAD, gap - 1)
    table = Table(box=drawn, padding=(0, padding, 0, 0), pad_edge=False, show_edge=False)
    for column, width in widths.items():
        justify: Literal["right", "left"] = "right" if column in _RIGHT else "left"
        table.add_column(Text(headings[column]), justify=justify, no_wrap=True, overflow="ellipsis", width=width)
    for state, words in zip(states, rows, strict=True):
        styles = {_STATE: STATE_STYLES.get(state, "red")}
        table.add_row(*(Text(words[column], style=styles.get(column, "")) for column in widths))
    return table


def _if_any(metric: str | None) -> Sequence[int]:
    """Return the columns that are there only where a run has something in them; a *metric* that was asked for stays."""
    return (_SETTINGS, _CAUSE, _METRIC) if metric is None else (_SETTINGS, _CAUSE)


def _lay_out(
    headings: Sequence[str], rows: Sequence[Sequence[str]], available: int, if_any: Sequence[int]
) -> tuple[dict[int, int], int]:
    """Return the columns that fit, with their widths, and the space between them; of *if_any* those with words."""
    of_words = [max((cell_len(row[column]) for row in rows), default=0) for column in range(len(headings))]
    whole = {
        column: max(cell_len(heading), of_words[column])
        for column, heading in enumerate(headings)
        if column not in if_any or of_words[column]
    }
    if sum(whole.values()) + 2 * (len(whole) - 1) <= available:
        return whole, 2
    widths = {column: min(width, _CUT.get(column, width)) for column, width in whole.items()}
    if _METRIC in whole:
        widths[_METRIC] = max(of_words[_METRIC], min(whole[_METRIC], _METRIC_TITLE))

    def spare() -> int:
        return available - sum(widths.values()) - (len(widths) - 1)

    alike = [column for column in _TELLING_NOTHING if len({row[column] for row in rows}) == 1]
    for column in (*_DISPENSABLE[:2], *alike, *_DISPENSABLE[2:]):
        if spare() < 0:
            widths.pop(column, None)
    for _ in range(spare()):
        if cut := [column for column in (*_CUT, _METRIC) if column in widths and widths[column] < whole[column]]:
            widths[min(cut, key=widths.__getitem__)] += 1
    return widths, 1


def runs_markdown(
    runs: Sequence[RunRecord], *, now: float, metric: str | None = None, apart: Mapping[str, str] = _NONE
) -> str:
    """Return the table as Markdown, with whole uids; *apart* as in `runs_table`."""
    if_any = set(_if_any(metric)) - {_CAUSE}
    metric = metric or metric_beside_objectives(runs)
    headings = [safe_markdown(heading) for heading in _headings(runs, metric)]
    rows = [[safe_markdown(word) for word in _words(run, headings[_NAME], now, metric, str, apart)] for run in runs]
    is_empty = {column for column in if_any if not any(row[column] for row in rows)}
    shown = [column for column in range(len(_HEADINGS)) if column not in is_empty]
    right = [at for at, column in enumerate(shown) if column in _RIGHT]
    picked = [[row[column] for column in shown] for row in (headings, *rows)]
    return "\n".join([*markdown_table(picked[0], picked[1:], right=right), ""])


def runs_json(runs: Iterable[RunRecord]) -> Iterator[str]:
    """Yield, in pieces, a JSON list with everything known of each run; keys are those of `record_json`.

    Values that are not known are null, values that are not finite are texts. As one text that of ten thousand runs
    would take half a gigabyte.
    """
    before = "[\n"
    for run in runs:
        yield before + indent(json_text(record_json(run)).rstrip("\n"), "  ")
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def runs_csv(runs: Sequence[RunRecord]) -> str:
    """Return a line of CSV for each run: identity, outcome, every setting and fact, last values, usage."""
    return csv_text(*run_columns(runs))


def run_columns(runs: Sequence[RunRecord]) -> tuple[list[str], list[list[object]]]:
    """Return headings, and each run's values under them; lists as JSON, None where a run has no value.

    First come the fields of the record, then the settings of all runs under their own names, ``facts.*``, ``metrics.*``
    (last values, nan where they are not finite), ``usage.*`` and ``work.*``; each part but the first is sorted by name
    or in the order of its record. `hpcml.api.store` makes its frames of it.
    """
    plain: tuple[str, ...] = ("uid", "experiment", "name", "state", "cause", "reason", "exit_code", "attempt")
    plain = (*plain, "scheduler", "job_id", "submission", "incomplete")
    more = ("submitted_at", "t_start", "t_end", "wall_s", "precision_effective", "numerics", "git_commit", "git_dirty")
    settings = sorted({key for run in runs for key in run.params} - {"experiment", "name"})
    facts = sorted({key for run in runs for key in run.facts})
    metrics = sorted({key for run in runs for key in run.metrics})
    measured = [
        (space, name)
        for space, names in MEASURED.items()
        for name in names
        if any(_measured(run, space, name) is not None for run in runs)
    ]
    rows = []
    for run in runs:
        now = {**run.params, "tags": list(run.tags)}  # the tags that it has now
        values: list[object] = [*(encode(getattr(run, key)) for key in (*plain, *more)), divergence_words(run)]
        values += [_field(now.get(key)) for key in settings] + [_field(run.facts.get(key)) for key in facts]
        values += [key_metric(run, key)[1] for key in metrics]
        values += [_measured(run, space, name) for space, name in measured]
        rows.append(values)
    headings = [
        *plain,
        *more,
        "diverged",
        *settings,
        *(f"facts.{key}" for key in facts),
        *(f"metrics.{key}" for key in metrics),
    ]
    return [*headings, *(f"{space}.{name}" for space, name in measured)], rows


def record_json(run: RunRecord) -> Json:
    """Return *run* as JSON values: the fields of `RunRecord`, `incomplete` and `diverged`."""
    return json_ready(
        {
            **encode(run),
            **{key: encode(dict(getattr(run, key))) for key in ("params", "facts", "metrics")},
            "incomplete": run.incomplete,
            "diverged": divergence_words(run),
        }
    )


def _measured(run: RunRecord, space: str, name: str) -> object:
    record = getattr(run, space)
    return None if record is None else getattr(record, name)


def _field(value: object) -> object:
    return json.dumps(value, sort_keys=True, default=str) if isinstance(value, list | tuple | dict) else value


def _headings(runs: Sequence[RunRecord], metric: str | None) -> list[str]:
    metrics = {key_metric(run, metric)[0] for run in runs}
    headings = list(_HEADINGS)
    headings[_NAME] = name_heading(runs)
    headings[_METRIC] = metrics.pop() or "metric" if len(metrics) == 1 else "metric"
    return headings


def cause_words(run: RunRecord) -> str:
    """Return in a word why the run ended without success, or what is wrong with one that completed; "" for nothing."""
    return run.cause or ("incomplete" if run.incomplete else "diverged" if divergence_words(run) else "")


def _words(
    run: RunRecord,
    named: str,
    now: float,
    metric: str | None,
    show_uid: Callable[[str], str],
    apart: Mapping[str, str],
) -> list[str]:
    since = submitted_at(run)
    return [
        show_uid(run.uid),
        run.experiment,
        name_words(run, named),
        apart.get(run.uid, ""),
        precision_words(run),
        str(run.seed),
        run.state.value,
        cause_words(run),
        metric_words(key_metric(run, metric)[1]),
        duration(run.wall_s),
        "" if since is None else duration(max(0.0, now - since)),
    ]


def _uid_words(runs: Sequence[RunRecord]) -> Callable[[str], str]:
    """Return how uids are shown: their ends where these differ, else whole."""
    is_unique = len({short_uid(run.uid) for run in runs}) == len({run.uid for run in runs})
    return short_uid if is_unique else str
