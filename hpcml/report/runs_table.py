"""Many runs, one line each: for the terminal, for Markdown, and for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcml.codec import Json, encode
from hpcml.records import RunRecord
from hpcml.report.plain_text import duration, json_ready, markdown_table, safe, safe_markdown
from hpcml.report.run_words import key_metric, metric_words, precision_words, short_uid, submitted_at, title
from hpcml.report.spreadsheet import csv_cell
from hpcml.states import State

_HEADINGS = ("run", "experiment", "name", "precision", "numerics", "seed", "state", "", "wall", "age")
_METRIC_COLUMN = 7
_RIGHT = (5, 7, 8, 9)
_FOLDED = (1, 2, 3)  # where long names come from; the rest keeps its line
_STYLES = {State.COMPLETED: "green", State.RUNNING: "cyan", State.PENDING: "dim"}


def runs_table(runs: Sequence[RunRecord], *, console: Console, now: float, metric: str | None = None) -> Table:
    """Return a table of *runs* in their order; *metric* is shown, by default each run's objective.

    *now* is in unix seconds; an age counts from submission.
    """
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, show_edge=False)
    for column, heading in enumerate(_headings(runs, metric)):
        is_number = column in _RIGHT
        table.add_column(
            Text(safe(heading)),
            justify="right" if is_number else "left",
            no_wrap=column not in _FOLDED,
            overflow="fold",
        )
    for run in runs:
        words = [Text(safe(word)) for word in _words(run, now, metric, _uid_words(runs))]
        words[6].stylize(_STYLES.get(run.state, "red"))
        table.add_row(*words)
    return table


def runs_markdown(runs: Sequence[RunRecord], *, now: float, metric: str | None = None) -> str:
    """Return the same table as Markdown, with whole ids."""
    headings = [safe_markdown(heading) for heading in _headings(runs, metric)]
    rows = [[safe_markdown(word) for word in _words(run, now, metric, str)] for run in runs]
    return "\n".join([*markdown_table(headings, rows, right=_RIGHT), ""])


def runs_json(runs: Sequence[RunRecord]) -> str:
    """Return a JSON list with everything that is known of each run; keys are the fields of `RunRecord`."""
    return json.dumps([record_json(run) for run in runs], indent=2, allow_nan=False) + "\n"


def runs_csv(runs: Sequence[RunRecord]) -> str:
    """Return one line for each run: what it is, how it ended, every setting, every fact, every metric's last value."""
    plain = ("uid", "experiment", "name", "state", "reason", "exit_code", "attempt", "scheduler", "job_id")
    more = ("submitted_at", "t_start", "t_end", "wall_s", "precision_effective", "numerics", "git_commit", "git_dirty")
    settings = sorted({key for run in runs for key in run.params} - {"experiment", "name"})
    facts = sorted({key for run in runs for key in run.facts})
    metrics = sorted({key for run in runs for key in run.metrics})
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    headings = (*plain, *more, *settings, *(f"facts.{key}" for key in facts), *(f"metrics.{key}" for key in metrics))
    writer.writerow([csv_cell(heading) for heading in headings])
    for run in runs:
        values: list[object] = [getattr(run, key) for key in (*plain, *more)]
        values += [_field(run.params.get(key)) for key in settings] + [_field(run.facts.get(key)) for key in facts]
        values += [key_metric(run, key)[1] for key in metrics]
        writer.writerow([csv_cell(value) for value in values])
    return target.getvalue()


def record_json(run: RunRecord) -> Json:
    """Return *run* as JSON values."""
    return json_ready(
        {**encode(run), **{key: encode(dict(getattr(run, key))) for key in ("params", "facts", "metrics")}}
    )


def _field(value: object) -> object:
    return json.dumps(value, sort_keys=True, default=str) if isinstance(value, list | tuple | dict) else value


def _headings(runs: Sequence[RunRecord], metric: str | None) -> list[str]:
    metrics = {key_metric(run, metric)[0] for run in runs}
    headings = list(_HEADINGS)
    headings[_METRIC_COLUMN] = metrics.pop() or "metric" if len(metrics) == 1 else "metric"
    return headings


def _words(run: RunRecord, now: float, metric: str | None, show_uid: Callable[[str], str]) -> list[str]:
    since = submitted_at(run)
    return [
        show_uid(run.uid),
        run.experiment,
        title(run),
        precision_words(run),
        run.numerics,
        str(run.seed),
        run.state.value,
        metric_words(key_metric(run, metric)[1]),
        duration(run.wall_s),
        "" if since is None else duration(max(0.0, now - since)),
    ]


def _uid_words(runs: Sequence[RunRecord]) -> Callable[[str], str]:
    is_unique = len({short_uid(run.uid) for run in runs}) == len({run.uid for run in runs})
    return short_uid if is_unique else str
