"""Queries for runs, curves, events and experiments; what commands and the Python API read from the store.

All functions take an open `Database`, use one snapshot each, and change nothing. Values of runs are looked up by
`hpcml.store.columns`, records loaded by `hpcml.store.loading`.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hpcml.errors import NoSuchRunError, StoreError
from hpcml.model.records import Curve, RunRecord, StoredEvent
from hpcml.model.state import State
from hpcml.runs.layout import NEWEST
from hpcml.spelling import did_you_mean
from hpcml.store.columns import Keyed
from hpcml.store.conditions import Condition, Every, meeting, sorted_by
from hpcml.store.database import Database
from hpcml.store.loading import RUNS, Where, is_below, load_curves, load_records, load_runs
from hpcml.store.reading import Row, StoreReader
from hpcml.store.settings import varied_settings

_SHOWN = 5  # candidates in an error's one line
_OPTIONS = frozenset({"experiment", "submission", "state"})  # by which runs are selected, beside --where
_WRITTEN = frozenset({".html", ".md", ".tex", ".json", ".csv", ".parquet"})  # by report and export
_SHORTEST_END = 4  # of a uid: a slip of the finger must not mean a run, since this is also how runs are cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The number of runs with one experiment name, by state.

    `last_submitted_at` is ISO 8601; None where no run of it has a time of submission.
    """

    name: str
    runs: int
    states: Mapping[State, int]  # only those that occur
    last_submitted_at: str | None


def find_runs(
    store: Database,
    *,
    experiment: str | None = None,
    states: Collection[State] = (),
    filters: Sequence[Condition] = (),
    sort: str | None = None,
    descending: bool = False,
    limit: int | None = None,
    settings: Collection[str] | None = None,
) -> list[RunRecord]:
    """Return the runs that meet all conditions, sorted by *sort*, or else by uid, which is by time of submission.

    Empty *states* means any. *sort* is any key that a condition may begin with (``val_accuracy``, ``duration``); runs
    without a value come last in either direction. Raises `StoreError` for a key that no run ever had. *limit* counts
    after sorting, and by time it is the newest that are kept; None means all. Times in *filters* without a zone are in
    this machine's. With *settings* the records are those of a list: they have these settings alone, no tags, notes or
    usage, and of facts the one that a run diverged.

    >>> best = find_runs(  # doctest: +SKIP
    ...     store, filters=[parse_condition("precision=tf32")], sort="val_accuracy", descending=True, limit=1
    ... )
    """
    now = datetime.now()  # noqa: DTZ005 - without a zone: this machine's, with its rules of summer time
    sql = f"SELECT id FROM run WHERE {' AND '.join(_selecting(experiment, states))} ORDER BY uid"  # noqa: S608 - our own
    with store.reading() as reading:
        wanted = [state.value for state in states]
        ids = reading.column(f"{sql} DESC" if descending else sql, experiment=experiment, states=wanted)
        values = Keyed(reading, now=now.timestamp())
        if filters:
            found = meeting(Every(of=tuple(filters)), ids, values, now=now)
            ids = [run_id for run_id in ids if run_id in found]
        if sort is not None:
            ids = sorted_by(values(sort), ids, descending=descending)
        is_by_time = sort is None and not descending
        kept = ids[-limit:] if is_by_time and limit is not None else ids[:limit]
        return load_runs(reading, kept, settings=settings)


def varied_keys(store: Database) -> set[str]:
    """Return the keys of the settings of which the store has several values."""
    with store.reading() as reading:
        return varied_settings(reading)


def _selecting(experiment: str | None, states: Collection[State]) -> list[str]:
    by_name = ["experiment = :experiment"] if experiment is not None else []
    by_state = ["state IN :states"] if states else []
    return [*by_name, *by_state] or ["id IS NOT NULL"]


def check_keys(store: Database, keys: Collection[str]) -> None:
    """Raise `StoreError` where no run ever had anything under one of *keys*; the message names similar keys.

    Commands with ``--columns`` or ``--by`` call it before they do anything else, so that a misspelt key is an error and
    not a column of nothing.
    """
    with store.reading() as reading:
        values = Keyed(reading, now=0.0)
        for key in keys:
            values(key)


def open_runs(store: Database, *roots: Path) -> list[RunRecord]:
    """Return the runs that may still change, by uid: waiting, running, or ended without a recorded reason.

    With *roots* (absolute folders) only those that lie in or below one of them. `hpcml status`, `cancel`, `rm` and the
    check for runs under way before a submission use it.
    """
    waiting_or_running = [state.value for state in State if not state.is_final]
    below = is_below(*roots) if roots else Where("run.id IS NOT NULL", {})
    sql = f"{RUNS} WHERE (run.state IN :states OR NOT run.is_settled) AND {below.sql} ORDER BY run.uid"
    with store.reading() as reading:
        return load_records(reading, reading.rows(sql, states=waiting_or_running, **below.values))


