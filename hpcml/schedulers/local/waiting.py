"""What waits in the queue of this machine, and what for, in words: cores, GPUs, or its turn."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from hpcml.errors import HpcmlError
from hpcml.model.state import State
from hpcml.schedulers.contract import Known, Ticket
from hpcml.schedulers.local import jobs
from hpcml.schedulers.local.jobs import QueuedBatch, QueuedJob
from hpcml.schedulers.local.runtime import Pool, RuntimeFolder, StartedJob, free_of


def why_waiting(submissions: Path, tickets: Collection[Ticket]) -> dict[Ticket, str]:
    """Return for each of *tickets* whose job waits what it lacks, and its place in order of arrival.

    Left out are jobs that have started, that wait for another run, or that are alone and about to start. The place is
    among all jobs that wait on this machine. Files are read, and no program is called. A batch that cannot be read is
    passed over: whoever asks of it says why.

        why_waiting(places.submissions, [ticket])  # {ticket: "2 cores; no. 2 of 3 that wait on this machine"}
    """
    wanted = {(ticket.job_id, ticket.array_index or 0): ticket for ticket in tickets}
    runtimes = {RuntimeFolder(Path(batch.runtime)) for _, batch in _batches(submissions)} if wanted else set()
    found: dict[Ticket, str] = {}
    for runtime in runtimes:
        running = [job for job in runtime.started() if runtime.lives(job)]
        waiting = _in_order(runtime, {job.key for job in running})
        for place, (path, index, batch) in enumerate(waiting, start=1):
            ticket = wanted.get((jobs.token_of(path), index))
            if ticket is not None and path.parent.parent == submissions:
                lacks = _lacks(batch.jobs[index], batch.pool, running)
                behind = f"no. {place} of {len(waiting)} that wait on this machine" if len(waiting) > 1 else None
                if lacks is not None or place > 1:
                    found[ticket] = "; ".join(filter(None, [lacks or "its turn", behind]))
    return found


def known_as_waiting(what: str | None) -> Known:
    """Return what is known of a job that the queue of this machine has, and that lacks *what*."""
    return Known(state=State.PENDING, raw="queued", reason=None if what is None else f"waiting for {what}")


def still_queued(submissions: Path, tickets: Collection[Ticket]) -> list[Ticket]:
    """Return those of *tickets* whose jobs wait, or whose agents run. Raises `HpcmlError` where that cannot be read."""
    return [one for one in tickets if jobs.is_queued(submissions, one.job_id, one.array_index or 0)]


def is_served(submissions: Path, tickets: Collection[Ticket]) -> bool:
    """Tell whether a queue is at work that has any of *tickets*."""
    paths = {jobs.find_batch(submissions, one.job_id) for one in still_queued(submissions, tickets)}
    return any(RuntimeFolder(Path(jobs.read_batch(path).runtime)).is_at_work for path in paths if path is not None)


def left_by_killed(submissions: Path) -> int:
    """Return how many runs wait in the queue of this machine while no process serves it. Raises `OSError`."""
    batches = list(_batches(submissions))
    runtimes = {RuntimeFolder(Path(batch.runtime)) for _, batch in batches}
    dead = {str(runtime.path) for runtime in runtimes if not runtime.serves(submissions)}
    return sum(runs_left(path, batch) for path, batch in batches if batch.runtime in dead)


def runs_left(path: Path, batch: QueuedBatch) -> int:
    """Return how many runs of *batch* wait; raise `HpcmlError` where that cannot be read."""
    runtime = RuntimeFolder(Path(batch.runtime))
    done = {job.index for job in runtime.started() if job.batch == str(path) and runtime.lives(job)}
    done |= jobs.read_ended(jobs.folder_of(path))
    return sum(len(job.sources) for index, job in enumerate(batch.jobs) if index not in done)


def killed_words(count: int) -> str:
    """Say that the queue was killed with *count* runs left."""
    return f"the local queue was killed with {count} run{'s' if count != 1 else ''} left"


def listed(submissions: Path) -> list[Path]:
    """Return the files of the batches of this machine; [] where nothing was submitted yet. Raises `OSError`."""
    try:
        return jobs.batch_files(submissions)
    except FileNotFoundError:
        return []


def _batches(submissions: Path) -> Iterator[tuple[Path, QueuedBatch]]:
    for path in listed(submissions):
        with suppress(HpcmlError):
            yield path, jobs.read_batch(path)


def _in_order(runtime: RuntimeFolder, running: Collection[tuple[Path, int]]) -> list[tuple[Path, int, QueuedBatch]]:
    """Return the jobs that wait for nothing but cores, GPUs or their turn, in their order."""
    found = []
    for submissions in runtime.homes():
        with suppress(OSError, HpcmlError):
            for path, batch in _batches(submissions):
                ended = jobs.read_ended(jobs.folder_of(path))
                for index, job in enumerate(batch.jobs):
                    is_over = index in ended or (path, index) in running or job.is_unwanted
                    if job.dependency is None and not is_over and Path(batch.runtime) == runtime.path:
                        found.append((path, index, batch))
    return sorted(found, key=lambda one: (one[0].name, one[1]))


def _lacks(job: QueuedJob, pool: Pool, running: Collection[StartedJob]) -> str | None:
    """Return in words what is missing for *job*; None where enough is free."""
    cores, gpus = free_of(pool, running)
    missing = {"core": job.cores - cores, "GPU": job.gpus - len(gpus)}
    return " and ".join(f"{n} {word if n == 1 else f'{word}s'}" for word, n in missing.items() if n > 0) or None
