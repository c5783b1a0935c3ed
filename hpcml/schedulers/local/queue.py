"""The queue of this machine: starts the agent of each job as soon as its cores and GPUs are free, in order of arrival.

One process serves all homes of a user, and ends when nothing waits or runs. It can be killed at any moment: what waits
is in the homes (`jobs`), what runs in the runtime folder (`runtime`), and the next one goes on from both.
"""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import OF_THE_DISK, HpcmlError, why_not
from hpcml.model.state import State
from hpcml.runs import dependency
from hpcml.runs.dependency import Outlook
from hpcml.runs.layout import QUEUE_LOG, home_of, run_dir_of
from hpcml.runs.private import check, is_ours, open_file
from hpcml.runs.state import EventName, read_fold
from hpcml.schedulers.batches import write_sources
from hpcml.schedulers.local import jobs
from hpcml.schedulers.local.jobs import QueuedBatch, QueuedJob
from hpcml.schedulers.local.runtime import RuntimeFolder, StartedJob, free_of
from hpcml_client.journal import JournalWriter

log = logging.getLogger(__name__)

_AGENTS_WORDS = "hpcml agent: "
_POLL_S = 0.1
_MAY_BE_AWAY_S = 600.0  # a home, before it is forgotten
_LOOK_S = 1.0  # between looks at all jobs: whether they are wanted, and at the journals of runs that they wait for
_PASSING = OF_THE_DISK | {errno.EAGAIN}  # of no job: neither its files nor its agent can be made now (man 2 fork)


def serve(runtime: str, lock: int, *, on_ready: Callable[[], object] = lambda: None) -> None:
    """Be the queue of the folder *runtime*, whose lock is the descriptor *lock*, until nothing waits or runs.

    What is wrong with the queue itself would be so again: the runs that wait then have failed, and it is raised.
    """
    queue = _Queue(RuntimeFolder(Path(runtime)))
    on_ready()
    try:
        queue.run(lock)
    except Exception as error:
        queue.fail(f"the queue of this machine failed: {type(error).__name__}: {error} (see {runtime}/queue.log)")
        raise


@dataclass(slots=True)
class _Batch:
    """A batch that is not finished."""

    path: Path
    queued: QueuedBatch
    ended: set[int]
    waiting: dict[int, float]  # jobs, by what gives them their place: when they came, or were put back
    held: set[int]  # those of them that wait for other runs

    @property
    def folder(self) -> Path:
        return jobs.folder_of(self.path)

    def end(self, index: int) -> None:
        """Note that the job has ended. Raises `OSError`, as on a full disk; it has not ended then."""
        jobs.write_ended(self.folder, self.ended | {index})
        self.ended.add(index)
        self.waiting.pop(index, None)