def get_run(store: Database, reference: str) -> RunRecord:
    """Return the one run that *reference* means; raise `StoreError` where it means none or several (`runs_meant`).

    >>> get_run(store, "abcde").uid  # the end is enough  # doctest: +SKIP
    '20261121-083015-222abcde'
    """
    found = runs_meant(store, reference)
    if len(found) > 1:
        raise StoreError(f"{reference} is a submission of {_several([run.uid for run in found])}; name one of them")
    return found[0]


def get_runs(store: Database, uids: Sequence[str]) -> list[RunRecord]:
    """Return the runs with these whole uids, by uid; one that the store does not have is absent."""
    with store.reading() as reading:
        return load_records(reading, reading.rows(f"{RUNS} WHERE run.uid IN :uids ORDER BY run.uid", uids=uids))


def runs_meant(store: Database, reference: str) -> list[RunRecord]:
    """Return the run with this uid or unique name, or whose uid alone begins or ends with *reference*.

    ``@1`` is the newest run, ``@2`` the one before it; ``@-1`` are all runs of the last submission, ``@-2`` those of
    the one before it. A part of a uid has four characters or more. Raises `StoreError` where no run, or but for a
    submission more than one, is meant. Looked for in this order, and the first kind that matches counts: the whole
    uid, a name, a part of a uid. Upper and lower case are alike in such a part. The message of an error lists what was
    meant, or what is similar.
    """
    with store.reading() as reading:
        if found := NEWEST.fullmatch(reference):
            rows = _newest(reading, int(found[2]), is_submission=bool(found[1]))
            if rows:
                return load_records(reading, rows)
            raise StoreError(f"{reference}: there are fewer {'submissions' if found[1] else 'runs'} than that")
        rows = reading.rows(f"{RUNS} WHERE run.uid = :uid", uid=reference)
        is_named = (
            not rows and reference != ""
        )  # a variable of the shell that is not set means no run, whatever its name
        named = reading.rows(f"{RUNS} WHERE run.name = :name ORDER BY run.uid", name=reference) if is_named else []
        if not rows and not named and len(reference) < _SHORTEST_END:
            what = f"; of an id give at least {_SHORTEST_END} characters of its end"
            raise StoreError(f"no run is called {reference!r}{_other_thing(reading, reference) or what}")
        if not rows and len(named) != 1 and len(reference) >= _SHORTEST_END:
            rows = reading.rows(_BY_PART, part=reference.lower(), length=len(reference))
        rows = rows or named
        if len(rows) == 1:
            return load_records(reading, rows)
        if rows:
            raise StoreError(f"{reference!r} means {_several([row[1] for row in rows])}; give more of the uid")
        words = {word for row in reading.rows("SELECT uid, name FROM run") for word in row if word}
        words |= {uid.rpartition("-")[2] for uid in reading.column("SELECT uid FROM run")}
        other = _other_thing(reading, reference)
        experiments = reading.column("SELECT DISTINCT experiment FROM run")
        told = f"no run is called {reference!r}{other}" if other else _not_found(reference, words, experiments)
        raise NoSuchRunError(told, reference)


_BY_PART = f"""
{RUNS} WHERE length(run.uid) >= :length
AND (substr(lower(run.uid), 1, :length) = :part OR substr(lower(run.uid), length(run.uid) - :length + 1) = :part)
ORDER BY run.uid
"""


def _other_thing(reading: StoreReader, word: str) -> str:
    """Return "; it is an experiment: ..." for a *word* that is known as something else than a run; "" for others."""
    for what, option, sql in _OTHER_THINGS:
        if reading.rows(sql, word=word):
            return f"; it is {what}: {option}{'' if option.endswith('=') else ' '}{shlex.quote(word)}"
    return f"; it is a state: --state {word.upper()}" if word.upper() in State.__members__ else ""


_OTHER_THINGS = (
    ("an experiment", "--experiment", "SELECT 1 FROM run WHERE experiment = :word LIMIT 1"),
    ("a submission", "--submission", "SELECT 1 FROM run WHERE submission = :word LIMIT 1"),
    ("a metric", "--metric", "SELECT 1 FROM metric WHERE name = :word"),
    ("a tag", "--where tag=", "SELECT 1 FROM run_tag WHERE tag = :word LIMIT 1"),
    ("a precision", "--where precision=", "SELECT 1 FROM run WHERE precision = :word LIMIT 1"),
    (
        "a setting",
        "--by",
        "SELECT 1 FROM setting WHERE key = :word OR key IN (:word || '.name', 'workload.args.' || :word) LIMIT 1",
    ),
)


