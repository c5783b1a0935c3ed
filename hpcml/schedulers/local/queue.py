"""The queue of one local batch: starts the agent of each pack of runs as soon as its cores and GPUs are free.

A queue that is killed can be started again over the same folder, and goes on where the one before it was: each job is
written down before its agent begins, and an agent that lives on keeps its cores and GPUs. The lock on the batch, in
`queues` beside its folder, names the queue's process: it says that a queue is at work, and, when the process is dead,
that it was killed.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shlex
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcml.codec import decode, encode
from hpcml.errors import OF_THE_DISK, ConfigError, HpcmlError, NotPrivateError, SubmissionError, why_not
from hpcml.model.image import without_login
from hpcml.model.state import State
from hpcml.runs import dependency
from hpcml.runs.atomic import write_text
from hpcml.runs.cancellation import is_cancelled
from hpcml.runs.dependency import Outlook
from hpcml.runs.files import parse_json, read_json
from hpcml.runs.layout import QUEUE_LOG, folder_of_all, home_of, queues_of, run_dir_of
from hpcml.runs.liveness import Liveness, ProcessIdentity, liveness_of
from hpcml.runs.lock import Lock, try_lock
from hpcml.runs.private import FILE, check, is_ours, make_folder, open_file, read
from hpcml.runs.run_json import read_own
from hpcml.runs.state import EventName, read_fold
from hpcml.schedulers.batches import write_sources
from hpcml.schedulers.contract import Job, Ticket
from hpcml.schedulers.local.slots import Claim, Need, Pool, QueuePlace, claim
from hpcml.schedulers.script import REQUEUE, agent_array_command, requeue_command
from hpcml_client.journal import JournalWriter

log = logging.getLogger(__name__)

_ITS_WORDS = "hpcml agent: "

TICKET = "ticket.json"  # in the batch's folder: the queue's id
QUEUE_FOLDER = "HPCML_QUEUE"  # what a job of the queue finds in its environment: the batch's folder, and its number
QUEUE_INDEX = "HPCML_QUEUE_INDEX"
_QUEUE = "queue.json"
_POLL_S = 0.1
_MAY_BE_AWAY_S = 600.0  # a file system, before the queue ends and waits to be started again
_LOOK_S = 1.0  # between looks at all jobs: whether they are wanted, and at the journals of runs that they wait for
_PASSING = OF_THE_DISK | {errno.EAGAIN}  # of no job: neither its files nor its agent can be made now (man 2 fork)
# A shell that becomes the agent once it is told to: when the queue is killed before that, it ends
_ON_COMMAND = ["/bin/bash", "-c", 'read -r go && exec "$@" </dev/null', "agent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """One run of a batch, or several that one agent runs in turn.

    It is written into queue.json for the queue's process.
    """

    sources: list[str]  # their manifests
    script: str  # of the first: what starts the agent of a run that is alone
    need: Need
    dependency: str | None = None  # what it waits for, by the whole ids of runs

    @property
    def is_unwanted(self) -> bool:
        """Whether somebody wanted all of it to stop, or removed it."""
        return all(is_cancelled(run_dir_of(Path(source))) or _is_removed(source) for source in self.sources)

    def outlook(self) -> Outlook:
        """Return whether what it waits for has happened; where that can never be, whoever looks next says so."""
        if self.dependency is None:
            return Outlook.MET
        try:
            return dependency.look(self.dependency, run_dir_of(Path(self.sources[0])).path.parent.parent)[0]
        except (HpcmlError, OSError):  # of a journal there, which may be put right: whoever looks next says so
            return Outlook.OPEN


def _is_removed(source: str) -> bool:
    return not Path(source).exists() and Path(folder_of_all(str(run_dir_of(Path(source)).path))).is_dir()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBatch:
    """What a queue needs to know.

    `lock_dir` holds the claims on cores and GPUs (`slots`); `max_parallel` None means no limit but the machine.
    """

    jobs: list[Queued]
    lock_dir: str
    pool: Pool
    max_parallel: int | None
    arrived_at: float = 0.0  # unix seconds: of all that wait on this machine the first comes first


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A queue that was started, as its ticket says."""

    job_id: str  # pid-starttime
    queue: ProcessIdentity | None  # None: by an older version
    before: Sequence[str] = ()  # the ids of the queues of this batch that were killed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Handed:
    """A job whose agent was started, as it is written down: by which process, and which attempts had begun before."""

    agent: ProcessIdentity | None  # None: what was written down is damaged, and all that has ever begun has begun since
    begun: Mapping[str, Sequence[str]]  # by manifest: the logs of its agents

    def left(self, sources: Sequence[str]) -> list[str]:
        """Return those of *sources* that no agent has begun since."""
        there = [source for source in sources if Path(source).exists()]
        return [source for source in there if set(_agent_logs(source)) <= set(self.begun.get(source, ()))]


