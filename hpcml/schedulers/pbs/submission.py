"""PBS told: a job is submitted, submitted again from inside itself, or deleted.

Both the backend (`submitter`) and the plugin for submitit submit by this module.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.model.image import without_login
from hpcml.schedulers.commands import (
    Answer,
    NoAnswerError,
    UncertainSubmissionError,
    call,
)
from hpcml.schedulers.pbs.answers import (
    JobId,
    find_submitted_id,
    one_line,
    parse_id,
    parse_jobs,
    parse_time_s,
)
from hpcml.schedulers.pbs.query import ASK_TIMEOUT_S, NOT_HEARD, find, was_not_asked
from hpcml.schedulers.pbs.script import LONGEST_NAME, Ask, qsub_argv

log = logging.getLogger(__name__)

SUBMIT_TIMEOUT_S = 120.0  # a busy server or a hook of the site may take a minute
_RETRIES = 2  # only where PBS cannot have heard us
_RETRY_AFTER_S = 1.0
_GONE = (0, 35, 55, 153)  # deleted, finished, finished subjob, unknown
_CONFIGURATION = Path("/etc/pbs.conf")
_USUAL_PLACE = "/opt/pbs"


def submit(
    argv: Sequence[str],
    *,
    name: str,
    timeout_s: float = SUBMIT_TIMEOUT_S,
    ask_timeout_s: float = ASK_TIMEOUT_S,
    advised: Callable[[str], str] = str,
) -> str:
    """Run qsub once, as *argv* (man qsub), and return the job's full id; *name* must be this submission's alone.

    Only PBS's own words are a refusal. Whatever else qsub, or a site's wrapper of it, said or left unsaid, PBS is asked
    for a job of that name. A call that PBS surely did not hear is repeated twice, a second apart; *timeout_s* is for
    each of them, and *ask_timeout_s* for the question.

    Raises `SubmissionError` with PBS's own words, to which *advised* adds what to do, or those of a wrapper that ended
    by itself without a job; and `UncertainSubmissionError` where qsub was killed or silent, or PBS cannot be asked now.
    The login of a registry is kept from qsub, which a site's or a user's `-V` would make hand it on to the job, and
    show it to everybody who asks for the job with qstat.
    """
    # Its neighbour: inside a job, where qsub is called by its place, PATH has neither
    qselect = str(Path(argv[0]).with_name("qselect"))

    def look(why: str) -> str | None:
        return _look_for(name, why, qselect, ask_timeout_s)

    try:
        answer = _sent(argv, timeout_s)
    except NoAnswerError as error:
        if found := look(str(error)):
            return found
        raise UncertainSubmissionError(f"{error}, and PBS has no job called {name}") from error
    printed = find_submitted_id(answer.stdout)
    if answer.returncode == 0 and printed is not None:
        for words in answer.own_words("qsub"):
            log.warning("qsub said: %s", words)
        return printed
    if printed is None and _is_refusal(answer):
        raise SubmissionError(f"PBS refused the job: {advised(one_line(answer.stderr))}")
    words = f": {one_line(answer.stderr)}" if answer.stderr.strip() else ""
    why = f"qsub failed ({answer.end}){words}" if answer.returncode else "qsub printed no job id"
    if found := look(why) or printed:
        return found
    if answer.was_killed or was_not_asked(answer):
        raise UncertainSubmissionError(f"{why}, and PBS has no job called {name}")
    raise SubmissionError(f"{why}; PBS has no job called {name} (`qselect -x -N {name}`)")


def _sent(argv: Sequence[str], timeout_s: float) -> Answer:
    """Return what qsub answered; raise `SubmissionError` where it found no server, and `NoAnswerError` in time."""
    environ = {**without_login(os.environ), "LC_ALL": "C"}
    left = _RETRIES
    while _was_not_heard(answer := call(argv, timeout_s=timeout_s, environ=environ)):
        if not left:
            raise SubmissionError(f"PBS cannot be reached, so nothing was queued: {one_line(answer.stderr)}")
        left -= 1
        time.sleep(_RETRY_AFTER_S)
    return answer


def _is_refusal(answer: Answer) -> bool:
    """Tell whether qsub itself, or a hook of the site through it, says that the job was not taken."""
    return answer.returncode > 0 and bool(answer.own_words("qsub")) and not was_not_asked(answer)


def _look_for(name: str, why: str, qselect: str, timeout_s: float) -> str | None:
    """Return the id of the job called *name*, which exists if qsub was heard although its answer was not."""
    try:
        found = find(name, qselect=qselect, timeout_s=timeout_s)
    except HpcmlError as error:
        raise UncertainSubmissionError(
            f"{why}, and PBS cannot be asked whether the job was queued: look with `qselect -x -N {name}` before you "
            "try again"
        ) from error
    if found is not None:
        log.info("found job %s under its name %s although: %s", found, name, why)
    return found


class SubmittedAgain(NamedTuple):
    """The job that carries on another.

    `job_id` is the full id with its server, `name` the name in the queue.
    """

    job_id: str
    name: str


def submit_again(wanted: Ask, script: Path, environ: Mapping[str, str], *, mark: str) -> SubmittedAgain:
    """Submit a job once more from inside itself: no exit status requeues one, and qrerun is for operators (man qrerun).

    The new job is called as *wanted* says, and *mark*: a name of its own, by which it is found if qsub's answer gets
    lost while the first still runs. What that one waited for has come true, or is forgotten. *environ* is the job's.
    Raises `SubmissionError` where PBS refuses, or where there is no qsub on the node.
    """
    again = replace(wanted, name=f"{wanted.name[: LONGEST_NAME - len(mark)]}{mark}", depend=None)
    argv = qsub_argv(find_qsub(environ), again, script)
    return SubmittedAgain(submit(argv, name=again.name), again.name)


def time_limit(environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the walltime that the job with these variables has now, and what is left of it, in seconds.

    PBS does not count the time for which a job was suspended. What is left may be some minutes too much, since what was
    used is told that late (mom's max_check_poll). None: without a limit, and before PBS has counted. Raises
    `HpcmlError` outside of a job, and `NoAnswerError` where PBS does not answer.
    """
    said = _said_of_job(environ)
    limit_s, used_s = (parse_time_s(said.get(f"{name}.walltime", "")) for name in ("Resource_List", "resources_used"))
    return limit_s, None if limit_s is None or used_s is None else limit_s - used_s


