"""What schedulers said last of the jobs of runs, as `hpcml.store.scheduler_polls` keeps it."""

from __future__ import annotations

from collections.abc import Sequence

from hpcml.model.records import Known
from hpcml.model.state import State
from hpcml.store.database import Database

_WORDS = """
SELECT word.uid, word.at, state, raw, exit_code, reason, expected_start, is_live FROM word WHERE word.uid IN :uids
"""


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