@dataclass(frozen=True, slots=True)
class _Active:
    """An agent that runs, until *poll* returns what it exited with; 0 for one that another queue had started."""

    index: int
    held: Claim | None  # None: the agent itself has it
    poll: Callable[[], int | None]


def write_batch(folder: Path, batch: LocalBatch) -> None:
    """Leave *batch* in *folder*.

    `drain` reads it. Raises `OSError`.
    """
    write_text(folder / _QUEUE, json.dumps(encode(batch)))


def read_batch(folder: Path) -> LocalBatch:
    """Return what `write_batch` left in *folder*; raise `NotPrivateError` where it may be another user's.

    Raises `HpcmlError` where it cannot be read.
    """
    raw = read_own(folder / _QUEUE)
    try:
        batch: LocalBatch = decode(LocalBatch, raw)
    except ConfigError as error:
        raise HpcmlError(f"{folder / _QUEUE} is damaged: {error}") from error
    return batch


def read_ticket(folder: Path) -> Started | None:
    """Return the queue that was started last for the batch in *folder*; None where none was.

    Raises `HpcmlError` where its ticket cannot be read.
    """
    try:
        raw = read_json(folder / TICKET)  # only what was started, and lives, is read off it
        queue = ProcessIdentity.from_details(raw.get("queue") or {})
        return Started(job_id=str(raw["job_id"]), queue=queue, before=[str(job_id) for job_id in raw.get("before", ())])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HpcmlError(f"{folder / TICKET} is damaged: {error}") from error


def pack_file(folder: Path, index: int) -> Path:
    """Return what the agent of job *index* reads where that is several runs."""
    return folder / f"pack-{index}.json"


def again_mark(folder: Path, index: int) -> Path:
    """Return the file by which a job asks to be started once more after its end."""
    return folder / f"again-{index}"


def put_back(job: Job, environ: Mapping[str, str], *, is_alone: bool) -> Ticket:  # noqa: ARG001 - it keeps its place
    """Leave the mark that the queue looks for when the agent has ended, and return the ticket that the run has.

    *environ* is that of the agent. Called by `hpcml.schedulers.requeue`. Raises `HpcmlError` where no queue started
    this run or its ticket cannot be read, and `SubmissionError` where the mark cannot be written.
    """
    folder, index = environ.get(QUEUE_FOLDER), environ.get(QUEUE_INDEX)
    started = read_ticket(Path(folder)) if folder and index else None
    if not folder or not index or started is None:
        raise HpcmlError("no queue of this machine started this run")
    try:
        again_mark(Path(folder), int(index)).touch(mode=FILE)
    except OSError as error:
        raise SubmissionError(f"the queue in {folder} cannot be told: {error.strerror}") from error
    return Ticket(scheduler="local", job_id=started.job_id, array_index=int(index))


