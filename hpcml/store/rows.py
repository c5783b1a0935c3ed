"""The rows of one run, written inside the caller's transaction by the one writer there is."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import Connection, Insert, delete, insert, select, update

from hpcml.errors import HpcmlError
from hpcml.journal import Header
from hpcml.states import State
from hpcml.store.curves import EMPTY, Points, Precedence, Tally, extend, merge
from hpcml.store.describing import Description
from hpcml.store.fold import FOLDED, Happening, JournalStart, fold
from hpcml.store.intake import Stretch, storable
from hpcml.store.loading import chunked, load_points
from hpcml.store.tables import EVENT, JOURNAL, METRIC, POINT, RUN, RUN_FACT, RUN_PARAM, RUN_TAG, SERIES, SUMMARY

# As text and tuples: several times faster than insert() with dicts. `excluded` is SQLite's and PostgreSQL's word.
_UPSERT_POINT = (
    "INSERT INTO point (series_id, step, t_ms, value) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (series_id, step) DO UPDATE SET t_ms = excluded.t_ms, value = excluded.value"
)
_INSERT_EVENT = "INSERT INTO event (journal_id, ordinal, run_id, t_ms, name, details) VALUES (?, ?, ?, ?, ?, ?)"


class Touched(dict[str, dict[int, Points]]):
    """The new points of a transaction: metric -> series id -> points."""

    def add(self, points: Mapping[str, Points], series_ids: Mapping[str, int]) -> None:
        """Add what one journal brought."""
        for name, of_metric in points.items():
            self.setdefault(name, {})[series_ids[name]] = of_metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far one journal was read."""

    id: int
    uid: str
    t0: float  # unix seconds
    byte_offset: int
    events: int


def ensure_run(connection: Connection, described: Description) -> tuple[int, bool]:
    """Return the run's id, and whether it needs folding because what run.json says was new, and is now written."""
    known = connection.execute(
        select(RUN.c.id, RUN.c.path, RUN.c.manifest_stamp, RUN.c.epoch_ms).where(RUN.c.uid == described.uid)
    ).one_or_none()
    if known is None:
        unknown = {
            "numerics": described.columns["planned_numerics"],
            "scheduler": described.columns["planned_scheduler"],
        }
        unknown |= {"state": State.PENDING.value, "attempt": 0, "clock_ms": 0}
        run_id = _insert_one(connection, insert(RUN).values(uid=described.uid, **described.columns, **unknown))
    elif (known.path, known.manifest_stamp) == (described.columns["path"], described.columns["manifest_stamp"]):
        return int(known.id), False
    else:
        run_id = known.id
        _check_moved(Path(known.path), Path(described.columns["path"]), described.uid)
        connection.execute(update(RUN).where(RUN.c.id == run_id).values(**described.columns))
        connection.execute(delete(RUN_PARAM).where(RUN_PARAM.c.run_id == run_id))
        connection.execute(delete(RUN_TAG).where(RUN_TAG.c.run_id == run_id))
        if known.epoch_ms != described.epoch_ms:
            forget_journals(connection, run_id)  # their times count from the old one
    if described.params:
        params = [{"run_id": run_id, "key": key, "value": value} for key, value in described.params.items()]
        connection.execute(insert(RUN_PARAM), params)
    if described.tags:
        tags = [{"run_id": run_id, "position": at, "tag": tag} for at, tag in enumerate(described.tags)]
        connection.execute(insert(RUN_TAG), tags)
    return run_id, True


def _check_moved(before: Path, now: Path, uid: str) -> None:
    if before != now and (before / "run.json").exists() and not before.samefile(now):
        raise HpcmlError(f"{now} and {before} both say that they are run {uid}: remove the copy")


def forget_journals(connection: Connection, run_id: int) -> None:
    """Remove all that the run's journals said."""
    series = select(SERIES.c.id).where(SERIES.c.run_id == run_id)
    connection.execute(delete(POINT).where(POINT.c.series_id.in_(series)))
    for table in (SERIES, SUMMARY, EVENT, JOURNAL):
        connection.execute(delete(table).where(table.c.run_id == run_id))


