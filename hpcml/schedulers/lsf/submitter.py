"""Runs handed to IBM Spectrum LSF: one pack of runs as a plain job, several as one job array, counted from 1.

`script` renders what is submitted, `submission` calls bsub, bkill and brequeue, `query` asks bjobs and bhist. Made from
IBM's documentation and public code; it has never been run with the real LSF.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.runs.atomic import write_text
from hpcml.schedulers import batches
from hpcml.schedulers.contract import Answers, Batch, Job, Preview, Ticket
from hpcml.schedulers.lsf import query, submission
from hpcml.schedulers.lsf.script import render
from hpcml.schedulers.request import request_for_batch
from hpcml.schedulers.script import requeue_command, time_limit_command

_SCHEDULER = "lsf"
_IDS_IN_A_CALL = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class LsfSubmitter:
    """LSF by its command line programs; *submissions* is on a file system that the nodes share. Times in seconds."""

    submissions: Path
    submit_timeout_s: float = submission.SUBMIT_TIMEOUT_S
    ask_timeout_s: float = query.ASK_TIMEOUT_S

    def script_for(self, job: Job) -> str:
        """Return the run's own script, which bsub takes again."""
        return self._render(batches.own_batch(job))

    def preview(self, batch: Batch) -> Preview:
        """Return the call of bsub, with the script on its standard input unless the site wants it otherwise."""
        script = batches.script_of(self.submissions, batch)
        by_stdin = [] if _is_argument(batch) else ["<", str(script)]
        command = [*submission.command_of(script, is_argument=_is_argument(batch)), *by_stdin]
        return Preview(command=command, script=self._render(batch))

    def submit(self, batch: Batch) -> list[Ticket]:
        """Queue *batch* by one call of bsub: see `submission.submit`."""
        batches.write_down(self.submissions, batch, self._render(batch))
        script, request = batches.script_of(self.submissions, batch), request_for_batch(batch)
        is_argument = _is_argument(batch)
        number = submission.submit(
            submission.command_of(script, is_argument=is_argument),
            stdin=None if is_argument else _text(script),
            name=batches.plain_name_of(batch),
            environ=submission.submission_environ(os.environ, needs_login=request.needs_login),
            timeout_s=self.submit_timeout_s,
            ask_timeout_s=self.ask_timeout_s,
        )
        return _tickets(batch, number)

    def find(self, batch: Batch) -> list[Ticket] | None:
        """Look for a job of the batch's name: see `query.find` for what proves what."""
        number = query.find(batches.plain_name_of(batch), timeout_s=self.ask_timeout_s)
        return None if number is None else _tickets(batch, number)

    def query(self, tickets: Collection[Ticket]) -> Answers:
        """Ask for *tickets* by one bjobs, and by bhist for those that it has forgotten."""
        return query.query(tickets, timeout_s=self.ask_timeout_s) if tickets else Answers(known={})

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Kill the jobs, or elements of arrays; without an index, a whole array. Many are told by one bkill."""
        ids = list(dict.fromkeys(query.spelled(query.key_of(ticket)) for ticket in tickets))
        for first in range(0, len(ids), _IDS_IN_A_CALL):
            submission.kill(ids[first : first + _IDS_IN_A_CALL], timeout_s=self.ask_timeout_s)

    def _render(self, batch: Batch) -> str:
        how = "bsub" if _is_argument(batch) else "bsub <"
        return render(
            request_for_batch(batch),
            name=batches.plain_name_of(batch),
            remark=batches.remark_of(batch, by=how),
            folder=batch.jobs[0].run_dir.path if batch.is_single else batches.folder_of(self.submissions, batch),
            command=batches.agent_of(self.submissions, batch),
            requeue=requeue_command(_SCHEDULER, is_shared=batches.is_shared(batch)),
            time_limit=time_limit_command(_SCHEDULER),
            array_size=batches.size_of(batch),
        )


def put_back(job: Job, environ: Mapping[str, str], *, is_alone: bool) -> Ticket | None:
    """Put the run of *job* back into the queue from inside its job, whose variables are *environ*.

    LSF runs this job, or element, once more under its id (brequeue), and None is returned. Where the job runs others
    too, *is_alone*, the run's own script is submitted instead. Raises `HpcmlError` outside of a job, and
    `SubmissionError` where LSF refuses, or has no programs on this node.
    """
    number, index = environ.get("LSB_JOBID"), environ.get("LSB_JOBINDEX") or "0"
    if not number:
        raise HpcmlError("this is no job of LSF: LSB_JOBID is not set")
    if not is_alone:
        submission.requeue(number if index == "0" else f"{number}[{index}]")
        return None
    batch = batches.own_batch(job)
    request = request_for_batch(batch)
    name = f"{batches.plain_name_of(batch)}-q{number}"
    is_argument = _is_argument(batch)
    # The name is the new job's alone, and what the first waited for has come true, or is forgotten
    script = job.script.with_name(f"{job.script.stem}-q{number}.sh")
    write_text(script, _without_wait(_text(job.script)))
    again = submission.submit(
        submission.command_of(script, is_argument=is_argument, more=["-J", name]),
        stdin=None if is_argument else _text(script),
        name=name,
        environ=submission.submission_environ(environ, needs_login=request.needs_login),
    )
    return Ticket(scheduler=_SCHEDULER, job_id=again, job_name=name)


def _without_wait(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#BSUB -w "))


def _is_argument(batch: Batch) -> bool:
    return batch.jobs[0].manifest.run.cluster.lsf.submit == "argument"


def _tickets(batch: Batch, number: str) -> list[Ticket]:
    """Return the tickets of *batch*: LSF counts the elements of an array from 1."""
    is_array = batches.size_of(batch) is not None
    job_id = f"{number}[]" if is_array else number
    given = batches.tickets_of(_SCHEDULER, batch, job_id=job_id, job_name=batches.plain_name_of(batch))
    return [one if one.array_index is None else replace(one, array_index=one.array_index + 1) for one in given]


def _text(script: Path) -> str:
    try:
        return script.read_text(encoding="utf-8")
    except OSError as error:
        raise SubmissionError(f"{script} cannot be read: {error.strerror}") from error