def drain(folder: str, *, on_ticket: Callable[[], None] = lambda: None) -> None:
    """Run the whole batch; each agent is in a session of its own, which outlives this queue if need be.

    Jobs start in their order: one that needs more than is free holds up those behind it, and those of later batches
    that would take what it needs. A run that is marked as cancelled before it starts is passed over; one that asks for
    it is put at the end of the queue again. Returns when the last agent has ended, and at once where another process is
    at work on this batch. *on_ticket* is called once the ticket is there. `start` calls it, in a process without a
    terminal.

    Raises what keeps it from its files for ten minutes, as a disk without room; it can then be started again. What is
    wrong with the queue itself would be so again: the runs that wait then have failed, and it is raised, too.
    """
    place = Path(folder)
    batch = read_batch(place)  # looked at before anything else in there is believed
    make_folder(queues_of(place.parent))
    lock = try_lock(queues_of(place.parent), place.name)
    if not isinstance(lock, Lock):
        return
    has_ended = True
    try:
        _write_ticket(place)
        on_ticket()
        has_ended = False
        _Queue(place, batch).run()
        has_ended = True
    except (OSError, HpcmlError):
        raise
    except Exception as error:
        why = f"the queue of this machine failed: {type(error).__name__}: {error} (see {place / QUEUE_LOG})"
        for job in batch.jobs:
            _tell_failed(job.sources, why, only=State.PENDING)
        has_ended = True
        raise
    finally:
        if has_ended:  # else it stays, as that of a queue that was killed, and whoever looks next starts another
            lock.release()


def _write_ticket(folder: Path) -> None:
    """Leave the id of this process, ``pid-starttime``, in ticket.json, which appears whole."""
    ours, before = ProcessIdentity.of_this_process(), read_ticket(folder)
    ids = [] if before is None else [*before.before, before.job_id]
    words = {"job_id": f"{ours.pid}-{ours.created_at or 0:.2f}", "queue": ours.as_details(), "before": ids}
    write_text(folder / TICKET, json.dumps(words))


