"""What runs of this machine wait for, in words: cores and GPUs, and the runs that hold them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from hpcml.errors import HpcmlError
from hpcml.model.state import State
from hpcml.runs.layout import home_of, queues_of
from hpcml.runs.lock import owners
from hpcml.schedulers.contract import Known, Ticket
from hpcml.schedulers.local.queue import LocalBatch, read_batch, read_ticket, was_handed
from hpcml.schedulers.local.slots import Holder, Shortage, find_shortage

_MOST_HOLDERS = 2  # that are named


def why_waiting(submissions: Path, tickets: Collection[Ticket]) -> dict[Ticket, str]:
    """Return for each of *tickets* whose job waits what it lacks, who holds that, and its place in order of arrival.

    Left out are jobs that have started, that wait for another run, or that are alone and about to start. The place is
    among the jobs of this home; those of one submission start in that order. Files are read, and no program is called.
    A queue whose folder cannot be read is passed over: whoever asks of it says why.

        why_waiting(places.submissions, [ticket])  # {ticket: "2 cores, held by 20261123-... (4m); no. 2 of 3 ..."}
    """
    wanted: dict[str, list[Ticket]] = {}
    for ticket in tickets:
        wanted.setdefault(ticket.job_id, []).append(ticket)
    queues = sorted(_queues(submissions), key=lambda queue: queue[1].arrived_at)
    places = _places(queues)
    found: dict[Ticket, str] = {}
    for folder, batch, job_id in queues:
        for ticket in wanted.get(job_id, ()):
            index = ticket.array_index or 0
            if (place := places.get((folder, index))) is not None:
                lacks = _words(folder, batch, index)
                behind = f"no. {place} of {len(places)} that wait in this home" if len(places) > 1 else None
                if lacks is not None or place > 1:
                    found[ticket] = "; ".join(filter(None, [lacks or "its turn", behind]))
    return found


def known_as_waiting(what: str | None) -> Known:
    """Return what is known of a job that a queue of this machine has, and that lacks *what*."""
    return Known(state=State.PENDING, raw="queued", reason=None if what is None else f"waiting for {what}")


def _queues(submissions: Path) -> Iterator[tuple[Path, LocalBatch, str]]:
    for token, owner in owners(queues_of(submissions)).items():
        folder = submissions / token
        with suppress(HpcmlError, OSError):
            if not owner.is_gone and (started := read_ticket(folder)) is not None:
                yield folder, read_batch(folder), started.job_id


def _places(queues: Iterable[tuple[Path, LocalBatch, str]]) -> dict[tuple[Path, int], int]:
    """Return the jobs that wait for nothing but cores, GPUs or their turn, each with its number in order of arrival."""
    waiting = [
        (folder, index)
        for folder, batch, _ in queues
        for index, job in enumerate(batch.jobs)
        if job.dependency is None and not was_handed(folder, index) and not job.is_unwanted
    ]
    return {place: number for number, place in enumerate(waiting, start=1)}


def _words(folder: Path, batch: LocalBatch, index: int) -> str | None:
    try:
        shortage = find_shortage(batch.jobs[index].need, batch.pool, Path(batch.lock_dir))
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
