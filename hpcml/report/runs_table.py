"""Many runs, one line each: for the terminal, for Markdown, and for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcml.codec import Json, encode
from hpcml.record_keys import MEASURED
from hpcml.records import RunRecord
from hpcml.report.plain_text import duration, json_ready, markdown_table, safe, safe_markdown
from hpcml.report.run_words import key_metric, metric_words, precision_words, short_uid, submitted_at, title
from hpcml.report.spreadsheet import csv_cell
from hpcml.states import State

_HEADINGS = ("run", "experiment", "name", "precision", "seed", "state", "cause", "", "wall", "age")
_EXPERIMENT, _NAME, _PRECISION, _SEED, _STATE, _CAUSE, _METRIC, _WALL, _AGE = range(1, len(_HEADINGS))
_RIGHT = (_SEED, _METRIC, _WALL, _AGE)
_CUT = {_PRECISION: 19, _NAME: 10, _EXPERIMENT: 8}  # may end in an ellipsis, but not before so many characters
_METRIC_TITLE = 12  # of its title so much is kept, of its values all
_DISPENSABLE = (
    _AGE,
    _WALL,
    _EXPERIMENT,
    _NAME,
    _SEED,
    _CAUSE,
    _METRIC,
)  # left out where there is no room, in this order
_STYLES = {State.COMPLETED: "green", State.RUNNING: "cyan", State.PENDING: "dim"}


def runs_table(runs: Sequence[RunRecord], *, console: Console, now: float, metric: str | None = None) -> Table:
    """Return a table of *runs* in their order, each in one line; *metric* is shown, by default each run's objective.

    *now* is in unix seconds; an age counts from submission. In a narrow console names are cut and columns left out.
    """
    show_uid = _uid_words(runs)
    headings = [safe(heading) for heading in _headings(runs, metric)]
    rows = [[safe(word) for word in _words(run, now, metric, show_uid)] for run in runs]
    widths, gap = _lay_out(headings, rows, console.width)
    # SIMPLE_HEAD brings one column of space along
    drawn, padding = (box.SIMPLE_HEAD, gap - 1) if console.is_terminal else (None, gap)
    table = Table(box=drawn, padding=(0, padding, 0, 0), pad_edge=False, show_edge=False)
    for column, width in widths.items():
        justify: Literal["right", "left"] = "right" if column in _RIGHT else "left"
        table.add_column(Text(headings[column]), justify=justify, no_wrap=True, overflow="ellipsis", width=width)
    for run, words in zip(runs, rows, strict=True):
        styles = {_STATE: _STYLES.get(run.state, "red")}
        table.add_row(*(Text(words[column], style=styles.get(column, "")) for column in widths))
    return table


def _lay_out(headings: Sequence[str], rows: Sequence[Sequence[str]], available: int) -> tuple[dict[int, int], int]:
    """Return the columns that there is room for, with their widths, and the space between them."""
    of_words = [max((cell_len(row[column]) for row in rows), default=0) for column in range(len(headings))]
    whole = {
        column: max(cell_len(heading), of_words[column])
        for column, heading in enumerate(headings)
        if column != _CAUSE or of_words[column]  # only where something failed
    }
    if sum(whole.values()) + 2 * (len(whole) - 1) <= available:
        return whole, 2
    widths = {column: min(width, _CUT.get(column, width)) for column, width in whole.items()}
    widths[_METRIC] = max(of_words[_METRIC], min(whole[_METRIC], _METRIC_TITLE))

    def spare() -> int:
        return available - sum(widths.values()) - (len(widths) - 1)

    for column in _DISPENSABLE:
        if spare() < 0:
            widths.pop(column, None)
    for _ in range(spare()):
        if cut := [column for column in (*_CUT, _METRIC) if widths.get(column, whole[column]) < whole[column]]:
            widths[min(cut, key=widths.__getitem__)] += 1
    return widths, 1


def runs_markdown(runs: Sequence[RunRecord], *, now: float, metric: str | None = None) -> str:
    """Return the same table as Markdown, with whole ids."""
    headings = [safe_markdown(heading) for heading in _headings(runs, metric)]
    rows = [[safe_markdown(word) for word in _words(run, now, metric, str)] for run in runs]
    return "\n".join([*markdown_table(headings, rows, right=_RIGHT), ""])


def runs_json(runs: Sequence[RunRecord]) -> str:
    """Return a JSON list with everything that is known of each run; keys are the fields of `RunRecord`."""
    return json.dumps([record_json(run) for run in runs], indent=2, allow_nan=False) + "\n"


def runs_csv(runs: Sequence[RunRecord]) -> str:
    """Return a line for each run: what it is, how it ended, every setting and fact, last values, what it used."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    headings, rows = run_columns(runs)
    writer.writerow([csv_cell(heading) for heading in headings])
    for values in rows:
        writer.writerow([csv_cell(value) for value in values])
    return target.getvalue()


def run_columns(runs: Sequence[RunRecord]) -> tuple[list[str], list[list[object]]]:
    """Return headings, and each run's values under them; lists as JSON, None for what a run has not."""
    plain: tuple[str, ...] = ("uid", "experiment", "name", "state", "cause", "reason", "exit_code", "attempt")
    plain = (*plain, "scheduler", "job_id", "submission")
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
        values: list[object] = [encode(getattr(run, key)) for key in (*plain, *more)]
        values += [_field(now.get(key)) for key in settings] + [_field(run.facts.get(key)) for key in facts]
        values += [key_metric(run, key)[1] for key in metrics]
        values += [_measured(run, space, name) for space, name in measured]
        rows.append(values)
    headings = [*plain, *more, *settings, *(f"facts.{key}" for key in facts), *(f"metrics.{key}" for key in metrics)]
    return [*headings, *(f"{space}.{name}" for space, name in measured)], rows


def record_json(run: RunRecord) -> Json:
    """Return *run* as JSON values."""
    return json_ready(
        {**encode(run), **{key: encode(dict(getattr(run, key))) for key in ("params", "facts", "metrics")}}
    )


def _measured(run: RunRecord, space: str, name: str) -> object:
    record = getattr(run, space)
    return None if record is None else getattr(record, name)


def _field(value: object) -> object:
    return json.dumps(value, sort_keys=True, default=str) if isinstance(value, list | tuple | dict) else value


def _headings(runs: Sequence[RunRecord], metric: str | None) -> list[str]:
    metrics = {key_metric(run, metric)[0] for run in runs}
    headings = list(_HEADINGS)
    headings[_METRIC] = metrics.pop() or "metric" if len(metrics) == 1 else "metric"
    return headings


def _words(run: RunRecord, now: float, metric: str | None, show_uid: Callable[[str], str]) -> list[str]:
    since = submitted_at(run)
    return [
        show_uid(run.uid),
        run.experiment,
        title(run),
        precision_words(run),
        str(run.seed),
        run.state.value,
        run.cause or "",
        metric_words(key_metric(run, metric)[1]),
        duration(run.wall_s),
        "" if since is None else duration(max(0.0, now - since)),
    ]


def _uid_words(runs: Sequence[RunRecord]) -> Callable[[str], str]:
    is_unique = len({short_uid(run.uid) for run in runs}) == len({run.uid for run in runs})
    return short_uid if is_unique else str
