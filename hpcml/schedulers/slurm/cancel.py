"""Slurm told to end jobs, or to take them out of its queue."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hpcml.errors import SubmissionError
from hpcml.schedulers.slurm.query import ask_cluster, one_line

log = logging.getLogger(__name__)

_GONE = ("already completing or completed", "Invalid job id")


def cancel(ids: Sequence[str], *, cluster: str | None, patience_s: float) -> None:
    """Cancel jobs, whole arrays or elements of one cluster by one call (man scancel).

    One that has ended is left as it is. *cluster* is as `ask_cluster` has it, *patience_s* for the answer. Raises
    `SubmissionError` with the first refusal.
    """
    answer = ask_cluster(["scancel", *ids], cluster, patience_s=patience_s)
    refusals = [part for part in one_line(answer).split("; ") if not any(gone in part for gone in _GONE)]
    if answer.returncode != 0 and refusals:
        which = f"job {ids[0]}" if len(ids) == 1 else f"some of {len(ids)} jobs"
        raise SubmissionError(f"scancel refused to cancel {which}: {refusals[0]}")
    log.info("cancelled %s", ", ".join(ids))
