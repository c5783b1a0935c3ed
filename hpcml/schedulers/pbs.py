"""Runs handed to PBS Pro or OpenPBS: one run as a plain job, several as one job array."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.schedulers import pbs_client
from hpcml.schedulers.pbs_answers import JobId, parse_id, verdict
from hpcml.schedulers.pbs_script import Ask, ask, qsub_argv, render
from hpcml.schedulers.request import Request, request_for
from hpcml.schedulers.script import agent_array_command, agent_command
from hpcml.schedulers.submitter import Job, Known, Preview, Ticket

_SCHEDULER = "pbs"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submission:
    """One call of qsub, prepared."""

    wanted: Ask
    script: Path
    text: str

    @property
    def argv(self) -> list[str]:
        return qsub_argv("qsub", self.wanted, self.script)


@dataclass(frozen=True, slots=True, kw_only=True)
class PbsSubmitter:
    """PBS by its command line programs; *submissions* must lie on a file system that the nodes share."""

    submissions: Path
    submit_timeout_s: float = pbs_client.SUBMIT_TIMEOUT_S
    ask_timeout_s: float = pbs_client.ASK_TIMEOUT_S

    def script_for(self, job: Job) -> str:
        """Return the run's own job.sh: `qsub job.sh` runs it once more as a plain job."""
        return _plain(job, request_for(job.manifest)).text

    def preview(self, jobs: Sequence[Job]) -> Preview:
        """Return what `submit` would send; of an array, the folder's name will be another."""
        prepared = _prepare(jobs, self._new_folder())
        return Preview(command=prepared.argv, script=prepared.text)

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Queue *jobs* by one call of qsub; whatever happens to that call, it is never made twice blindly."""
        folder = self._new_folder()
        prepared = _prepare(jobs, folder)
        try:
            prepared.wanted.log_dir.mkdir(parents=True, exist_ok=True)
            if len(jobs) > 1:
                prepared.script.write_text(prepared.text, encoding="utf-8")
                run_dirs = [str(job.run_dir.path) for job in jobs]
                _batch_file(folder).write_text(json.dumps({"run_dirs": run_dirs}), encoding="utf-8")
        except OSError as error:
            raise SubmissionError(f"the job array cannot be written down: {error}") from error
        job_id = pbs_client.submit(prepared.argv, name=prepared.wanted.name, timeout_s=self.submit_timeout_s)
        if len(jobs) == 1:
            return [Ticket(scheduler=_SCHEDULER, job_id=job_id)]
        return [Ticket(scheduler=_SCHEDULER, job_id=job_id, array_index=index) for index in range(len(jobs))]

    def query(self, tickets: Collection[Ticket]) -> dict[Ticket, Known]:
        """Ask for *tickets*: one call for each array, and one for some twenty plain jobs."""
        ids = {ticket: _id_of(ticket) for ticket in tickets}
        found = pbs_client.ask(set(ids.values()), timeout_s=self.ask_timeout_s)
        meant = {job: verdict(said) for job, said in found.items()}
        known = {ticket: meant.get(job) for ticket, job in ids.items()}
        return {ticket: says for ticket, says in known.items() if says is not None}

    def cancel(self, ticket: Ticket) -> None:
        """Delete the job: PBS sends SIGTERM, and SIGKILL ten seconds later; without an index, the whole array."""
        pbs_client.delete(_id_of(ticket), timeout_s=self.ask_timeout_s)

    def _new_folder(self) -> Path:
        return self.submissions / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def _prepare(jobs: Sequence[Job], folder: Path) -> _Submission:
    assert jobs, "nothing to submit"
    request = request_for(jobs[0].manifest)
    if len(jobs) == 1:
        return _plain(jobs[0], request)
    name = _name(jobs[0].manifest.run.experiment, folder.name)
    wanted = ask(request, name=name, log_dir=folder, array_size=len(jobs))
    script = folder / "job.sh"
    text = render(
        request,
        wanted,
        remark=f"hpcml submission {folder.name} of {len(jobs)} runs, listed in batch.json",
        script=script,
        command=agent_array_command(str(_batch_file(folder))),
    )
    return _Submission(wanted=wanted, script=script, text=text)


def _plain(job: Job, request: Request) -> _Submission:
    run, uid, script = job.manifest.run, job.run_dir.uid, job.run_dir.script
    wanted = ask(request, name=_name(run.name or run.experiment, uid), log_dir=job.run_dir.logs)
    text = render(
        request,
        wanted,
        remark=f"hpcml run {uid}; may be submitted again by hand: qsub {script.name}",
        script=script,
        command=agent_command(str(job.run_dir.path)),
    )
    return _Submission(wanted=wanted, script=script, text=text)


def _name(label: str, token: str) -> str:
    """Return a name that ends with *token*, by which a job is found whose id got lost."""
    return f"{label[:40]}.{token}"


def _batch_file(folder: Path) -> Path:
    return folder / "batch.json"


def _id_of(ticket: Ticket) -> JobId:
    job = parse_id(ticket.job_id)
    if job is None:
        raise HpcmlError(f"{ticket.job_id!r} is no job id of PBS")
    return job if ticket.array_index is None else replace(job, index=ticket.array_index)