class _Queue:
    """All jobs of the homes that *runtime* names: those that wait, in order, and those whose agents run."""

    def __init__(self, runtime: RuntimeFolder) -> None:
        self._runtime = runtime
        self._kept = runtime.keep()
        self._batches: dict[Path, _Batch] = {}
        self._away: dict[Path, float] = {}  # homes that cannot be seen: since when, by the monotonic clock
        self._started = {job.key: job for job in runtime.started()}
        self._adopted = set(self._started)  # by a queue that was killed
        self._warned: set[str] = set()
        self._look_at = 0.0

    def run(self, lock: int) -> None:
        """Start and reap until nothing is left, with the queue's *lock*, which is given back then.

        What was submitted just before that is seen after it, and what comes later finds the lock free.
        """
        held: int | None = lock
        while held is not None:
            self._take_up_batches()
            while self._batches or self._started:
                self._reap()
                self._start_what_fits()
                self._finish_batches()
                time.sleep(_POLL_S)
                self._take_up_batches()
            for submissions in list(self._away):
                self._forget(submissions)
            os.close(held)
            self._take_up_batches()
            held = self._runtime.try_lock() if self._batches else None

    def fail(self, why: str) -> None:
        """Tell in the journals of all runs that wait *why* none of them will be started."""
        for batch in self._batches.values():
            for index in list(batch.waiting):
                _tell_failed(batch.queued.jobs[index].sources, why, only=State.PENDING)
                batch.end(index)
        self._finish_batches()

    def _take_up_batches(self) -> None:
        """Look for what was submitted since, or removed; a home that was removed, or stays away, is forgotten."""
        for submissions in self._runtime.homes():
            try:
                files = jobs.batch_files(submissions)
                self._away.pop(submissions, None)
            except OSError as error:
                self._warn(f"a home is away: {error}")
                since = self._away.setdefault(submissions, time.monotonic())
                if time.monotonic() - since < _MAY_BE_AWAY_S and not _is_removed(submissions.parent):
                    continue
                self._forget(submissions)
                files = []
            for path in [path for path in self._batches if path.parent.parent == submissions and path not in files]:
                del self._batches[path]
            for path in [path for path in files if path not in self._batches]:
                with self._passing_over(path):
                    self._take_up(path)

    def _forget(self, submissions: Path) -> None:
        """Serve the home no more, unless somebody submits there, or asks for it with `hpcml sync`."""
        self._runtime.forget_home(submissions)
        del self._away[submissions]

    def _take_up(self, path: Path) -> None:
        queued = jobs.read_batch(path)
        if queued.runtime == str(self._runtime.path) and jobs.why_not_here(path, queued) is None:
            ended = jobs.read_ended(jobs.folder_of(path))
            left = [index for index in range(len(queued.jobs)) if index not in ended]
            waiting = {index: jobs.arrived_at(path) for index in left if (path, index) not in self._started}
            held = {index for index in waiting if queued.jobs[index].dependency is not None}
            self._batches[path] = _Batch(path, queued, ended, waiting, held)

    @contextmanager
    def _passing_over(self, path: Path, index: int | None = None) -> Iterator[None]:
        """Go on after an error of one batch or job: it is tried again, or where that is in vain, the job has failed."""
        try:
            yield
        except (OSError, HpcmlError) as error:
            batch = self._batches.get(path)
            if index is None or batch is None or _is_passing(error):
                self._warn(f"{path.name}: {error}")
                return
            why = why_not(error, batch.folder) if isinstance(error, OSError) else str(error)
            log.warning("job %d of %s was not started: %s", index, path.name, why)
            _tell_failed(batch.queued.jobs[index].sources, why)
            with suppress(OSError):  # on a full disk, it is tried, and fails, again
                batch.end(index)

    def _warn(self, words: str) -> None:
        if words not in self._warned:
            self._warned.add(words)
            log.warning("%s", words)

    def _reap(self) -> None:
        """Look for agents that have ended; what follows for their jobs can be seen only while their home is there."""
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        for (path, index), started in list(self._started.items()):
            if not self._runtime.lives(started) and path.parent.parent not in self._away:
                with self._passing_over(path, index):
                    if (batch := self._batches.get(path)) is not None and index not in batch.ended:
                        self._judge(batch, started)
                    self._runtime.forget_started(started)
                    del self._started[path, index]

    def _judge(self, batch: _Batch, started: StartedJob) -> None:
        """Let the job wait again for what is left where a run was put back, or its agent was killed midway.

        Where none of its runs has begun, its agent could not; an agent of a queue that was killed may never have been.
        """
        left = jobs.left_of(batch.queued.jobs[started.index], batch.folder)
        has_begun = any(jobs.agent_logs(source) != before for source, before in started.begun.items())
        if left and (has_begun or started.key in self._adopted):
            batch.waiting[started.index] = time.time()
            self._adopted.discard(started.key)
            return
        _tell_failed(left, _last_words(started), only=State.PENDING)
        batch.end(started.index)

    def _finish_batches(self) -> None:
        """Take those out of the queue whose jobs all have ended."""
        for path, batch in list(self._batches.items()):
            if len(batch.ended) == len(batch.queued.jobs) and path.parent.parent not in self._away:
                with self._passing_over(path):
                    path.unlink(missing_ok=True)
                    del self._batches[path]

    def _start_what_fits(self) -> None:
        """Start in order of arrival what has room; a job that has none keeps what it needs from those behind it."""
        cores_kept = gpus_kept = 0
        running = [job for job in self._started.values() if self._runtime.lives(job)]
        if is_due := time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
        for batch, index in self._in_order():
            job, pool, limit = batch.queued.jobs[index], batch.queued.pool, batch.queued.max_parallel
            with self._passing_over(batch.path, index):
                if (is_due and self._is_over(batch, index)) or index in batch.held:
                    continue
                is_at_limit = limit is not None and sum(one.batch == str(batch.path) for one in running) >= limit
                if is_at_limit or job.cores > pool.cores or job.gpus > len(pool.gpus):
                    continue  # it holds up nobody
                cores, gpus = free_of(pool, running)
                if job.cores > cores - cores_kept or (job.gpus and job.gpus > len(gpus) - gpus_kept):
                    cores_kept, gpus_kept = cores_kept + job.cores, gpus_kept + job.gpus
                elif (started := self._start(batch, index, gpus[: job.gpus])) is not None:
                    running.append(started)

    def _in_order(self) -> list[tuple[_Batch, int]]:
        there = [batch for path, batch in self._batches.items() if path.parent.parent not in self._away]
        places = [(since, batch.path, index) for batch in there for index, since in batch.waiting.items()]
        return [(self._batches[path], index) for _, path, index in sorted(places)]

    def _is_over(self, batch: _Batch, index: int) -> bool:
        """Tell whether nobody wants the job any more, or it waits in vain, of which whoever looks next tells."""
        job = batch.queued.jobs[index]
        outlook = _outlook(job) if index in batch.held else Outlook.MET
        if outlook is Outlook.MET:
            batch.held.discard(index)
        if is_over := outlook is Outlook.NEVER or job.is_unwanted:
            batch.end(index)
        return is_over

    def _start(self, batch: _Batch, index: int, gpus: list[str]) -> StartedJob | None:
        """Start the agent of the job; None where nothing is left for it to do."""
        job = batch.queued.jobs[index]
        left = jobs.left_of(job, batch.folder)
        if not left or _was_ended(job, jobs.token_of(batch.path)):
            batch.end(index)
            return None
        jobs.write_ended(batch.folder, batch.ended)  # a disk that has no room for this has none for a run either
        if len(job.sources) == 1:
            check(Path(job.command[-1]), top=home_of(Path(job.sources[0])))  # its script
        else:
            write_sources(jobs.pack_file(batch.folder, index), [left])
        started = StartedJob(
            batch=str(batch.path),
            index=index,
            run_dir=job.run_dirs[0],
            cores=job.cores,
            gpus=gpus,
            begun={source: jobs.agent_logs(source) for source in left},
        )
        own = {"CUDA_VISIBLE_DEVICES": ",".join(gpus), jobs.QUEUE_INDEX: str(index)}
        with open_file(Path(job.run_dirs[0]) / QUEUE_LOG, "ab") as output, self._runtime.noted(started) as lock:
            subprocess.Popen(
                job.command,
                cwd=batch.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**batch.queued.environ, **own},
                start_new_session=True,  # it outlives this queue if need be
                pass_fds=(lock, self._kept),
            )
        del batch.waiting[index]
        self._started[started.key] = started
        return started


