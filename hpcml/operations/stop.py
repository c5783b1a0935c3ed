"""Runs stopped on request, wherever they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcml.operations import consult, follow
from hpcml.operations.backends import Backends
from hpcml.operations.standing import ticket_of
from hpcml.places import Places


def stop(places: Places, references: Sequence[str], backends: Backends) -> Iterator[tuple[str, bool]]:
    """Ask each of the named runs to stop and yield its uid, with False if it had ended already."""
    for record, run_dir in consult.find(places, references):
        was_running = follow.cancel(run_dir)
        if was_running and record.scheduler in ("slurm", "pbs") and record.job_id is not None:
            backends.by_name(record.scheduler).cancel(ticket_of(record))
        yield record.uid, was_running
