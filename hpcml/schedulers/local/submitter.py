"""Runs on this machine as a scheduler would: a batch of runs handed to a queue that outlives the terminal.

`start`, a process of its own, begins the `queue` in another, which leaves the ticket and starts the agents as cores and
GPUs become free, which `slots` claims. docs/decisions/local-queue.md tells why.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.model.image import without_login
from hpcml.runs.layout import QUEUE_LOG, home_of, queues_of
from hpcml.runs.liveness import Liveness, ProcessIdentity, liveness_of
from hpcml.runs.lock import clear_one, owners
from hpcml.runs.plan import OF_THE_RUN
from hpcml.runs.private import make_folder, open_file
from hpcml.schedulers import batches
from hpcml.schedulers.commands import NoAnswerError
from hpcml.schedulers.contract import Answers, Batch, Job, Preview, Ticket
from hpcml.schedulers.local.queue import (
    TICKET,
    LocalBatch,
    Queued,
    Started,
    pack_file,
    read_batch,
    read_ticket,
    write_batch,
)
from hpcml.schedulers.local.slots import Need, Pool, make_lock_dir
from hpcml.schedulers.local.waiting import known_as_waiting, why_waiting

_START_TIMEOUT_S = 60
_STARTER = "hpcml.schedulers.local.start"  # the queue is a fork of it: its command line is the same
_BETWEEN_LOOKS_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """A queue that was started in place of one that was killed, with all jobs of its batch."""

    jobs: Sequence[Queued]
    started: Started

    def tickets(self) -> Iterator[tuple[Path, Ticket]]:
        """Yield the ticket of each run of the batch from now on, with the run's manifest."""
        for index, job in enumerate(self.jobs):
            for source in job.sources:
                yield Path(source), _ticket(self.started, index, is_shared=len(job.sources) > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSubmitter:
    """Runs batches by a queue for each, several runs at once as far as cores and GPUs allow.

    *lock_dir* must be on a disk of this machine alone: the claims in it are. *max_parallel* is of one batch; None: no
    limit but *pool*.
    """

    submissions: Path
    lock_dir: Path
    pool: Callable[[], Pool]
    max_parallel: int | None

    def script_for(self, job: Job) -> str:
        """Return the script that runs the agent, on this machine."""
        return (
            "#!/bin/bash\n"
            f"# hpcml run {job.run_dir.uid}; may be started again by hand: bash {job.script.name}\n"
            f"exec {shlex.join(batches.agent_of(self.submissions, batches.own_batch(job)))}\n"
        )

    def preview(self, batch: Batch) -> Preview:
        """Return the script of the first of the runs: the queue starts each of them by itself."""
        first = batch.jobs[0]
        return Preview(command=["bash", str(first.script)], script=self.script_for(first))

    def submit(self, batch: Batch) -> list[Ticket]:
        """Start a queue for *batch*; it is in a session of its own, so neither Ctrl-C nor a logout reaches it.

        Raises `SubmissionError` where the queue surely did not start, or its folder cannot be written, `NoAnswerError`
        where that is not known after a minute, and `NotPrivateError` where the folder of locks is another user's. The
        runs start in the order of the batch, as soon as cores and GPUs are free.
        """
        folder = batches.folder_of(self.submissions, batch)
        try:
            make_lock_dir(self.lock_dir)
            make_folder(folder, parents=True)
            for index, pack in enumerate(batch.packs):
                if len(pack) > 1:
                    batches.write_packs(pack_file(folder, index), [pack])
            write_batch(
                folder,
                LocalBatch(
                    jobs=[_queued(pack) for pack in map(list, batch.packs)],
                    lock_dir=str(self.lock_dir),
                    pool=self.pool(),
                    max_parallel=self._limit(batch),
                    arrived_at=time.time(),
                ),
            )
            started = _start_queue(folder)
        except (OSError, subprocess.SubprocessError) as error:
            if found := self.find(batch):  # whoever started it was killed, or is slow
                return found
            why = _last_words(folder) if isinstance(error, subprocess.CalledProcessError) else str(error)
            raise SubmissionError(f"the local queue did not start: {why} (its log is in {folder})") from error
        return _tickets(batch, started)

    def _limit(self, batch: Batch) -> int | None:
        return min((limit for limit in (self.max_parallel, batch.at_once) if limit is not None), default=None)

    def find(self, batch: Batch) -> list[Ticket] | None:
        """Return the tickets that the start of the queue left; a start that goes on at this moment is waited for.

        None: it surely was not started. Raises `NoAnswerError` where it is still starting after 60 s.
        """
        folder = batches.folder_of(self.submissions, batch)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            is_starting = _is_starting_up(folder)  # looked at first: it leaves the ticket before it ends
            if (started := read_ticket(folder)) is not None:
                return _tickets(batch, started)
            if not is_starting:
                return None
            if time.monotonic() > deadline:
                raise NoAnswerError(f"the local queue of {folder} has been starting for {_START_TIMEOUT_S} s")
            time.sleep(0.1)

    def query(self, tickets: Collection[Ticket]) -> Answers:
        """Return the jobs whose queue lives, or may live: what they do stands in their journals.

        A job whose queue is dead is left out, as one that a scheduler has forgotten. Costs no call of a program.
        """
        waiting = [ticket for ticket in tickets if queue_liveness(ticket.job_id, ticket.queue) is not Liveness.DEAD]
        lacking = why_waiting(self.submissions, waiting)
        return Answers(known={ticket: known_as_waiting(lacking.get(ticket)) for ticket in waiting})

    def start_again(self) -> Iterator[tuple[str, Restarted | str]]:
        """Start each queue of this machine that was killed; yield the token of its batch and the new queue.

        An agent that the killed one had started lives on, and the new one waits for it. Instead of a queue that cannot
        be started now comes the reason; it is tried again in the next call. One whose runs were made in another home is
        never started: this one was copied, or moved.
        """
        for token, owner in sorted(owners(queues_of(self.submissions)).items()):
            folder = self.submissions / token
            if not owner.is_gone or not folder.is_dir():
                continue
            try:
                batch, before = read_batch(folder), read_ticket(folder)
                if (why := _why_not_here(batch, folder)) is not None:
                    clear_one(queues_of(self.submissions), token)
                    yield token, why
                    continue
                make_lock_dir(self.lock_dir)
                write_batch(folder, replace(batch, lock_dir=str(self.lock_dir), pool=self.pool()))
                started = _start_queue(folder)
            except (OSError, subprocess.SubprocessError, HpcmlError) as error:
                yield token, str(error)
            else:
                if before is None or started.job_id != before.job_id:
                    yield token, Restarted(jobs=batch.jobs, started=started)

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Do nothing: the queue passes over a run that is marked, and its agent is told directly.

        `hpcml cancel` writes the mark.
        """


def queue_liveness(job_id: str, queue: ProcessIdentity | None = None) -> Liveness:
    """Return whether the queue of *job_id* lives; what older versions left is the id alone, ``pid-starttime``.

    From where the process cannot be seen (another host, another PID namespace), that is not known, and not "dead". An
    id of another form belongs to no queue: DEAD.
    """
    if queue is not None:
        return liveness_of(queue)
    pid, _, started = job_id.partition("-")
    try:
        host = socket.gethostname()
        return liveness_of(ProcessIdentity(host=host, pid=int(pid), created_at=float(started)))
    except ValueError:  # no queue has such an id
        return Liveness.DEAD


def is_tended(submissions: Path, job_id: str) -> bool:
    """Tell whether the jobs of the queue *job_id* are another queue's by now, or will be.

    Not so where it has come to its end. A queue that was killed is started again by `LocalSubmitter.start_again`.
    """
    for token in owners(queues_of(submissions)):
        found = read_ticket(submissions / token)
        if found is not None and job_id in (found.job_id, *found.before):
            return True
    return False


def _why_not_here(batch: LocalBatch, folder: Path) -> str | None:
    """Return in one line why the runs of *batch* cannot be started in the home of *folder*; None where they can."""
    home = home_of(folder / TICKET)
    for made_in in {home_of(Path(source)) for job in batch.jobs for source in job.sources}:
        with suppress(OSError):
            if made_in.samefile(home):
                continue
        return f"its runs were made in {made_in}, which their plans name: hpcml run submits them anew"
    return None


def _start_queue(folder: Path) -> Started:
    with open_file(folder / QUEUE_LOG, "ab") as log:
        subprocess.run(  # not by `call`: it finishes its work though we be killed meanwhile
            [sys.executable, "-P", "-m", _STARTER, str(folder)],  # -P: the user's queue.py is not Python's
            cwd=folder,
            # it lives on as a queue, of no run whose program may have submitted this
            env={name: value for name, value in without_login(os.environ).items() if name not in OF_THE_RUN},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            timeout=_START_TIMEOUT_S,
            check=True,
        )
    started = read_ticket(folder)
    if started is None:
        raise SubmissionError(f"the local queue did not start (its log is {folder / QUEUE_LOG})")
    return started


def _last_words(folder: Path) -> str:
    """Return the last line that what starts the queue of *folder* has left: of a traceback, its error."""
    lines = (folder / QUEUE_LOG).read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it did not say why")


def _is_starting_up(folder: Path) -> bool:
    """Tell whether a process is at work that will start, or is, the queue of *folder*.

    Looked at twice: a process may begin another, and end, between two looks at the list of all.
    """
    # for command lines alone: whether a process lives is runs/liveness's to say
    for pause_s in (0.0, _BETWEEN_LOOKS_S):
        time.sleep(pause_s)
        for process in psutil.process_iter(["cmdline"]):
            if (process.info["cmdline"] or [])[-2:] == [_STARTER, str(folder)]:
                return True
    return False


def _tickets(batch: Batch, started: Started) -> list[Ticket]:
    return [_ticket(started, index, is_shared=len(pack) > 1) for index, pack in enumerate(batch.packs) for _ in pack]


def _ticket(started: Started, index: int, *, is_shared: bool) -> Ticket:
    return Ticket(scheduler="local", job_id=started.job_id, array_index=index, is_shared=is_shared, queue=started.queue)


def _queued(pack: list[Job]) -> Queued:
    plan = pack[0].manifest.plan
    need = Need(cores=(plan.cpus_per_task or 1) * plan.processes_per_node, gpus=plan.gpus_per_node)
    return Queued(
        sources=[str(job.source) for job in pack],
        script=str(pack[0].script),
        need=need,
        dependency=pack[0].manifest.run.resources.dependency,
    )