def _not_found(reference: str, known: Collection[str], experiments: Collection[str]) -> str:
    """Return that no run is called so, and what may be meant: a selection, a *known* word, or an experiment."""
    key, sign, value = reference.partition("=")
    if sign:
        option = f"--{key} {shlex.quote(value)}" if key in _OPTIONS else f"--where {shlex.quote(reference)}"
        return f"no run is called {reference!r}: runs are selected by {option}"
    if Path(reference).suffix in _WRITTEN:
        return f"no run is called {reference!r}: a file to be written is named by -o {shlex.quote(reference)}"
    of_experiment = did_you_mean(reference, experiments).replace("did you mean", "did you mean the experiment")
    meant = did_you_mean(reference, known) or of_experiment
    return f"no run is called {reference!r}; {meant or 'hpcml runs lists them'}"


def _newest(reading: StoreReader, number: int, *, is_submission: bool) -> list[Row]:
    """Return the row of the newest run but *number* - 1, or those of the runs of such a submission, by uid."""
    if not is_submission:
        return reading.rows(f"{RUNS} ORDER BY run.uid DESC LIMIT 1 OFFSET :before", before=number - 1)
    wanted = (
        "SELECT submission FROM run WHERE submission IS NOT NULL "
        "GROUP BY submission ORDER BY max(uid) DESC LIMIT 1 OFFSET :before"
    )
    return reading.rows(f"{RUNS} WHERE run.submission = ({wanted}) ORDER BY run.uid", before=number - 1)


def _several(uids: Sequence[str]) -> str:
    return f"{len(uids)} runs: {', '.join(uids[:_SHOWN])}{', ...' if len(uids) > _SHOWN else ''}"


def runs_by_spec(store: Database, hashes: Collection[str]) -> dict[str, list[tuple[str, State]]]:
    """Return uid and state of the runs with each configuration hash of *hashes*, oldest first.

    A hash without runs is absent. `hpcml run` and `hpcml retry` find by it which configurations have run already. Uids
    begin with the time of submission, hence "oldest first".
    """
    found: defaultdict[str, list[tuple[str, State]]] = defaultdict(list)
    sql = "SELECT spec_hash, uid, state FROM run WHERE spec_hash IN :hashes ORDER BY uid"
    with store.reading() as reading:
        for spec_hash, uid, state in reading.rows(sql, hashes=sorted(set(hashes))):
            found[spec_hash].append((uid, State(state)))
    return found


def curve(store: Database, uid: str, metric: str) -> Curve:
    """Return the run's curve of *metric* by step, times in seconds since its start; empty where it has none.

    Raises `StoreError` for an unknown uid. One point for each step, merged over writers and attempts
    (`hpcml.store.curves.merge`).
    """
    with store.reading() as reading:
        _run_id(reading, uid)
        return load_curves(reading, [uid], metric).get(uid, Curve())


def curves(store: Database, uids: Sequence[str], metric: str, *, is_timed: bool = True) -> dict[str, Curve]:
    """Return the curves of *uids* in that order; a run that is unknown or has none has an empty one.

    Times are seconds since the start of each run, or nan unless *is_timed*. A uid that is named twice is looked up
    once.
    """
    with store.reading() as reading:
        found = load_curves(reading, list(dict.fromkeys(uids)), metric, is_timed=is_timed)
        return {uid: found[uid] if uid in found else Curve() for uid in uids}


def events(store: Database, uid: str) -> list[StoredEvent]:
    """Return all events of the run by time, which is in seconds since its start.

    Raises `StoreError` for an unknown uid. Events of the same millisecond are in the order of their attempts and
    journals. Before the run started, times are negative.
    """
    with store.reading() as reading:
        run_id, clock_ms = _run_id(reading, uid)
        return [
            StoredEvent(
                t_s=(t_ms - clock_ms) / 1000, writer=writer, attempt=attempt, name=name, details=json.loads(details)
            )
            for t_ms, writer, attempt, name, details in reading.rows(_EVENTS, run=run_id)
        ]


_EVENTS = """
SELECT event.t_ms, journal.writer, journal.attempt, event.name, event.details
FROM event JOIN journal ON journal.id = event.journal_id WHERE event.run_id = :run
ORDER BY event.t_ms, journal.attempt, journal.file, event.ordinal
"""


def experiments(store: Database) -> list[Experiment]:
    """Return all experiments, sorted by name.

    Counted are all runs of the store, in whatever folder they lie.
    """
    sql = "SELECT experiment, state, count(*), max(submitted_at) FROM run GROUP BY experiment, state"
    counts: dict[str, Counter[State]] = {}
    latest: dict[str, str | None] = {}
    with store.reading() as reading:
        for name, state, count, submitted_at in reading.rows(f"{sql} ORDER BY experiment, state"):
            counts.setdefault(name, Counter())[State(state)] = count
            latest[name] = max(latest.get(name) or "", submitted_at or "") or None
    return [
        Experiment(name=name, runs=states.total(), states=dict(states), last_submitted_at=latest[name])
        for name, states in counts.items()
    ]


def _run_id(reading: StoreReader, uid: str) -> tuple[int, int]:
    for run_id, clock_ms in reading.rows("SELECT id, clock_ms FROM run WHERE uid = :uid", uid=uid):
        return run_id, clock_ms
    raise StoreError(f"no run has the uid {uid!r}")
