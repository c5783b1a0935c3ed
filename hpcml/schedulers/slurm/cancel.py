"""Slurm told to end jobs, or to take them out of its queue."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from hpcml.errors import SubmissionError
from hpcml.schedulers.commands import call
from hpcml.schedulers.slurm.query import one_line, reading_environ

log = logging.getLogger(__name__)

_GONE = ("already completing or completed", "Invalid job id")


def cancel(ids: Sequence[str], *, patience_s: float) -> None:
    """Cancel jobs, whole arrays or elements by one call (man scancel); one that has ended is left as it is.

    *patience_s* is for the answer. Raises `SubmissionError` with the first refusal.
    """
    answer = call(["scancel", *ids], timeout_s=patience_s, environ=reading_environ(os.environ))
    refusals = [part for part in one_line(answer).split("; ") if not any(gone in part for gone in _GONE)]
    if answer.returncode != 0 and refusals:
        which = f"job {ids[0]}" if len(ids) == 1 else f"some of {len(ids)} jobs"
        raise SubmissionError(f"scancel refused to cancel {which}: {refusals[0]}")
    log.info("cancelled %s", ", ".join(ids))
