"""PBS asked and told: all its programs are called here, each with a time limit, for a hung server blocks for ever."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.image import without_login
from hpcml.schedulers.commands import Answer, NoAnswerError, UncertainSubmissionError, call
from hpcml.schedulers.pbs_answers import JobId, find_submitted_id, one_line, parse_id, parse_jobs, parse_unknown

log = logging.getLogger(__name__)

SUBMIT_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 60.0  # ten thousand subjobs took 0.5 s on an idle server
_RETRIES = 2  # only where PBS cannot have heard us
_RETRY_AFTER_S = 1.0
_GONE = (0, 35, 55, 153)  # deleted, finished, finished subjob, unknown

_NO_HISTORY = "not configured to maintain job history"
_NOT_HEARD = ("Connection refused", "cannot connect to server", "Couldn't connect to cluster")
_NOT_ASKED = (*_NOT_HEARD, "pbs_iff", "reserved port", "End of File", "errno=15010", "errno=15007")


def submit(argv: Sequence[str], *, name: str, timeout_s: float = SUBMIT_TIMEOUT_S, qselect: str = "qselect") -> str:
    """Run qsub once and return the full id; *name* must be this submission's alone.

    Where qsub's answer got lost, PBS is asked for a job of that name: nothing is ever submitted twice. Raises
    `SubmissionError` with PBS's own words. The login of a registry is kept from qsub, which a site's or a user's `-V`
    would make hand it on to the job, and show it to everybody who asks for the job with qstat.
    """
    answer: Answer | None = None
    for attempt in range(_RETRIES + 1):
        try:
            answer = call(argv, timeout_s=timeout_s, environ={**without_login(os.environ), "LC_ALL": "C"})
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
    try:
        found = find(name, qselect=qselect)
    except HpcmlError as error:
        raise UncertainSubmissionError(
            f"{why}, and PBS cannot be asked whether the job was queued: look with `qselect -x -N {name}` before you "
            "try again"
        ) from (cause or error)
    if found is None:
        raise SubmissionError(f"{why}; PBS has no job called {name}, so nothing was queued") from cause
    log.info("qsub did not say so, but PBS has %s as %s", name, found)
    return found


def find(name: str, *, qselect: str = "qselect", timeout_s: float = ASK_TIMEOUT_S) -> str | None:
    """Return the full id of the last job called *name*, waiting, running or in PBS's history, or None.

    The server itself answers, so its answer is of this moment: None proves that no such job waits or runs, and that
    none has ended within the history. Without a history, and after it, only journals tell of one that has ended.
    Raises `NoAnswerError` where PBS does not answer.
    """
    for history in (["-x"], []):
        answer = call([qselect, *history, "-N", name], timeout_s=timeout_s)
        if _NO_HISTORY in answer.stderr and history:
            continue
        if answer.returncode != 0:
            raise NoAnswerError(f"PBS cannot be asked: {one_line(answer.stderr)}")
        ids = {parsed: word for word in answer.stdout.split() if (parsed := parse_id(word))}
        return ids[max(ids)] if ids else None
    raise NoAnswerError("PBS answered neither with nor without history")


@dataclass(slots=True)
class Inquiry:
    """Questions to PBS, counted; after one without an answer nothing more is asked."""

    timeout_s: float = ASK_TIMEOUT_S
    calls: int = 0
    silence: str | None = None
    _has_history: bool = True

    def describe(self, group: Sequence[JobId]) -> tuple[dict[JobId, dict[str, str]], dict[JobId, str]]:
        """Return the attributes of the jobs of *group*, or of an array and its jobs, and why others have none.

        A job in neither is one that PBS does not know, or knows no longer.
        """
        flags = ["-t"] if any(job.array for job in group) else []
        words = [job.asked for job in group]
        while True:
            # -x: without it, finished jobs vanish from the answer (man qstat)
            answer = self.ask(["qstat", *(["-x"] if self._has_history else []), *flags, "-f", "-w", *words])
            if answer is None:
                return {}, dict.fromkeys(group, self.silence or "")
            if self._has_history and _NO_HISTORY in answer.stderr:
                self._has_history = False
                continue  # such a site shows nothing at all with -x, running jobs included, and exits with 0
            found = parse_jobs(answer.stdout)
            # The same empty answer comes from a server that is down: silence is not "unknown".
            unsaid = set(group) - set(found) - parse_unknown(answer.stderr)
            why = one_line(answer.stderr)
            return found, {job: f"PBS did not answer for {job.asked}: {why}" for job in unsaid}

    def ask(self, argv: Sequence[str]) -> Answer | None:
        """Return the answer, or None where there was none, now or before."""
        if self.silence is not None:
            return None
        self.calls += 1
        try:
            answer = call(argv, timeout_s=self.timeout_s)
        except NoAnswerError as error:
            self.silence = str(error)
            return None
        if answer.returncode != 0 and _says(answer, _NOT_ASKED):
            self.silence = f"PBS cannot be asked: {one_line(answer.stderr)}"
            return None
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
