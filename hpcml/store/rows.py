"""The rows of one run, written inside the caller's transaction by the one writer there is."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict

from sqlalchemy import Connection, Insert, delete, insert, select, update

from hpcml.states import State
from hpcml.store.annotations import ANNOTATING, fold_notes, fold_tags
from hpcml.store.bulk import add_metrics, insert_events, write_points
from hpcml.store.cursors import Cursor
from hpcml.store.describing import Description
from hpcml.store.fold import FOLDED, Happening, JournalStart, fold
from hpcml.store.intake import Stretch, storable
from hpcml.store.loading import chunked
from hpcml.store.samples import forget_samples
from hpcml.store.tables import (
    EVENT,
    JOURNAL,
    METRIC,
    POINT,
    RUN,
    RUN_FACT,
    RUN_NOTE,
    RUN_PARAM,
    RUN_TAG,
    RUN_USAGE,
    RUN_WORK,
    SERIES,
    SUMMARY,
)
from hpcml.store.usage import MEASURED, Carbon, fold_usage, fold_work


def ensure_run(connection: Connection, described: Description) -> tuple[int, bool]:
    """Return the run's id, and whether it needs folding because what run.json says was new, and is now written.

    The caller keeps others from writing this run (locks.py).
    """
    told = ("path", "manifest_stamp", "home")
    query = select(RUN.c.id, RUN.c.epoch_ms, *(RUN.c[name] for name in told)).where(RUN.c.uid == described.uid)
    known = connection.execute(query).one_or_none()
    if known is None:
        unknown = {
            "numerics": described.columns["planned_numerics"],
            "scheduler": described.columns["planned_scheduler"],
        }
        unknown |= {"state": State.PENDING.value, "attempt": 0, "clock_ms": 0}
        run_id = _insert_one(connection, insert(RUN).values(uid=described.uid, **described.columns, **unknown))
    elif all(getattr(known, name) == described.columns[name] for name in told):
        return int(known.id), False
    else:
        run_id = known.id
        connection.execute(update(RUN).where(RUN.c.id == run_id).values(**described.columns))
        connection.execute(delete(RUN_PARAM).where(RUN_PARAM.c.run_id == run_id))
        if known.epoch_ms != described.epoch_ms:
            forget_journals(connection, run_id)  # their times count from the old one
    if described.params:
        params = [{"run_id": run_id, "key": key, "value": value} for key, value in described.params.items()]
        connection.execute(insert(RUN_PARAM), params)
    return run_id, True


def forget_journals(connection: Connection, run_id: int) -> None:
    """Remove all that the run's journals and samplers said."""
    series = select(SERIES.c.id).where(SERIES.c.run_id == run_id)
    connection.execute(delete(POINT).where(POINT.c.series_id.in_(series)))
    for table in (SERIES, SUMMARY, EVENT, JOURNAL):
        connection.execute(delete(table).where(table.c.run_id == run_id))
    forget_samples(connection, run_id)


def write_stretch(connection: Connection, run_id: int, cursor: Cursor, stretch: Stretch) -> dict[str, int]:
    """Add events behind those of the journal, points over those of the same step; return each metric's series."""
    if stretch.events:
        events = [(cursor.id, cursor.events + at, run_id, *event) for at, event in enumerate(stretch.events)]
        insert_events(connection, events)
    if not stretch.points:
        return {}
    series_ids = _ensure_series(connection, run_id, cursor.id, stretch.points)
    points = [
        (series_ids[name], step, t_ms, value if value == value else None)  # noqa: PLR0124 - false for nan alone
        for name, of_metric in stretch.points.items()
        for step, (t_ms, value) in of_metric.items()
    ]
    if points:
        write_points(connection, points)
    return series_ids


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
        if new := [name for name in missing if name not in metrics]:
            add_metrics(connection, new)
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


def refold(connection: Connection, run_id: int, described: Description) -> None:
    """Write what run.json and all the run's journals and events together say of it."""
    epoch_ms = described.epoch_ms
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
            events.where(EVENT.c.run_id == run_id, EVENT.c.name.in_((*FOLDED, *ANNOTATING, *MEASURED)))
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
    _write_annotations(connection, run_id, described.tags, happenings)
    _write_measured(connection, run_id, happenings, known.counted, _carbon(described))


def _write_annotations(
    connection: Connection, run_id: int, first_tags: Sequence[str], happenings: Sequence[Happening]
) -> None:
    tags: list[dict[str, object]] = [{"tag": storable(tag)} for tag in fold_tags(first_tags, happenings)]
    notes: list[dict[str, object]] = [
        {"at": note.at, "author": storable(note.author), "text": storable(note.text)} for note in fold_notes(happenings)
    ]
    for table, found in ((RUN_TAG, tags), (RUN_NOTE, notes)):
        connection.execute(delete(table).where(table.c.run_id == run_id))
        if found:
            rows = [{**values, "run_id": run_id, "position": at} for at, values in enumerate(found)]
            connection.execute(insert(table), rows)


def _write_measured(
    connection: Connection, run_id: int, happenings: Sequence[Happening], counted: Sequence[int], carbon: Carbon | None
) -> None:
    usage, work = fold_usage(happenings, counted, carbon), fold_work(happenings, counted)
    for table, found in ((RUN_USAGE, usage), (RUN_WORK, work)):
        connection.execute(delete(table).where(table.c.run_id == run_id))
        if found is not None:
            values = {name: storable(v) if isinstance(v, str) else v for name, v in asdict(found).items()}
            connection.execute(insert(table).values(run_id=run_id, **values))


def _carbon(described: Description) -> Carbon | None:
    """Return what the run's own configuration says of its cluster's electricity."""
    factor, source = (
        json.loads(described.params.get(f"cluster.{key}", "null")) for key in ("co2_g_per_kwh", "co2_source")
    )
    is_known = isinstance(factor, int | float) and not isinstance(factor, bool) and source is not None
    return Carbon(g_per_kwh=float(factor), source=str(source)) if is_known else None
