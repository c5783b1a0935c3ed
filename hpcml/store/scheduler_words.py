"""What schedulers said last of the jobs of runs, as `hpcml.store.scheduler_polls` keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcml.model.records import Known, RunRecord
from hpcml.model.state import State
from hpcml.store.database import Database
from hpcml.store.loading import RUNS, Where, is_below, load_records

_ENDED_WITH_JOBS = f"""
{RUNS} LEFT JOIN word ON word.uid = run.uid
WHERE run.state IN :final AND run.is_settled AND run.job_id IS NOT NULL AND run.scheduler IN :schedulers
AND (word.uid IS NULL AND run.t_end > :since OR word.state NOT IN :final)
"""
_WORDS = """
SELECT word.uid, word.at, state, raw, exit_code, reason, expected_start, is_live FROM word WHERE word.uid IN :uids
"""


def ended_with_jobs(
    store: Database, schedulers: Sequence[str], *, since: float, limit: int, roots: Sequence[Path] = ()
) -> list[RunRecord]:
    """Return the ended runs, the latest first, whose jobs may live: the last word of them was of no end.

    Of runs that no word is of, those that ended after *since* (unix seconds). With *roots* (absolute folders) only
    those that lie in or below one of them.
    """
    final = [state.value for state in State if state.is_final]
    below = is_below(*roots) if roots else Where("run.id IS NOT NULL", {})
    sql = f"{_ENDED_WITH_JOBS} AND {below.sql} ORDER BY run.uid DESC LIMIT :limit"
    values = {"final": final, "schedulers": schedulers, "since": since, "limit": limit, **below.values}
    with store.reading() as reading:
        return load_records(reading, reading.rows(sql, **values))


def read_words(store: Database, uids: Sequence[str]) -> dict[str, tuple[Known, float]]:
    """Return by uid what a scheduler reported last of the run, and when (unix seconds).

    A run without a report is absent. How old a word may be is for the caller to judge.
    """
    with store.reading() as reading:
        rows = reading.rows(_WORDS, uids=uids)
    return {
        uid: (
            Known(
                state=State(state),
                raw=raw,
                exit_code=exit_code,
                reason=reason,
                expected_start=expected_start,
                is_live=bool(is_live),
            ),
            at,
        )
        for uid, at, state, raw, exit_code, reason, expected_start, is_live in rows
    }