class _Queue:
    """The jobs of one batch: those that wait for others, those that wait, in order, and those whose agents run."""

    def __init__(self, folder: Path, batch: LocalBatch) -> None:
        self._folder = folder
        self._batch = batch
        self._waiting: deque[int] = deque()
        self._held: list[int] = []  # they wait for other runs
        self._aside: dict[int, float] = {}  # what hides the files of one job alone holds up no other: since when
        self._look_at = 0.0
        self._active: list[_Active] = []
        self._place = QueuePlace(Path(batch.lock_dir), f"{batch.arrived_at:020.6f}-{folder.name}")
        self._home = os.open(folder.parent.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # until the queue ends
        for index in range(len(batch.jobs)):
            self._take_up(index)

    def run(self) -> None:
        """Start and reap until nothing is left; raise what hides its files for ten minutes, or has removed them."""
        away_since: float | None = None
        while self._waiting or self._active or self._held or self._aside:
            try:
                has_started, away_since = self._turn(), None
            except (OSError, HpcmlError) as error:
                if away_since is None:
                    log.warning("the queue waits for its files: %s", error)
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since >= _MAY_BE_AWAY_S or self._is_removed():
                    raise
                has_started = False
            if not has_started:
                time.sleep(_POLL_S if away_since is None else _LOOK_S)

    def _is_removed(self) -> bool:
        """Tell whether the home was removed, and not moved or away, and no agent is at work any more."""
        with suppress(OSError):  # the file system does not say
            if os.fstat(self._home).st_nlink == 0:
                return all(entry.poll() is not None for entry in self._active)
        return False

    def _turn(self) -> bool:
        """Reap, sort out, and start the first that waits if there is room for it; return whether one was started.

        Raises `OSError` where the submissions are away, and then the marks that would be looked for are, too.
        """
        self._folder.parent.stat()
        for entry in [entry for entry in self._active if entry.poll() is not None]:
            self._ended(entry)
        self._sort_out()
        index = next(iter(self._waiting), None)
        if index is None or len(self._active) >= (self._batch.max_parallel or len(self._batch.jobs)):
            self._place.leave()
            return False
        need, pool = self._batch.jobs[index].need, self._batch.pool
        self._place.take(need)
        held = claim(need, pool, Path(self._batch.lock_dir), left=self._place.needed_before(pool))
        if held is None:
            return False
        self._waiting.remove(index)
        self._start(index, held)
        return True

    def _sort_out(self) -> None:
        """Drop jobs that are not to start any more; those whose dependency has come true wait behind the others."""
        is_due = time.monotonic() >= self._look_at
        if is_due:
            self._waiting.extend(index for index in self._aside if index not in self._waiting)
        while self._waiting and self._leaves(self._waiting[0]):
            self._waiting.popleft()
        if is_due:
            self._look_at = time.monotonic() + _LOOK_S
            # All of them: one that is submitted anew later loses its mark, and is that queue's then
            for index in [index for index in self._waiting if self._leaves(index)]:
                self._waiting.remove(index)
            for index in list(self._held):
                job = self._batch.jobs[index]
                found = Outlook.NEVER if self._is_unwanted(index) or self._is_over(index) else job.outlook()
                if found is not Outlook.OPEN:
                    self._held.remove(index)
                if found is Outlook.MET:
                    self._waiting.append(index)

    def _leaves(self, index: int) -> bool:
        """Tell whether the job is not to wait for its turn any more: nobody wants it, or it was set aside just now."""
        try:
            is_unwanted = self._batch.jobs[index].is_unwanted
        except OSError as error:
            if not self._is_of_job(error, index):
                raise
            self._set_aside(index, error)
            return True
        if is_unwanted:
            self._aside.pop(index, None)
        return is_unwanted

    def _is_unwanted(self, index: int) -> bool:
        try:
            return self._batch.jobs[index].is_unwanted
        except OSError as error:
            if not self._is_of_job(error, index):
                raise
            return False  # asked again when its turn comes

    def _is_of_job(self, error: Exception, index: int) -> bool:
        """Tell whether *error* is of a file of the job's own runs, so that the other jobs can go on."""
        told = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(told, OSError) or told.filename is None:
            return False
        place = Path(os.fsdecode(told.filename))
        return any(place.is_relative_to(run_dir_of(Path(source)).path) for source in self._batch.jobs[index].sources)

    def _set_aside(self, index: int, error: OSError | HpcmlError) -> None:
        """Let the job wait behind the others until its files can be seen; after ten minutes it has failed."""
        if index not in self._aside:
            log.warning("job %d waits for its files: %s", index, error)
        if time.monotonic() - self._aside.setdefault(index, time.monotonic()) >= _MAY_BE_AWAY_S:
            del self._aside[index]
            self._give_up(index, error)

    def _take_up(self, index: int) -> None:
        """Put the job where it belongs: new, or as the queue that was killed before this one has left it."""
        try:
            handed = _read_handed(self._folder, index)
        except NotPrivateError as error:
            if _is_passing(error):
                raise
            self._give_up(index, error)
            return
        if handed is None and self._is_anothers(index):
            return
        if handed is None:
            (self._waiting if self._batch.jobs[index].dependency is None else self._held).append(index)
        elif (agent := handed.agent) is not None and liveness_of(agent) is not Liveness.DEAD:
            self._active.append(_Active(index, None, lambda: _gone(agent)))
        elif again_mark(self._folder, index).exists() or self._has_left(index, handed):
            self._waiting.append(index)

    def _has_left(self, index: int, handed: _Handed) -> bool:
        """Tell whether runs of the job have not begun; of files that cannot be seen now its start will tell."""
        try:
            return bool(handed.left(self._batch.jobs[index].sources))
        except OSError as error:
            if not self._is_of_job(error, index):
                raise
            return True

    def _is_over(self, index: int) -> bool:
        """Tell whether the job was ended while it waited: another command saw first that this is in vain, and said so.

        What it waited for may come true later all the same, for it may be retried; the job is then retried, too.
        """
        ticket = read_ticket(self._folder)
        try:
            told = [read_fold(run_dir_of(Path(source))) for source in self._batch.jobs[index].sources]
        except HpcmlError:  # of a journal: the run's agent will look, and say so
            return False
        ours = () if ticket is None else (ticket.job_id, *ticket.before)  # a retry's end may be that of the job before
        return all(one.state.is_final and one.job is not None and one.job.job_id in ours for one in told)

    def _is_anothers(self, index: int) -> bool:
        """Tell whether the job was cancelled and submitted again after the queue before this one was killed."""
        ticket = read_ticket(self._folder)
        if ticket is None or not ticket.before:
            return False
        try:
            jobs = [read_fold(run_dir_of(Path(source))).job for source in self._batch.jobs[index].sources]
        except HpcmlError:  # of a journal: the run's agent will look, and say so
            return False
        return all(job is not None and job.job_id not in (ticket.job_id, *ticket.before) for job in jobs)

    def _ended(self, entry: _Active) -> None:
        why, waits_again = None, False
        try:
            waits_again = again_mark(self._folder, entry.index).exists() or self._has_lost_its_agent(entry)
        except NotPrivateError as error:
            if _is_passing(error):
                raise
            why = error
        except OSError as error:
            if not self._is_of_job(error, entry.index):
                raise
            waits_again = len(self._batch.jobs[entry.index].sources) > 1  # its start will look again what is left
        if entry.held is not None:
            entry.held.release()
        self._active.remove(entry)
        if why is not None:
            self._give_up(entry.index, why)
        elif waits_again:
            self._waiting.append(entry.index)
        elif (entry.poll() or 0) > 0:
            self._tell_unbegun(entry.index)

    def _has_lost_its_agent(self, entry: _Active) -> bool:
        """Tell whether the agent of a pack was killed in the midst of it: then the others of the pack still wait."""
        sources, handed = self._batch.jobs[entry.index].sources, _read_handed(self._folder, entry.index)
        was_killed = (entry.poll() or 0) < 0
        return was_killed and handed is not None and 0 < len(handed.left(sources)) < len(sources)

    def _start(self, index: int, held: Claim) -> None:
        """Start the agent of the job; where that fails, its runs have failed, and the others go on.

        Where no job could be started at this moment, as on a full disk, it waits on, and the error is raised.
        """
        try:
            agent = self._written_down(index, held)
        except (OSError, HpcmlError) as error:
            held.release()
            if _is_passing(error) and self._is_of_job(error, index):
                self._set_aside(index, error)
            elif _is_passing(error):
                self._waiting.appendleft(index)
                raise
            else:
                self._aside.pop(index, None)
                self._give_up(index, error)
            return
        self._aside.pop(index, None)
        if agent is None:
            held.release()
            return
        self._active.append(_Active(index, held, agent.poll))

    def _written_down(self, index: int, held: Claim) -> subprocess.Popen[bytes] | None:
        """Start the agent and write it down; None where nothing is left for it to do."""
        job, handed = self._batch.jobs[index], _read_handed(self._folder, index)
        sources, mark = job.sources, again_mark(self._folder, index)
        if handed is not None and not mark.exists():
            sources = handed.left(sources)
            if not sources:
                return None
            write_sources(pack_file(self._folder, index), [sources])
        with suppress(OSError):  # a full disk: then those that wait are not told who holds what they wait for
            held.label(run_dir_of(Path(job.sources[0])).path)
        agent = _start_agent(self._folder, index, job, held, os.environ)
        assert agent.stdin is not None
        with agent.stdin:  # where it closes without the word, what is to become the agent ends
            begun = {source: _agent_logs(source) for source in sources}
            words = {"agent": ProcessIdentity.of_process(agent.pid).as_details(), "begun": begun}
            write_text(_handed_file(self._folder, index), json.dumps(words))
            mark.unlink(missing_ok=True)  # not before: where this job cannot be started now, it still asks for it
            with suppress(BrokenPipeError):  # it has been killed: `poll` will tell
                agent.stdin.write(b"go\n")
        return agent

    def _tell_unbegun(self, index: int) -> None:
        """Tell in the journals of those of the job's runs that still wait why their agent could not begin.

        It complained, or there was none: the Python that was to be it is gone, or hpcml in it.
        """
        sources, handed = self._batch.jobs[index].sources, _read_handed(self._folder, index)
        with suppress(OSError):
            if handed is None or not (left := handed.left(sources)):
                return
            text = (run_dir_of(Path(sources[0])).path / QUEUE_LOG).read_text(encoding="utf-8", errors="replace")
            lines = [line for line in reversed(text.splitlines()) if line.strip()]
            why = next((line.removeprefix(_ITS_WORDS) for line in lines if line.startswith(_ITS_WORDS)), None)
            _tell_failed(left, why or next(iter(lines), "see hpcml logs"), only=State.PENDING)

    def _give_up(self, index: int, error: HpcmlError | OSError) -> None:
        """Tell in the journals of the job's runs that have not ended why they were not started."""
        why = why_not(error, self._folder) if isinstance(error, OSError) else str(error)
        log.warning("job %d was not started: %s", index, why)
        _tell_failed(self._batch.jobs[index].sources, why)


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


def was_handed(folder: Path, index: int) -> bool:
    """Tell whether an agent was started for job *index* of the batch in *folder*."""
    return _handed_file(folder, index).exists()


def _gone(agent: ProcessIdentity) -> int | None:
    """Return None while *agent*, another queue's child, lives; else a status that says nothing of how it ended."""
    return 0 if liveness_of(agent) is Liveness.DEAD else None


def _is_passing(error: Exception) -> bool:
    """Tell whether *error* is the file system's or the machine's at this moment, and no fault of a job's own files."""
    told = error if isinstance(error, OSError) else error.__cause__
    return isinstance(told, OSError) and told.errno in _PASSING


def _agent_logs(source: str) -> list[str]:
    """Return the names of the logs of a run's agents: each is made when an attempt begins."""
    return sorted(path.name for path in run_dir_of(Path(source)).agent_logs())


def _handed_file(folder: Path, index: int) -> Path:
    return folder / f"job-{index}.json"


def _read_handed(folder: Path, index: int) -> _Handed | None:
    """Return how the job was handed to an agent; None where it was not."""
    try:
        file = _handed_file(folder, index)
        raw = parse_json(read(file, top=home_of(file)))
        begun = {source: [str(name) for name in names] for source, names in raw["begun"].items()}
        return _Handed(agent=ProcessIdentity.from_details(raw["agent"]), begun=begun)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if _is_passing(error):
            raise
        return _Handed(agent=None, begun={})  # somebody had it, which the fence will show


def _start_agent(
    folder: Path, index: int, job: Queued, held: Claim, environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start what becomes the agent of *job* when it reads a line."""
    # A run gets the GPUs that it claimed, and no marks of a job of submitit's or of a job array that somebody works in:
    # those of an array would tell the agent which runs of its file are its own
    foreign = ("SUBMITIT_", "SLURM_ARRAY_", "PBS_ARRAY_", "HPCML_ARRAY_", "HPCML_PACK", "HPCML_NODE_RANK")
    inherited = {name: value for name, value in without_login(environ).items() if not name.startswith(foreign)}
    own = {
        "CUDA_VISIBLE_DEVICES": ",".join(held.gpus),
        REQUEUE: shlex.join(requeue_command("local", is_shared=False)),
        QUEUE_FOLDER: str(folder),
        QUEUE_INDEX: str(index),
    }
    is_alone = len(job.sources) == 1
    if is_alone:
        check(Path(job.script), top=home_of(Path(job.sources[0])))
    argv = ["/bin/bash", job.script] if is_alone else agent_array_command(str(pack_file(folder, index)))
    with open_file(run_dir_of(Path(job.sources[0])).path / QUEUE_LOG, "ab") as log:
        return subprocess.Popen(
            [*_ON_COMMAND, *argv],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**inherited, **own},
            start_new_session=True,
            pass_fds=held.files,
            bufsize=0,
        )