def read_cursors(connection: Connection, run_id: int) -> dict[str, Cursor]:
    """Return the cursors of the run's journals by file name."""
    columns = (JOURNAL.c.id, JOURNAL.c.file, JOURNAL.c.uid, JOURNAL.c.t0, JOURNAL.c.byte_offset, JOURNAL.c.events)
    return {
        file: Cursor(id=at, uid=uid, t0=t0, byte_offset=byte_offset, events=events)
        for at, file, uid, t0, byte_offset, events in connection.execute(
            select(*columns).where(JOURNAL.c.run_id == run_id)
        )
    }


def add_journal(connection: Connection, run_id: int, file: str, header: Header) -> Cursor:
    """Begin a journal, nothing of it read yet."""
    uid = storable(header.journal)
    who = {"writer": storable(header.writer), "attempt": header.attempt, "host": storable(header.host)}
    nothing = {"byte_offset": 0, "events": 0, "bad_lines": 0}
    new = insert(JOURNAL).values(run_id=run_id, file=file, uid=uid, t0=header.t0, **who, **nothing)
    return Cursor(id=_insert_one(connection, new), uid=uid, t0=header.t0, byte_offset=0, events=0)


def write_stretch(connection: Connection, run_id: int, cursor: Cursor, stretch: Stretch) -> dict[str, int]:
    """Add events behind those of the journal, points over those of the same step; return each metric's series."""
    if stretch.events:
        events = [(cursor.id, cursor.events + at, run_id, *event) for at, event in enumerate(stretch.events)]
        connection.exec_driver_sql(_INSERT_EVENT, events)
    if not stretch.points:
        return {}
    series_ids = _ensure_series(connection, run_id, cursor.id, stretch.points)
    points = [
        (series_ids[name], step, t_ms, value if value == value else None)  # noqa: PLR0124 - false for nan alone
        for name, of_metric in stretch.points.items()
        for step, (t_ms, value) in of_metric.items()
    ]
    if points:
        connection.exec_driver_sql(_UPSERT_POINT, points)
    return series_ids


def move_cursor(connection: Connection, cursor: Cursor, *, to: int, events: int, bad_lines: int) -> None:
    """Remember that *cursor*'s journal was read to byte *to*, and what was found on the way."""
    connection.execute(
        update(JOURNAL)
        .where(JOURNAL.c.id == cursor.id)
        .values(byte_offset=to, events=cursor.events + events, bad_lines=JOURNAL.c.bad_lines + bad_lines)
    )


def _insert_one(connection: Connection, statement: Insert) -> int:
    result = connection.execute(statement)
    assert result.inserted_primary_key is not None
    return int(result.inserted_primary_key[0])


def _ensure_series(connection: Connection, run_id: int, journal_id: int, names: Collection[str]) -> dict[str, int]:
    """Return the journal's series by metric; nobody else can add one meanwhile."""
    query = (
        select(METRIC.c.name, SERIES.c.id)
        .join(SERIES, SERIES.c.metric_id == METRIC.c.id)
        .where(SERIES.c.journal_id == journal_id)
    )
    series = {name: int(at) for name, at in connection.execute(query)}
    if missing := [name for name in names if name not in series]:
        metrics = _metric_ids(connection, missing)
        if new := [{"name": name} for name in missing if name not in metrics]:
            connection.execute(insert(METRIC), new)
            metrics = _metric_ids(connection, missing)
        keys = {"run_id": run_id, "journal_id": journal_id}
        connection.execute(insert(SERIES), [{**keys, "metric_id": metrics[name]} for name in missing])
        series = {name: int(at) for name, at in connection.execute(query)}
    return series