def _said_of_job(environ: Mapping[str, str]) -> Mapping[str, str]:
    job = parse_id(environ.get("PBS_JOBID", ""))
    if job is None:
        raise HpcmlError("this is no job of PBS: PBS_JOBID is not set")
    qstat = str(Path(find_qsub(environ)).with_name("qstat"))
    answer = call([qstat, "-f", "-w", job.asked], timeout_s=ASK_TIMEOUT_S)
    said = parse_jobs(answer.stdout).get(job)
    if said is None:
        raise NoAnswerError(f"PBS did not answer for {job.asked}: {one_line(answer.stderr)}")
    return said


def find_qsub(environ: Mapping[str, str], *, configuration: Path = _CONFIGURATION) -> str:
    """Return where qsub is: a job of PBS has no PATH to speak of.

    Looked at in this order: PATH, the PATH of the submission (PBS_O_PATH), PBS_EXEC of /etc/pbs.conf, /opt/pbs. Raises
    `SubmissionError` where it is in none of them.
    """
    for path in (environ.get("PATH"), environ.get("PBS_O_PATH")):
        if found := shutil.which("qsub", path=path or ""):
            return found
    places = [_USUAL_PLACE]
    if configuration.is_file():
        lines = (line.partition("=") for line in configuration.read_text(encoding="utf-8").splitlines())
        places = [value.strip() for name, _, value in lines if name.strip() == "PBS_EXEC"] + places
    for place in places:
        if found := shutil.which("qsub", path=f"{place}/bin"):
            return found
    raise SubmissionError(f"there is no qsub on this node: not on PATH, not in {', '.join(places)}")


def delete(job: JobId, *, qdel: str = "qdel", timeout_s: float = ASK_TIMEOUT_S) -> None:
    """Delete one job or array; one that has ended or is forgotten is left as it is.

    One id for each call: a list that ends in an unknown id can kill the server, and qdel then exits with 0. Raises
    `NoAnswerError` where PBS does not answer, and `HpcmlError` with its words where it refuses.
    """
    answer = call([qdel, job.asked], timeout_s=timeout_s)
    if was_not_asked(answer):
        raise NoAnswerError(f"PBS cannot be asked: {one_line(answer.stderr)}")
    if answer.returncode not in _GONE:
        raise HpcmlError(f"PBS did not delete {job.asked}: {one_line(answer.stderr)}")
    log.info("deleted %s", job.asked)


def _was_not_heard(answer: Answer) -> bool:
    """Tell whether qsub itself says that it found no server; another program of a wrapper may not have, later."""
    return answer.returncode > 0 and any(word in line for line in answer.own_words("qsub") for word in NOT_HEARD)
