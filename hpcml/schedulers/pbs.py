"""Runs handed to PBS Pro or OpenPBS: one pack of runs as a plain job, several as one job array."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.schedulers import batches, pbs_client, pbs_query
from hpcml.schedulers.commands import NoAnswerError
from hpcml.schedulers.pbs_answers import JobId, parse_id
from hpcml.schedulers.pbs_script import Ask, ask, qsub_argv, render
from hpcml.schedulers.request import request_for_pack
from hpcml.schedulers.script import requeue_command
from hpcml.schedulers.submitter import Answers, Batch, Job, Preview, Ticket

_SCHEDULER = "pbs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One call of qsub, prepared."""

    wanted: Ask
    script: Path
    text: str

    @property
    def argv(self) -> list[str]:
        """The words of the call."""
        return qsub_argv("qsub", self.wanted, self.script)


@dataclass(frozen=True, slots=True, kw_only=True)
class PbsSubmitter:
    """PBS by its command line programs; *submissions* must lie on a file system that the nodes share."""

    submissions: Path
    submit_timeout_s: float = pbs_client.SUBMIT_TIMEOUT_S
    ask_timeout_s: float = pbs_client.ASK_TIMEOUT_S

    def script_for(self, job: Job) -> str:
        """Return the run's own script: `qsub job.sh` runs it once more as a plain job."""
        return prepare(self.submissions, batches.own_batch(job)).text

    def preview(self, batch: Batch) -> Preview:
        """Return what `submit` would send."""
        prepared = prepare(self.submissions, batch)
        return Preview(command=prepared.argv, script=prepared.text)

    def submit(self, batch: Batch) -> list[Ticket]:
        """Queue *batch* by one call of qsub; whatever happens to that call, it is never made twice blindly."""
        prepared = prepare(self.submissions, batch)
        batches.write_down(self.submissions, batch, prepared.text)
        try:
            prepared.wanted.log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SubmissionError(f"{prepared.wanted.log_dir} cannot be made: {error.strerror}") from error
        name = prepared.wanted.name
        job_id = pbs_client.submit(prepared.argv, name=name, timeout_s=self.submit_timeout_s)
        return batches.tickets_of(_SCHEDULER, batch, job_id=job_id, job_name=name)

    def find(self, batch: Batch) -> list[Ticket] | None:
        """Look for a job of the batch's name, in PBS's history too: see `pbs_client.find` for what proves what."""
        name = prepare(self.submissions, batch).wanted.name
        job_id = pbs_client.find(name, timeout_s=self.ask_timeout_s)
        return None if job_id is None else batches.tickets_of(_SCHEDULER, batch, job_id=job_id, job_name=name)

    def query(self, tickets: Collection[Ticket]) -> Answers:
        """Ask for *tickets*: one call for each array, and one or two for plain jobs that all live."""
        return pbs_query.query({ticket: id_of(ticket) for ticket in tickets}, timeout_s=self.ask_timeout_s)

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Delete the jobs, or elements of arrays, one call of qdel each; without an index, a whole array.

        PBS sends SIGTERM, and SIGKILL ten seconds later, and may forget it: one that still runs after some fifteen
        seconds has to be told again, which does no harm. Every job is told before what was refused is raised.
        """
        refusals: list[HpcmlError] = []
        jobs = {job.asked: job for job in map(id_of, tickets)}  # the runs of a pack are one job
        for job in jobs.values():
            try:
                pbs_client.delete(job, timeout_s=self.ask_timeout_s)
            except NoAnswerError:
                raise  # nor will it answer for the others
            except HpcmlError as error:
                refusals.append(error)
        if refusals:
            more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
            raise HpcmlError(f"{refusals[0]}{more}") from refusals[0]


def prepare(submissions: Path, batch: Batch) -> Submission:
    """Return what is sent for *batch*."""
    request, script = request_for_pack(batch.packs[0]), batches.script_of(submissions, batch)
    wanted = ask(
        request,
        name=batches.name_of(batches.label_of(batch), batch.token),
        log_dir=batch.jobs[0].run_dir.logs if batch.is_single else batches.folder_of(submissions, batch),
        array_size=batches.size_of(batch),
    )
    text = render(
        request,
        wanted,
        remark=_remark(batch),
        script=script,
        command=batches.agent_of(submissions, batch),
        requeue=requeue_command(_SCHEDULER, is_shared=batches.is_shared(batch)),
    )
    return Submission(wanted=wanted, script=script, text=text)


def id_of(ticket: Ticket) -> JobId:
    """Return the job that *ticket* stands for."""
    job = parse_id(ticket.job_id)
    if job is None:
        raise HpcmlError(f"{ticket.job_id!r} is no job id of PBS")
    return job if ticket.array_index is None else replace(job, index=ticket.array_index)


def _remark(batch: Batch) -> str:
    if not batch.is_single:
        return f"hpcml submission {batch.token} of {len(batch.jobs)} runs, listed in batch.json"
    (job,) = batch.jobs
    what = f"retry {job.retry} of hpcml run" if job.retry else "hpcml run"
    return f"{what} {job.run_dir.uid}; may be submitted again by hand: qsub {job.script.name}"