def _metric_ids(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    return {
        name: at
        for chunk in chunked(names)
        for name, at in connection.execute(select(METRIC.c.name, METRIC.c.id).where(METRIC.c.name.in_(chunk)))
    }


def write_summaries(connection: Connection, run_id: int, touched: Touched) -> None:
    """Bring the summaries of the *touched* metrics up to date: carried on where possible, else made anew."""
    if not touched:
        return
    columns = [column for column in SUMMARY.c if column.name not in ("run_id", "metric_id")]
    query = select(METRIC.c.name, *columns).join(SUMMARY, SUMMARY.c.metric_id == METRIC.c.id)
    tallies = {}
    for name, *numbers in connection.execute(query.where(SUMMARY.c.run_id == run_id)):
        tallies[name] = Tally(**{column.name: number for column, number in zip(columns, numbers, strict=True)})
    ids = _metric_ids(connection, list(touched))
    rows = []
    for name, by_series in touched.items():
        tally = tallies.get(name, EMPTY)
        new = dict(sorted(next(iter(by_series.values())).items()))
        if len(by_series) > 1 or (tally.last_step is not None and next(iter(new)) <= tally.last_step):
            tally, new = EMPTY, read_curve(connection, run_id, ids[name])
        tally = extend(tally, list(new), [value for _, value in new.values()])
        rows.append({"run_id": run_id, "metric_id": ids[name], **asdict(tally)})
    for chunk in chunked(list(ids.values())):
        connection.execute(delete(SUMMARY).where(SUMMARY.c.run_id == run_id, SUMMARY.c.metric_id.in_(chunk)))
    connection.execute(insert(SUMMARY), rows)


def read_curve(connection: Connection, run_id: int, metric_id: int) -> dict[int, tuple[int, float]]:
    """Return the run's curve of a metric from all its series."""
    query = (
        select(SERIES.c.id, JOURNAL.c.attempt, JOURNAL.c.writer, JOURNAL.c.t0, JOURNAL.c.file)
        .join(JOURNAL, JOURNAL.c.id == SERIES.c.journal_id)
        .where(SERIES.c.run_id == run_id, SERIES.c.metric_id == metric_id)
    )
    series = connection.execute(query).all()
    points = load_points(connection, [row.id for row in series])
    return merge(
        (Precedence.of(attempt=attempt, writer=writer, t0=t0, file=file), points[series_id])
        for series_id, attempt, writer, t0, file in series
    )


def refold(connection: Connection, run_id: int, epoch_ms: int) -> None:
    """Write what all the run's journals and events together say of it."""
    columns = (JOURNAL.c.id, JOURNAL.c.file, JOURNAL.c.writer, JOURNAL.c.attempt, JOURNAL.c.t0)
    journals = {
        at: JournalStart(file=file, writer=writer, attempt=attempt, t0=t0)
        for at, file, writer, attempt, t0 in connection.execute(select(*columns).where(JOURNAL.c.run_id == run_id))
    }
    events = select(EVENT.c.journal_id, EVENT.c.ordinal, EVENT.c.t_ms, EVENT.c.name, EVENT.c.details)
    happenings = [
        Happening(
            journal=journals[at], ordinal=ordinal, at=(epoch_ms + t_ms) / 1000, name=name, details=json.loads(details)
        )
        for at, ordinal, t_ms, name, details in connection.execute(
            events.where(EVENT.c.run_id == run_id, EVENT.c.name.in_(FOLDED))
        )
    ]
    known = fold(list(journals.values()), happenings)
    plain = ("is_settled", "exit_code", "attempt", "array_index", "is_shared", "t_start", "t_end", "wall_s")
    values = {name: getattr(known, name) for name in plain}
    for name in ("cause", "reason", "job_id", "job_name", "precision_effective"):
        text = getattr(known, name)
        values[name] = None if text is None else storable(text)
    clock_ms = 0 if known.clock_zero is None else round(known.clock_zero * 1000 - epoch_ms)
    values |= {"state": known.state.value, "clock_ms": clock_ms}
    values["numerics"] = RUN.c.planned_numerics if known.numerics is None else storable(known.numerics)
    values["scheduler"] = RUN.c.planned_scheduler if known.scheduler is None else storable(known.scheduler)
    connection.execute(update(RUN).where(RUN.c.id == run_id).values(**values))
    connection.execute(delete(RUN_FACT).where(RUN_FACT.c.run_id == run_id))
    facts = {storable(key): json.dumps(value) for key, value in known.facts.items()}
    if facts:
        connection.execute(
            insert(RUN_FACT), [{"run_id": run_id, "key": key, "value": value} for key, value in facts.items()]
        )
