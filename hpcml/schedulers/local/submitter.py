"""Runs on this machine as a scheduler would: a batch is left in its home for the queue, which is started on demand.

docs/decisions/local-queue.md tells why.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.errors import HpcmlError, SubmissionError, why_not
from hpcml.model.image import without_login
from hpcml.runs.layout import queues_of
from hpcml.runs.plan import OF_THE_RUN
from hpcml.runs.private import make_folder, open_file
from hpcml.schedulers import batches
from hpcml.schedulers.contract import Answers, Batch, Job, Preview, Ticket
from hpcml.schedulers.local import jobs
from hpcml.schedulers.local.jobs import QueuedBatch, QueuedJob
from hpcml.schedulers.local.runtime import Pool, RuntimeFolder
from hpcml.schedulers.local.waiting import (
    killed_words,
    known_as_waiting,
    listed,
    runs_left,
    still_queued,
    why_waiting,
)
from hpcml.schedulers.script import REQUEUE, agent_array_command, requeue_command

_START_TIMEOUT_S = 60
# Marks of a job of submitit's or of a job array that somebody works in: those of an array would tell an agent which
# runs of its file are its own
_OF_OTHER_JOBS = ("SUBMITIT_", "SLURM_ARRAY_", "PBS_ARRAY_", "HPCML_ARRAY_", "HPCML_PACK", "HPCML_NODE_RANK")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSubmitter:
    """Hands batches to the queue of this machine, which runs several at once as far as cores and GPUs allow.

    *lock_dir* is the queue's runtime folder, and must be on a disk of this machine alone. *max_parallel* is of one
    batch; None: no limit but *pool*.
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
        """Leave *batch* for the queue, and start that unless it is at work.

        The queue is in a session of its own, so neither Ctrl-C nor a logout reaches it. Raises `SubmissionError` where
        it did not start, or its files cannot be written, and `NotPrivateError` where the runtime folder is another
        user's; nothing is queued then.
        """
        folder, runtime = batches.folder_of(self.submissions, batch), RuntimeFolder(self.lock_dir)
        try:
            runtime.make()
            make_folder(folder, parents=True)
            for index, pack in enumerate(batch.packs):
                if len(pack) > 1:
                    batches.write_packs(jobs.pack_file(folder, index), [pack])
            make_folder(
                queues_of(self.submissions), parents=True
            )  # first: a home without it is taken for one that is away
            runtime.add_home(self.submissions)
            path = jobs.new_file(self.submissions, batch.token)
            jobs.write_batch(path, self._queued(batch, folder))
            _start_queue(runtime, or_remove=path)
        except OSError as error:
            raise SubmissionError(f"the local queue cannot take it: {why_not(error, folder)}") from error
        return _tickets(batch)

    def _queued(self, batch: Batch, folder: Path) -> QueuedBatch:
        environ = {name: value for name, value in _own_environ().items() if not name.startswith(_OF_OTHER_JOBS)}
        environ |= {REQUEUE: shlex.join(requeue_command("local", is_shared=False)), jobs.QUEUE_FOLDER: str(folder)}
        return QueuedBatch(
            jobs=[_queued_job(pack, jobs.pack_file(folder, index)) for index, pack in enumerate(batch.packs)],
            max_parallel=min((n for n in (self.max_parallel, batch.at_once) if n is not None), default=None),
            pool=self.pool(),
            runtime=str(self.lock_dir),
            environ=environ,
        )

    def find(self, batch: Batch) -> list[Ticket] | None:
        """Return the tickets of *batch* if it was left for the queue, whatever became of it since; else None."""
        folder = batches.folder_of(self.submissions, batch)
        is_there = jobs.find_batch(self.submissions, batch.token) is not None or (folder / jobs.ENDED).exists()
        return _tickets(batch) if is_there else None

    def query(self, tickets: Collection[Ticket]) -> Answers:
        """Return the jobs that wait or whose agents run: what they do stands in their journals.

        A job that has ended is left out, as one that a scheduler has forgotten. Costs no call of a program.
        """
        queued = still_queued(self.submissions, tickets)
        lacking = why_waiting(self.submissions, queued)
        return Answers(known={ticket: known_as_waiting(lacking.get(ticket)) for ticket in queued})

    def start_again(self) -> Iterator[str]:
        """Start the queue of this machine again if it was killed; yield a line on that, and on what cannot be started.

        Agents that it had started live on, and the new one waits for them. Batches whose runs were made in another home
        leave the queue: this one was copied, or moved.
        """
        left: dict[RuntimeFolder, int] = {}
        for path in listed(self.submissions):
            try:
                batch = jobs.read_batch(path)
                if (why := jobs.why_not_here(path, batch)) is not None:
                    path.unlink(missing_ok=True)
                    yield f"the local queue cannot start {jobs.token_of(path)}: {why}"
                    continue
                runtime = RuntimeFolder(Path(batch.runtime))
                if not runtime.path.is_dir():  # the machine was restarted, say
                    runtime = RuntimeFolder(self.lock_dir)
                    jobs.write_batch(path, replace(batch, runtime=str(self.lock_dir), pool=self.pool()))
                left[runtime] = left.get(runtime, 0) + runs_left(path, batch)
            except (OSError, HpcmlError) as error:
                yield f"the local queue cannot start {jobs.token_of(path)}: {error}"
        for runtime, count in left.items():
            try:
                runtime.make()
                runtime.add_home(self.submissions)
                if _start_queue(runtime) and count:
                    yield f"{killed_words(count)}, and was started again"
            except (OSError, HpcmlError) as error:
                yield f"the local queue cannot be started again: {error}"

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Do nothing: the queue passes over a run that is marked, and its agent is told directly.

        `hpcml cancel` writes the mark.
        """


def _start_queue(runtime: RuntimeFolder, *, or_remove: Path | None = None) -> bool:
    """Start the queue of *runtime*; return whether it was not at work already.

    Where it cannot be started, *or_remove* is removed before another could serve it, and `SubmissionError` is raised.
    """
    lock = runtime.try_lock()
    if lock is None:
        return False
    try:
        with open_file(runtime.log, "ab") as output:
            subprocess.run(  # not by `call`: it finishes its work though we be killed meanwhile
                # -P: the user's queue.py is not Python's
                [sys.executable, "-P", "-m", "hpcml.schedulers.local.start", str(runtime.path), str(lock)],
                cwd=runtime.path,
                env=_own_environ(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(lock,),
                timeout=_START_TIMEOUT_S,
                check=True,
            )
    except (OSError, subprocess.CalledProcessError) as error:
        if or_remove is not None:
            or_remove.unlink(missing_ok=True)
        why = str(error) if isinstance(error, OSError) else _last_words(runtime)
        raise SubmissionError(f"the local queue did not start: {why} (its log is {runtime.log})") from error
    except (
        subprocess.TimeoutExpired
    ):  # what was submitted stays; if it does not start after all, the next command says so
        pass
    finally:
        os.close(lock)
    return True


def _own_environ() -> dict[str, str]:
    """Return our environment for what lives on: a queue, and agents of no run whose program may have submitted this."""
    return {name: value for name, value in without_login(os.environ).items() if name not in OF_THE_RUN}


def _last_words(runtime: RuntimeFolder) -> str:
    """Return the last line that what starts the queue has left: of a traceback, its error."""
    lines = runtime.log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it did not say why")


def _tickets(batch: Batch) -> list[Ticket]:
    return [
        Ticket(scheduler="local", job_id=batch.token, array_index=index, is_shared=len(pack) > 1)
        for index, pack in enumerate(batch.packs)
        for _ in pack
    ]


def _queued_job(pack: Sequence[Job], pack_file: Path) -> QueuedJob:
    plan, sources = pack[0].manifest.plan, [str(job.source) for job in pack]
    is_alone = len(pack) == 1
    return QueuedJob(
        sources=sources,
        command=["/bin/bash", str(pack[0].script)] if is_alone else agent_array_command(str(pack_file)),
        cores=(plan.cpus_per_task or 1) * plan.processes_per_node,
        gpus=plan.gpus_per_node,
        dependency=pack[0].manifest.run.resources.dependency,
        begun={source: jobs.agent_logs(source) for source in sources},
    )
