"""PBS asked and told: all its programs are called here, each with a time limit, for a hung server blocks for ever."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.schedulers.commands import Answer, NoAnswerError, call
from hpcml.schedulers.pbs_answers import JobId, find_submitted_id, one_line, parse_id, parse_jobs, parse_unknown

log = logging.getLogger(__name__)

SUBMIT_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 60.0  # ten thousand subjobs took 0.5 s on an idle server
_IDS_PER_CALL = 25  # each id costs a connection from a reserved port; hundreds at once stall qstat for a minute
_RETRIES = 2  # only where PBS cannot have heard us
_RETRY_AFTER_S = 1.0
_GONE = (0, 35, 55, 153)  # deleted, finished, finished subjob, unknown

_NO_HISTORY = "not configured to maintain job history"
_NOT_HEARD = ("Connection refused", "cannot connect to server", "Couldn't connect to cluster")
_NOT_ASKED = (*_NOT_HEARD, "pbs_iff", "reserved port", "End of File", "errno=15010", "errno=15007")


def submit(argv: Sequence[str], *, name: str, timeout_s: float = SUBMIT_TIMEOUT_S, qselect: str = "qselect") -> str:
    """Run qsub once and return the full id; *name* must be this submission's alone.

    Where qsub's answer got lost, PBS is asked for a job of that name: nothing is ever submitted twice. Raises
    `SubmissionError` with PBS's own words.
    """
    answer: Answer | None = None
    for attempt in range(_RETRIES + 1):
        try:
            answer = call(argv, timeout_s=timeout_s)
        except NoAnswerError as error:
            return _look_for(qselect, name, str(error), error)
        if answer.returncode == 0 or not _says(answer, _NOT_HEARD) or attempt == _RETRIES:
            break
        time.sleep(_RETRY_AFTER_S)
    assert answer is not None
    if answer.returncode == 0:
        found = find_submitted_id(answer.stdout)
        return found if found is not None else _look_for(qselect, name, "qsub printed no job id")
    if _says(answer, _NOT_HEARD):
        raise SubmissionError(f"PBS cannot be reached, so nothing was queued: {one_line(answer.stderr)}")
    if _says(answer, _NOT_ASKED):
        return _look_for(qselect, name, f"qsub: {one_line(answer.stderr)}")
    raise SubmissionError(f"PBS refused the job: {one_line(answer.stderr)}")


def _look_for(qselect: str, name: str, why: str, cause: Exception | None = None) -> str:
    """Return the id of the job called *name*, which exists if qsub was heard although its answer was not."""
    for history in (["-x"], []):
        try:
            answer = call([qselect, *history, "-N", name], timeout_s=ASK_TIMEOUT_S)
        except HpcmlError:
            break
        if _NO_HISTORY in answer.stderr and history:
            continue
        if answer.returncode != 0:
            break
        ids = [word for word in answer.stdout.split() if parse_id(word)]
        if len(ids) == 1:
            log.info("qsub did not say so, but PBS has %s as %s", name, ids[0])
            return ids[0]
        raise SubmissionError(f"{why}; PBS has no job called {name}, so nothing was queued") from cause
    raise SubmissionError(
        f"{why}, and PBS cannot be asked whether the job was queued: look with `qselect -x -N {name}` before you try "
        "again"
    ) from cause


def ask(jobs: Collection[JobId], *, timeout_s: float = ASK_TIMEOUT_S) -> dict[JobId, dict[str, str]]:
    """Return the attributes of *jobs*; what PBS does not know, or knows no longer, is left out.

    One call for each array, and one for some twenty plain jobs. Raises `NoAnswerError` unless PBS answered for
    every job, for an unasked question says nothing about any of them.
    """
    found: dict[JobId, dict[str, str]] = {}
    for array in sorted({job.parent for job in jobs if job.array}):
        found |= _ask(["-t"], [array], timeout_s)
    plain = sorted(job for job in jobs if not job.array)
    for group in _groups(plain, _IDS_PER_CALL):
        found |= _ask([], group, timeout_s)
    wanted = set(jobs)
    return {job: said for job, said in found.items() if job in wanted}


def _ask(flags: list[str], group: Sequence[JobId], timeout_s: float) -> dict[JobId, dict[str, str]]:
    for history in (["-x"], []):
        argv = ["qstat", *history, *flags, "-f", "-w", *(job.asked for job in group)]
        answer = _call_to_ask(argv, timeout_s)
        if _NO_HISTORY in answer.stderr and history:
            continue  # such a site shows nothing at all with -x, running jobs included, and exits with 0
        found = parse_jobs(answer.stdout)
        missing = set(group) - set(found) - parse_unknown(answer.stderr)
        if missing:
            # The same empty answer comes from a server that is down: silence is not "unknown".
            raise NoAnswerError(f"PBS did not answer for {min(missing).asked}: {one_line(answer.stderr)}")
        return found
    raise NoAnswerError(f"PBS answered neither with nor without history: {one_line(answer.stderr)}")


def _call_to_ask(argv: list[str], timeout_s: float) -> Answer:
    answer = call(argv, timeout_s=timeout_s)
    if answer.returncode != 0 and _says(answer, _NOT_ASKED):
        raise NoAnswerError(f"PBS cannot be asked: {one_line(answer.stderr)}")
    return answer


def delete(job: JobId, *, timeout_s: float = ASK_TIMEOUT_S) -> None:
    """Delete one job or array; one that has ended or is forgotten is left as it is.

    One id for each call: a list that ends in an unknown id can kill the server, and qdel then exits with 0.
    """
    answer = call(["qdel", job.asked], timeout_s=timeout_s)
    if _says(answer, _NOT_ASKED):
        raise NoAnswerError(f"PBS cannot be asked: {one_line(answer.stderr)}")
    if answer.returncode not in _GONE:
        raise HpcmlError(f"PBS did not delete {job.asked}: {one_line(answer.stderr)}")
    log.info("deleted %s", job.asked)


def _says(answer: Answer, words: Collection[str]) -> bool:
    return any(word in answer.stderr for word in words)


def _groups(jobs: Sequence[JobId], size: int) -> Iterator[list[JobId]]:
    rest = iter(jobs)
    while group := list(islice(rest, size)):
        yield group
