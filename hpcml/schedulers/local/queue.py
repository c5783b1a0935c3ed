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
from contextlib import suppress
from dataclasses import dataclass, field
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
_LOOK_S = 1.0  # between looks at marks and dependencies, and before what failed for a moment is tried again
_PASSING = OF_THE_DISK | {errno.EAGAIN}  # of no job: neither its files nor its agent can be made now (man 2 fork)


@dataclass(slots=True)
class _Batch:
    """A batch that is not finished: its jobs that wait, each with what gives it its place, and those that ended."""

    path: Path
    queued: QueuedBatch
    waiting: dict[int, float]
    ended: set[int]
    held: set[int]  # those of the waiting ones that wait for other runs
    not_before: dict[int, float] = field(default_factory=dict)  # jobs that could not be started, by the monotonic clock
    is_noted: bool = True  # `ended` is on disk

    @property
    def folder(self) -> Path:
        return jobs.folder_of(self.path)

    def end(self, index: int) -> None:
        self.waiting.pop(index, None)
        self.ended.add(index)
        self.is_noted = False

    def note(self) -> bool:
        """Have on disk what has ended; return whether it is, which a full disk prevents."""
        if not self.is_noted:
            with suppress(OSError):
                jobs.write_ended(self.path, self.ended)
                self.is_noted = True
        return self.is_noted


@dataclass(slots=True)
class _Active:
    """A job whose agent was started, by this process or, without *agent*, by one that was killed."""

    job: StartedJob
    agent: subprocess.Popen[bytes] | None = None
    has_ended: bool = False

    @property
    def exit_code(self) -> int | None:
        return None if self.agent is None else self.agent.poll()


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


