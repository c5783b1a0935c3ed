"""LSF told: a job is submitted, submitted again from inside itself, killed, or requeued."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.model.image import without_login
from hpcml.schedulers.commands import (
    Answer,
    NoAnswerError,
    UncertainSubmissionError,
    call,
)
from hpcml.schedulers.lsf.answers import find_submitted_id, is_silence, one_line, refusals_of_kill
from hpcml.schedulers.lsf.query import ASK_TIMEOUT_S, find

log = logging.getLogger(__name__)

SUBMIT_TIMEOUT_S = 120.0  # bsub waits by itself for a server that is away
_RETRIES = 2  # only where LSF surely took nothing
_RETRY_AFTER_S = 3.0
_NOT_TAKEN = "Request from non-LSF host rejected"  # a host that LSF is just getting to know
_REFUSED = ("Job not submitted", "Request aborted by esub")


def submission_environ(environ: Mapping[str, str], *, needs_login: bool) -> dict[str, str]:
    """Return what bsub gets and, by its ``-env all``, the job: nothing of an outer job, nor a login without use."""
    kept = environ if needs_login else without_login(environ)
    return {name: value for name, value in kept.items() if not name.startswith(("LSB_JOB", "LSB_BATCH", "LS_JOB"))}


def submit(
    argv: Sequence[str],
    *,
    stdin: str | None,
    name: str,
    environ: Mapping[str, str],
    timeout_s: float = SUBMIT_TIMEOUT_S,
    ask_timeout_s: float = ASK_TIMEOUT_S,
) -> str:
    """Run bsub once, as *argv* with the script on *stdin* or among its words, and return the job's number.

    *name* must be this submission's alone. Exit statuses are not believed: a job that was named is there, and only
    LSF's own words ("Job not submitted") are a refusal. Whatever else was said or left unsaid, LSF is asked for a job
    of that name. Raises `SubmissionError`, and `UncertainSubmissionError` where it cannot be known now whether there is
    a job.
    """

    def look(why: str) -> str | None:
        try:
            return find(name, timeout_s=ask_timeout_s)
        except HpcmlError as error:
            raise UncertainSubmissionError(
                f"{why}, and LSF cannot be asked whether the job was queued: look with `bjobs -a -J {name}` before you "
                "try again"
            ) from error

    try:
        answer = _sent(argv, stdin, environ, timeout_s)
    except NoAnswerError as error:
        if found := look(str(error)):
            return found
        raise UncertainSubmissionError(f"{error}, and LSF has no job called {name}") from error
    if named := find_submitted_id(answer.stdout):
        return named
    words = one_line(answer.stderr or answer.stdout)
    if any(sign in answer.stderr + answer.stdout for sign in _REFUSED):
        raise SubmissionError(f"LSF refused the job: {words}")
    why = f"bsub failed ({answer.end}): {words}" if answer.returncode else "bsub named no job"
    if found := look(why):
        log.info("found job %s under its name %s although: %s", found, name, why)
        return found
    if answer.was_killed or is_silence(answer.stderr + answer.stdout):
        raise UncertainSubmissionError(f"{why}, and LSF has no job called {name}")
    raise SubmissionError(f"{why}; LSF has no job called {name} (`bjobs -a -J {name}`)")


def _sent(argv: Sequence[str], stdin: str | None, environ: Mapping[str, str], timeout_s: float) -> Answer:
    left = _RETRIES
    while True:
        answer = call(argv, timeout_s=timeout_s, input=stdin, environ=environ)
        if not left or find_submitted_id(answer.stdout) or _NOT_TAKEN not in answer.stderr:
            return answer
        left -= 1
        time.sleep(_RETRY_AFTER_S)


def command_of(script: Path, *, is_argument: bool, more: Sequence[str] = ()) -> list[str]:
    """Return bsub's words for *script*; without *is_argument* it is to be given on standard input."""
    return ["bsub", *more, *([str(script)] if is_argument else [])]


def kill(ids: Sequence[str], *, timeout_s: float = ASK_TIMEOUT_S) -> None:
    """Kill jobs or elements, spelled as LSF takes them; what has ended, or is forgotten, is left as it is.

    LSF sends SIGINT, SIGTERM and SIGKILL, ten seconds apart (JOB_TERMINATE_INTERVAL). Raises `NoAnswerError` where it
    does not answer, and `HpcmlError` with its words where it refuses.
    """
    assert ids, "bkill without ids, or with 0, would mean other jobs"
    assert "0" not in ids, "bkill 0 kills all of a user's jobs"
    answer = call(["bkill", *ids], timeout_s=timeout_s)
    said = f"{answer.stdout}\n{answer.stderr}"
    if answer.was_killed or is_silence(said):
        raise NoAnswerError(f"LSF cannot be asked: {one_line(said)}")
    if refusals := refusals_of_kill(said):
        more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
        raise HpcmlError(f"LSF did not kill every job: {refusals[0]}{more}")
    if answer.returncode and "Job <" not in said:
        raise HpcmlError(f"bkill failed ({answer.end}): {one_line(said)}")
    log.info("killed %s", ", ".join(ids))


def requeue(job: str) -> None:
    """Have the job that this process is in run once more, under its id; it is killed at once (man brequeue)."""
    answer = call(["brequeue", job], timeout_s=ASK_TIMEOUT_S, environ={**os.environ, "LC_ALL": "C"})
    if "is being requeued" not in answer.stdout:
        raise SubmissionError(f"brequeue did not requeue job {job}: {one_line(answer.stderr or answer.stdout)}")
