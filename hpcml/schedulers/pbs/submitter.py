"""Runs handed to PBS Pro or OpenPBS: one pack of runs as a plain job, several as one job array.

`script` renders what is submitted, `submission` calls qsub and qdel, `query` asks qstat and qselect. A job is asked
for by qsub's own words, and its script says the same, for who submits it by hand. Source: the man pages of qsub, qdel,
qstat, qselect and pbs_resources.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.runs.private import make_folder
from hpcml.schedulers import batches
from hpcml.schedulers.commands import FEWER_JOBS, NoAnswerError, advised
from hpcml.schedulers.contract import Answers, Batch, Job, Preview, Ticket
from hpcml.schedulers.pbs import query, submission
from hpcml.schedulers.pbs.answers import JobId, parse_id
from hpcml.schedulers.pbs.script import Ask, ask, qsub_argv, render
from hpcml.schedulers.request import request_for_batch
from hpcml.schedulers.script import requeue_command, time_limit_command

_SCHEDULER = "pbs"
# Words of PBS's refusals (pbs_messages.c), and what to set; the first that is in them counts
_ADVICE = {
    "Array job exceeds": "set cluster.max_array_size to what the server and the queue allow: larger sweeps are split",
    "limit on resource": "you may have no more of it asked for at once: wait, submit fewer, or ask for less",
    "would exceed": FEWER_JOBS,
    "Maximum number of jobs": FEWER_JOBS,
    "violates queue": "set resources.walltime, nodes and gpus_per_node to what the queue allows (qstat -Q -f), or "
    "resources.partition to another",
    "Unknown queue": "set resources.partition",
    "Unauthorized Request": "the queue may be closed to you: resources.partition names another",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QsubCall:
    """One call of qsub, prepared.

    `prepare` makes it; `text` is the script to be written to `script`.
    """

    wanted: Ask
    script: Path
    text: str

    @property
    def argv(self) -> list[str]:
        """The words of the call."""
        return qsub_argv("qsub", self.wanted, self.script)


@dataclass(frozen=True, slots=True, kw_only=True)
class PbsSubmitter:
    """PBS by its command line programs; *submissions* must lie on a file system that the nodes share.

    Time limits are in seconds, for each call of a program.
    """

    submissions: Path
    submit_timeout_s: float = submission.SUBMIT_TIMEOUT_S
    ask_timeout_s: float = query.ASK_TIMEOUT_S
    scripts: batches.OwnScripts = field(default_factory=batches.OwnScripts, compare=False)

    def script_for(self, job: Job) -> str:
        """Return the run's own script: `qsub job.sh` runs it once more as a plain job."""
        return self.scripts.script_for(job, lambda batch: prepare(self.submissions, batch).text)

    def preview(self, batch: Batch) -> Preview:
        """Return what `submit` would send."""
        prepared = prepare(self.submissions, batch)
        return Preview(command=prepared.argv, script=prepared.text)

    def submit(self, batch: Batch) -> list[Ticket]:
        """Queue *batch* by one call of qsub.

        Raises `SubmissionError` with PBS's words where nothing was queued, and `UncertainSubmissionError` where that
        cannot be known now: then `find` has to be asked before this is done again.
        """
        prepared = prepare(self.submissions, batch)
        batches.write_down(self.submissions, batch, prepared.text)
        try:
            make_folder(prepared.wanted.log_dir, parents=True)
        except OSError as error:
            raise SubmissionError(f"{prepared.wanted.log_dir} cannot be made: {error.strerror}") from error
        name = prepared.wanted.name
        job_id = submission.submit(
            prepared.argv,
            name=name,
            timeout_s=self.submit_timeout_s,
            ask_timeout_s=self.ask_timeout_s,
            advised=lambda words: advised(words, _ADVICE),
        )
        return batches.tickets_of(_SCHEDULER, batch, job_id=job_id, job_name=name)

    def find(self, batch: Batch) -> list[Ticket] | None:
        """Look for a job of the batch's name, in PBS's history too: see `query.find` for what proves what.

        None where PBS has no such job. Raises `NoAnswerError` where it cannot be asked.
        """
        name = prepare(self.submissions, batch).wanted.name
        job_id = query.find(name, timeout_s=self.ask_timeout_s)
        return None if job_id is None else batches.tickets_of(_SCHEDULER, batch, job_id=job_id, job_name=name)

    def query(self, tickets: Collection[Ticket]) -> Answers:
        """Ask for *tickets*: one call for each array, and one or two for plain jobs that all live.

        Raises `HpcmlError` for a ticket whose id is none of PBS.
        """
        return query.query({ticket: id_of(ticket) for ticket in tickets}, timeout_s=self.ask_timeout_s)

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Delete the jobs, or elements of arrays, one call of qdel each; without an index, a whole array.

        PBS sends SIGTERM, and SIGKILL ten seconds later, and may forget it: one that still runs after some fifteen
        seconds has to be told again, which does no harm. Every job is told before what was refused is raised.
        """
        refusals: list[HpcmlError] = []
        jobs = {job.asked: job for job in map(id_of, tickets)}  # the runs of a pack are one job
        for job in jobs.values():
            try:
                submission.delete(job, timeout_s=self.ask_timeout_s)
            except NoAnswerError:
                raise  # nor will it answer for the others
            except HpcmlError as error:
                refusals.append(error)
        if refusals:
            more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
            raise HpcmlError(f"{refusals[0]}{more}") from refusals[0]


def prepare(submissions: Path, batch: Batch) -> QsubCall:
    """Return what is sent for *batch*.

    Nothing is written or started. Raises `ConfigError` for what PBS has no word for.
    """
    request, script = request_for_batch(batch), batches.script_of(submissions, batch)
    wanted = ask(
        request,
        name=batches.name_of(batches.label_of(batch), batch.token),
        log_dir=batch.jobs[0].run_dir.logs if batch.is_single else batches.folder_of(submissions, batch),
        array_size=batches.size_of(batch),
    )
    text = render(
        request,
        wanted,
        remark=batches.remark_of(batch, by="qsub"),
        script=script,
        command=batches.agent_of(submissions, batch),
        requeue=requeue_command(_SCHEDULER, is_shared=batches.is_shared(batch)),
        time_limit=time_limit_command(_SCHEDULER),
    )
    return QsubCall(wanted=wanted, script=script, text=text)


def put_back(job: Job, environ: Mapping[str, str], *, is_alone: bool) -> Ticket:  # noqa: ARG001 - always a new job
    """Submit the run's own script from inside its job, whose variables are *environ*, and return the new ticket.

    The new job's name ends with the number of this one: both are there for a while. Raises `HpcmlError` outside of a
    job, and `SubmissionError` where PBS refuses.
    """
    before = parse_id(environ.get("PBS_JOBID", ""))
    if before is None:
        raise HpcmlError("this is no job of PBS: PBS_JOBID is not set")
    prepared = prepare(Path("unused"), batches.own_batch(job))
    again = submission.submit_again(prepared.wanted, prepared.script, environ, mark=f"-q{before.number}")
    return Ticket(scheduler=_SCHEDULER, job_id=again.job_id, job_name=again.name)


def id_of(ticket: Ticket) -> JobId:
    """Return the job that *ticket* stands for; raise `HpcmlError` where its id is none of PBS."""
    job = parse_id(ticket.job_id)
    if job is None:
        raise HpcmlError(f"{ticket.job_id!r} is no job id of PBS")
    return job if ticket.array_index is None else replace(job, index=ticket.array_index)