class _Queue:
    """All jobs of the homes that *runtime* names: those that wait, in order, and those whose agents run."""

    def __init__(self, runtime: RuntimeFolder) -> None:
        self._runtime = runtime
        self._homes: dict[Path, int] = {}  # open descriptors: whether a home was removed
        self._away: set[Path] = set()
        self._batches: dict[Path, _Batch] = {}
        self._last_of: dict[str, Path] = {}  # by run directory: the batch in which it came last
        self._active = {job.key: _Active(job) for job in runtime.started()}
        self._warned: set[str] = set()
        self._look_at = 0.0
        self._kept = runtime.keep()

    def run(self, lock: int) -> None:
        """Start and reap until nothing is left, with the queue's *lock*, which is given back then.

        What was submitted just before that is seen after it, and what comes later finds the lock free.
        """
        held: int | None = lock
        while held is not None:
            self._look_for_batches()
            while self._batches or self._active:
                self._turn()
                time.sleep(_POLL_S)
                self._look_for_batches()
            os.close(held)
            self._look_for_batches()
            held = self._runtime.try_lock() if self._batches else None

    def fail(self, why: str) -> None:
        """Tell in the journals of all runs that wait *why* none of them will be started."""
        for batch in self._batches.values():
            for index in list(batch.waiting):
                _tell_failed(batch.queued.jobs[index].sources, why, only=State.PENDING)
                batch.end(index)
            self._finish(batch)

    def _turn(self) -> None:
        self._reap()
        if is_due := time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
        for batch in list(self._batches.values()):
            if batch.path.parent.parent not in self._away:
                if is_due:
                    self._sort_out(batch)
                self._finish(batch)
        self._start_what_fits()

    # What is there

    def _look_for_batches(self) -> None:
        """Take up what was submitted since; a home that cannot be seen is away, and one that was removed forgotten."""
        for submissions in self._runtime.homes():
            try:
                if submissions not in self._homes:
                    self._homes[submissions] = os.open(submissions, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                files = jobs.batch_files(submissions)
                self._away.discard(submissions)
            except OSError as error:
                self._warn(f"a home is away: {error}")
                self._away.add(submissions)
                files = []
                if not self._is_removed(submissions):
                    continue
            for path in [path for path in self._batches if path.parent.parent == submissions and path not in files]:
                del self._batches[path]
            for path in files:
                if path not in self._batches:
                    self._take_up(path)

    def _is_removed(self, submissions: Path) -> bool:
        """Tell whether the home was removed, and not moved or unmounted; it is forgotten then."""
        if submissions not in self._homes or os.fstat(self._homes[submissions]).st_nlink:
            return False
        os.close(self._homes.pop(submissions))
        self._runtime.forget_home(submissions)
        self._away.discard(submissions)
        return True

    def _take_up(self, path: Path) -> None:
        try:
            queued = jobs.read_batch(path)
            if queued.runtime != str(self._runtime.path) or jobs.why_not_here(path, queued) is not None:
                return
            ended = jobs.read_ended(jobs.folder_of(path)) or set()
            held = {index for index, job in enumerate(queued.jobs) if job.dependency is not None}
            batch = _Batch(path, queued, {}, ended, held)
            for index, job in enumerate(queued.jobs):
                for run_dir in job.run_dirs:
                    self._last_of[run_dir] = max(path, self._last_of.get(run_dir, path))
                if index not in ended and (path, index) not in self._active:
                    batch.waiting[index] = jobs.waits_since(job, path)
        except (OSError, HpcmlError) as error:
            self._warn(f"a batch is passed over: {error}")
        else:
            self._batches[path] = batch

    def _warn(self, words: str) -> None:
        if words not in self._warned:
            self._warned.add(words)
            log.warning("%s", words)

    # What has ended

    def _reap(self) -> None:
        """Look for agents that have ended; what follows for their jobs can be seen only while their home is there."""
        for key, active in list(self._active.items()):
            if active.agent is None:
                active.has_ended = active.has_ended or not self._runtime.lives(active.job)
            else:
                active.has_ended = active.exit_code is not None
            if not active.has_ended or key[0].parent.parent in self._away:
                continue
            batch = self._batches.get(key[0])
            try:
                if batch is not None:
                    self._judge(batch, active)
            except (OSError, HpcmlError) as error:
                if _is_passing(error):
                    continue
                assert batch is not None
                self._give_up(batch, active.job.index, error)
            self._runtime.forget_started(active.job)
            del self._active[key]

    def _judge(self, batch: _Batch, active: _Active) -> None:
        """Let the job wait again where a run was put back, or its agent was killed before all of its runs had begun."""
        index, code = active.job.index, active.exit_code
        left = self._left(batch, index)
        began = {source for source, before in active.job.begun.items() if jobs.agent_logs(source) != before}
        was_put_back = not began.isdisjoint(left)
        was_killed = code is None or (code < 0 and bool(began))  # None: nobody knows how it ended
        if left and (was_put_back or was_killed):
            batch.waiting[index] = jobs.waits_since(batch.queued.jobs[index], batch.path)
            return
        if left and code:
            _tell_failed(left, _last_words(active.job, code), only=State.PENDING)
        batch.end(index)

    def _left(self, batch: _Batch, index: int) -> list[str]:
        """Return what is left to do of the job: no agent has begun it, and it was not submitted anew since."""
        left = jobs.left_of(batch.queued.jobs[index], batch.folder)
        return [source for source in left if self._last_of.get(str(run_dir_of(Path(source)).path)) == batch.path]

    def _sort_out(self, batch: _Batch) -> None:
        """Pass over jobs that nobody wants any more, or that wait in vain, which whoever looks next tells."""
        for index in list(batch.waiting):
            job = batch.queued.jobs[index]
            with suppress(OSError):  # asked again
                outlook = _outlook(job) if index in batch.held else Outlook.MET
                if outlook is Outlook.NEVER or job.is_unwanted:
                    batch.end(index)
                elif outlook is Outlook.MET:
                    batch.held.discard(index)

    def _finish(self, batch: _Batch) -> None:
        """Take the batch out of the queue once all of its jobs have ended."""
        is_over = not batch.waiting and all(path != batch.path for path, _ in self._active)
        if batch.note() and is_over:
            with suppress(OSError):
                batch.path.unlink(missing_ok=True)
                del self._batches[batch.path]

    def _give_up(self, batch: _Batch, index: int, error: HpcmlError | OSError) -> None:
        """Tell in the journals of the job's runs that have not ended why they were not started."""
        why = why_not(error, batch.folder) if isinstance(error, OSError) else str(error)
        log.warning("job %d of %s was not started: %s", index, batch.path.name, why)
        _tell_failed(batch.queued.jobs[index].sources, why)
        batch.end(index)

    # What starts

    def _start_what_fits(self) -> None:
        """Start in order of arrival what has room; a job that has none keeps what it needs from those behind it."""
        cores_kept = gpus_kept = 0
        for batch, index in self._in_order():
            job, pool = batch.queued.jobs[index], batch.queued.pool
            limit = batch.queued.max_parallel or len(batch.queued.jobs)
            is_over_limit = sum(path == batch.path for path, _ in self._active) >= limit
            if is_over_limit or job.cores > pool.cores or job.gpus > len(pool.gpus):
                continue  # it holds up nobody
            cores, gpus = free_of(pool, [one.job for one in self._active.values() if not one.has_ended])
            if job.cores > cores - cores_kept or (job.gpus and job.gpus > len(gpus) - gpus_kept):
                cores_kept, gpus_kept = cores_kept + job.cores, gpus_kept + job.gpus
                continue
            try:
                self._start(batch, index, gpus[: job.gpus])
            except (OSError, HpcmlError) as error:
                if _is_passing(error):
                    self._warn(f"job {index} of {batch.path.name} waits for its files: {error}")
                    batch.not_before[index] = time.monotonic() + _LOOK_S
                else:
                    self._give_up(batch, index, error)

    def _in_order(self) -> Iterator[tuple[_Batch, int]]:
        """Yield the jobs that wait for nothing but cores, GPUs and their turn."""
        there = [batch for batch in self._batches.values() if batch.path.parent.parent not in self._away]
        places = [(since, batch.path, index) for batch in there for index, since in batch.waiting.items()]
        for _, path, index in sorted(places):
            batch = self._batches[path]
            if index not in batch.held and batch.not_before.get(index, 0.0) <= time.monotonic():
                yield batch, index

    def _start(self, batch: _Batch, index: int, gpus: list[str]) -> None:
        """Start the agent of the job, unless nothing is left for it to do."""
        job, left = batch.queued.jobs[index], self._left(batch, index)
        if not left or job.is_unwanted or _was_ended(job, jobs.token_of(batch.path)):
            batch.end(index)
            return
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
            since_s=time.time(),
            begun={source: jobs.agent_logs(source) for source in left},
        )
        own = {"CUDA_VISIBLE_DEVICES": ",".join(gpus), jobs.QUEUE_INDEX: str(index)}
        with open_file(Path(job.run_dirs[0]) / QUEUE_LOG, "ab") as output:
            lock = self._runtime.write_started(started)
            try:
                agent = subprocess.Popen(
                    job.command,
                    cwd=batch.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**batch.queued.environ, **own},
                    umask=batch.queued.umask,
                    start_new_session=True,  # it outlives this queue if need be
                    pass_fds=(lock, self._kept),
                )
            except OSError:
                self._runtime.forget_started(started)
                raise
            finally:
                os.close(lock)
        del batch.waiting[index]
        self._active[started.key] = _Active(started, agent)


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


def _last_words(job: StartedJob, code: int) -> str:
    """Return why an agent could not begin: it complained, or there was none, since its Python is gone."""
    if code < 0:
        return f"its agent was killed by signal {-code}"
    with suppress(OSError):
        text = (Path(job.run_dir) / QUEUE_LOG).read_text(encoding="utf-8", errors="replace")
        lines = [line for line in reversed(text.splitlines()) if line.strip()]
        agents = [line.removeprefix(_AGENTS_WORDS) for line in lines if line.startswith(_AGENTS_WORDS)]
        return next(iter([*agents, *lines]), "see hpcml logs")
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
