"""What runs of this machine wait for, in words: cores and GPUs, and the runs that hold them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path

from hpcml.errors import HpcmlError
from hpcml.model.state import State
from hpcml.runs.layout import home_of
from hpcml.runs.lock import owners
from hpcml.schedulers.contract import Known, Ticket
from hpcml.schedulers.local.queue import LocalBatch, queues_of, read_batch, read_ticket, was_handed
from hpcml.schedulers.local.slots import Holder, Shortage, find_shortage

_MOST_HOLDERS = 2  # that are named


def why_waiting(submissions: Path, tickets: Collection[Ticket]) -> dict[Ticket, str]:
    """Return for each of *tickets* whose job lacks cores or GPUs what it lacks and who holds it.

    Left out are jobs that have started, and those that wait for something else: another run, or their turn. Files are
    read, and no program is called. A queue whose folder cannot be read is passed over: whoever asks of it says why.

        why_waiting(places.submissions, [ticket])  # {ticket: "2 cores, held by 20261123-... (4m)"}
    """
    wanted: dict[str, list[Ticket]] = {}
    for ticket in tickets:
        wanted.setdefault(ticket.job_id, []).append(ticket)
    found: dict[Ticket, str] = {}
    for folder, batch, job_id in _queues(submissions):
        for ticket in wanted.get(job_id, ()):
            if (words := _words(folder, batch, ticket.array_index or 0)) is not None:
                found[ticket] = words
    return found


def known_as_waiting(what: str | None) -> Known:
    """Return what is known of a job that a queue of this machine has, and that lacks *what*."""
    return Known(state=State.PENDING, raw="queued", reason=None if what is None else f"waiting for {what}")


def _queues(submissions: Path) -> Iterator[tuple[Path, LocalBatch, str]]:
    for token in owners(queues_of(submissions)):
        folder = submissions / token
        try:
            started = read_ticket(folder)
            if started is not None:
                yield folder, read_batch(folder), started.job_id
        except (HpcmlError, OSError):
            continue


def _words(folder: Path, batch: LocalBatch, index: int) -> str | None:
    if index >= len(batch.jobs) or was_handed(folder, index):
        return None
    job = batch.jobs[index]
    if job.dependency is not None:
        return None
    try:
        shortage = find_shortage(job.need, batch.pool, Path(batch.lock_dir))
    except OSError:
        return None
    return None if shortage is None else in_words(shortage, home=home_of(folder / "queue.json"), now_s=time.time())


def in_words(shortage: Shortage, *, home: Path, now_s: float) -> str:
    """Return *shortage* in a line, as seen from *home*: other homes are named, with the runs there."""
    counts = [
        f"{n} {word if n == 1 else f'{word}s'}" for n, word in ((shortage.cores, "core"), (shortage.gpus, "GPU")) if n
    ]
    named = [_holder_words(holder, home, now_s) for holder in shortage.holders[:_MOST_HOLDERS]]
    if more := len(shortage.holders) - len(named):
        named.append(f"{more} more")
    held = f", held by {', '.join(named)}" if named else ""
    return f"{' and '.join(counts)}{held}"


def _holder_words(holder: Holder, home: Path, now_s: float) -> str:
    there = home_of(holder.run_dir / "run.json")
    elsewhere = "" if there == home else f"home {there}, "
    minutes, seconds = divmod(max(0, round(now_s - holder.since_s)), 60)
    return f"{holder.run_dir.name} ({elsewhere}{f'{minutes}m' if minutes else f'{seconds}s'})"