def _is_removed(home: Path) -> bool:
    """Tell whether *home* was removed: not so where it may be mounted again."""
    with suppress(OSError):
        return not home.exists() and home.parent.is_dir()
    return False


def _outlook(job: QueuedJob) -> Outlook:
    """Return whether what the job waits for has happened."""
    try:
        return dependency.look(job.dependency, Path(job.run_dirs[0]).parent.parent)[0]
    except (HpcmlError, OSError):  # of a journal there, which may be put right: whoever looks next says so
        return Outlook.OPEN


def _was_ended(job: QueuedJob, token: str) -> bool:
    """Tell whether the job was ended while it waited: another command saw that this is in vain, and said so.

    What it waited for may come true later all the same, for it may be retried; the job is then retried, too.
    """
    try:
        told = [read_fold(run_dir_of(Path(source))) for source in job.sources]
    except HpcmlError:  # of a journal: the run's agent will look, and say so
        return False
    return all(one.state.is_final and one.job is not None and one.job.job_id == token for one in told)


def _last_words(job: StartedJob) -> str:
    """Return why an agent could not begin: it complained, or there was none, since its Python is gone."""
    with suppress(OSError):
        lines = (Path(job.run_dir) / QUEUE_LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        agents = [line.removeprefix(_AGENTS_WORDS) for line in lines if line.startswith(_AGENTS_WORDS)]
        return next(filter(str.strip, reversed([*lines, *agents])), "its agent was killed before it began")
    return "see hpcml logs"


def _tell_failed(sources: Sequence[str], why: str, *, only: State | None = None) -> None:
    """Tell in the journals of those runs that have not ended, or are in the state *only*, why they were not started."""
    for source in sources:
        run_dir = run_dir_of(Path(source))
        with suppress(HpcmlError, OSError):  # of a damaged run: whoever looks at it says so
            told = read_fold(run_dir)
            if told.state.is_final or only not in (None, told.state) or not is_ours(run_dir.path):
                continue
            with JournalWriter.open(
                str(run_dir.journals), run=run_dir.uid, attempt=told.attempt, writer="queue"
            ) as journal:
                journal.event(EventName.SUBMISSION_FAILED, {"reason": f"it was not started: {why}"})


def _is_passing(error: Exception) -> bool:
    """Tell whether *error* is the file system's or the machine's at this moment, and no fault of a job's own files."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _PASSING
