"""The summaries of a run's curves: carried on where that is possible, else made anew, once all points are there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict

from sqlalchemy import Connection, delete, insert, select

from hpcml.store.curves import EMPTY, Points, Precedence, Tally, extend, merge
from hpcml.store.loading import chunked, load_points
from hpcml.store.tables import JOURNAL, METRIC, SERIES, SUMMARY


class Touched(dict[str, dict[int, Points]]):
    """The new points of a transaction: metric -> series id -> points."""

    def add(self, points: Mapping[str, Points], series_ids: Mapping[str, int]) -> None:
        """Add what one journal brought."""
        for name, of_metric in points.items():
            self.setdefault(name, {})[series_ids[name]] = of_metric


def without_summary(connection: Connection, run_id: int) -> set[str]:
    """Return the metrics that have points and no summary: who began to read the run had no time to end it."""
    summary = (SUMMARY.c.run_id == SERIES.c.run_id) & (SUMMARY.c.metric_id == SERIES.c.metric_id)
    query = (
        select(METRIC.c.name)
        .join(SERIES, SERIES.c.metric_id == METRIC.c.id)
        .outerjoin(SUMMARY, summary)
        .where(SERIES.c.run_id == run_id, SUMMARY.c.run_id.is_(None))
    )
    return set(connection.execute(query).scalars())


def write_summaries(
    connection: Connection, run_id: int, touched: Touched, *, without: Collection[str], is_complete: bool
) -> None:
    """Bring the summaries of the *touched* metrics up to date, and of those that were *without* one before.

    What cannot be carried on is made anew from the whole curve, but only once all that there is to read is read
    (*is_complete*): until then it is absent. Else a long run of many writers would be summed up for each stretch of it.
    """
    names = {*touched, *without} if is_complete else set(touched)
    if not names:
        return
    ids, tallies = _ids(connection, run_id), _tallies(connection, run_id)
    rows = []
    for name in sorted(names):
        new = _continuation(tallies.get(name, EMPTY), touched.get(name, {})) if name not in without else None
        if new is not None:
            tally = tallies.get(name, EMPTY)
        elif is_complete:
            tally, new = EMPTY, _read_curve(connection, run_id, ids[name])
        else:
            continue
        tally = extend(tally, list(new), [value for _, value in new.values()])
        rows.append({"run_id": run_id, "metric_id": ids[name], **asdict(tally)})
    for chunk in chunked([ids[name] for name in names]):
        connection.execute(delete(SUMMARY).where(SUMMARY.c.run_id == run_id, SUMMARY.c.metric_id.in_(chunk)))
    if rows:
        connection.execute(insert(SUMMARY), rows)


def _continuation(tally: Tally, by_series: Mapping[int, Points]) -> Points | None:
    """Return the new points by step if they all lie behind the *tally*; None where it takes more to know."""
    if len(by_series) != 1:
        return None
    new = dict(sorted(next(iter(by_series.values())).items()))
    return new if tally.last_step is None or next(iter(new)) > tally.last_step else None


def _ids(connection: Connection, run_id: int) -> dict[str, int]:
    query = select(METRIC.c.name, METRIC.c.id).join(SERIES, SERIES.c.metric_id == METRIC.c.id)
    return {row.name: int(row.id) for row in connection.execute(query.where(SERIES.c.run_id == run_id).distinct())}


def _tallies(connection: Connection, run_id: int) -> dict[str, Tally]:
    columns = [column for column in SUMMARY.c if column.name not in ("run_id", "metric_id")]
    query = select(METRIC.c.name, *columns).join(SUMMARY, SUMMARY.c.metric_id == METRIC.c.id)
    return {
        name: Tally(**{column.name: number for column, number in zip(columns, numbers, strict=True)})
        for name, *numbers in connection.execute(query.where(SUMMARY.c.run_id == run_id))
    }


def _read_curve(connection: Connection, run_id: int, metric_id: int) -> Points:
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
