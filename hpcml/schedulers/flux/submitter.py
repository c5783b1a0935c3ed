"""Runs handed to Flux: one pack of runs is a job, several are as many jobs, made by one call of ``flux submit``.

`script` says what is asked for, `submission` calls ``flux submit`` and ``flux cancel``, `query` asks ``flux jobs``.
Made from recordings of flux-core 0.88.0.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.errors import HpcmlError
from hpcml.schedulers import batches
from hpcml.schedulers.contract import Answers, Batch, Job, Preview, Ticket
from hpcml.schedulers.flux import query, submission
from hpcml.schedulers.flux.answers import plain
from hpcml.schedulers.flux.script import FluxAsk, ask, render
from hpcml.schedulers.request import request_for_batch
from hpcml.schedulers.script import requeue_command, time_limit_command

_SCHEDULER = "flux"
_IDS_IN_A_CALL = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class FluxSubmitter:
    """Flux by its command; *submissions* is on a file system that the nodes share. Times are in seconds."""

    submissions: Path
    submit_timeout_s: float = submission.SUBMIT_TIMEOUT_S
    ask_timeout_s: float = query.ASK_TIMEOUT_S

    def script_for(self, job: Job) -> str:
        """Return the run's own script, whose head says how it is submitted by hand."""
        return self._render(batches.own_batch(job))

    def preview(self, batch: Batch) -> Preview:
        """Return the call of ``flux submit`` and the script that it names."""
        script = batches.script_of(self.submissions, batch)
        return Preview(command=self._ask(batch).argv(script), script=self._render(batch))

    def submit(self, batch: Batch) -> list[Ticket]:
        """Queue *batch* by one call: see `submission.submit`."""
        wanted = self._ask(batch)
        batches.write_down(self.submissions, batch, self._render(batch))
        needs_login = request_for_batch(batch).needs_login
        ids = submission.submit(
            wanted,
            batches.script_of(self.submissions, batch),
            environ=submission.submission_environ(os.environ, needs_login=needs_login),
            timeout_s=self.submit_timeout_s,
            ask_timeout_s=self.ask_timeout_s,
        )
        return _tickets(batch, wanted, ids)

    def find(self, batch: Batch) -> list[Ticket] | None:
        """Look for jobs of the batch's names, ended ones too until Flux purges them: see `submission.find`."""
        wanted = self._ask(batch)
        ids = submission.find(wanted, timeout_s=self.ask_timeout_s)
        return None if ids is None else _tickets(batch, wanted, ids)

    def query(self, tickets: Collection[Ticket]) -> Answers:
        """FluxAsk for *tickets* by one call for each 500."""
        return query.query(tickets, timeout_s=self.ask_timeout_s) if tickets else Answers(known={})

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Cancel the jobs, many by one call."""
        ids = list(dict.fromkeys(plain(ticket.job_id) for ticket in tickets))
        for first in range(0, len(ids), _IDS_IN_A_CALL):
            submission.cancel(ids[first : first + _IDS_IN_A_CALL], timeout_s=self.ask_timeout_s)

    def _ask(self, batch: Batch) -> FluxAsk:
        return _ask_for(self.submissions, batch)

    def _render(self, batch: Batch) -> str:
        return render(
            request_for_batch(batch),
            self._ask(batch),
            remark=batches.remark_of(batch, by="flux submit ... bash"),
            script=batches.script_of(self.submissions, batch),
            command=batches.agent_of(self.submissions, batch),
            requeue=requeue_command(_SCHEDULER, is_shared=batches.is_shared(batch)),
            time_limit=time_limit_command(_SCHEDULER),
        )


def put_back(job: Job, environ: Mapping[str, str], *, is_alone: bool) -> Ticket:  # noqa: ARG001 - always a new job
    """Submit the run's own script from inside its job, whose variables are *environ*: Flux requeues nothing.

    The new job's name ends with the id of this one. Raises `HpcmlError` outside of a job, and `SubmissionError` where
    Flux refuses.
    """
    before = plain(environ.get("FLUX_JOB_ID", ""))
    if not before:
        raise HpcmlError("this is no job of Flux: FLUX_JOB_ID is not set")
    batch = batches.own_batch(job)
    request = request_for_batch(batch)
    wanted = ask(
        replace(request, dependency=None),  # what it waited for has come true, or is forgotten
        name=f"{batches.plain_name_of(batch)}-q{before}",
        folder=job.run_dir.path,
    )
    wanted = replace(wanted, log=wanted.log.with_name(f"job-q{before}.log"))  # flux begins its files anew
    (again,) = submission.submit(
        wanted,
        job.script,
        environ=submission.submission_environ(environ, needs_login=request.needs_login),
    )
    return Ticket(scheduler=_SCHEDULER, job_id=again, job_name=wanted.name)


def _ask_for(submissions: Path, batch: Batch) -> FluxAsk:
    folder = batch.jobs[0].run_dir.path if batch.is_single else batches.folder_of(submissions, batch)
    return ask(request_for_batch(batch), name=batches.plain_name_of(batch), folder=folder, count=batches.size_of(batch))


def _tickets(batch: Batch, wanted: FluxAsk, ids: Sequence[str]) -> list[Ticket]:
    """Return the tickets of *batch*: its packs are jobs of their own, called NAME.0 and so on."""
    return [
        Ticket(
            scheduler=_SCHEDULER,
            job_id=job_id,
            job_name=wanted.name if wanted.count is None else f"{wanted.name}.{number}",
            is_shared=len(pack) > 1,
        )
        for number, (job_id, pack) in enumerate(zip(ids, batch.packs, strict=True))
        for _ in pack
    ]
