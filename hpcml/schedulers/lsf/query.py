"""LSF asked: one bjobs for all jobs, and bhist for some of those that bjobs has forgotten (CLEAN_PERIOD, an hour)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hpcml.errors import HpcmlError
from hpcml.schedulers.commands import Answer, NoAnswerError, call
from hpcml.schedulers.contract import Answers, Known, Ticket
from hpcml.schedulers.lsf.answers import (
    FIELDS,
    JobKey,
    history_name,
    is_ours,
    is_silence,
    known_of,
    one_line,
    parse_history,
    parse_jobs,
    parse_limit_s,
    parse_unknown,
)

ASK_TIMEOUT_S = 60.0
_IDS_PER_CALL = 500
_HISTORIES = 25  # at once: bhist reads the event logs, which takes long; the rest has to wait for the next question


@dataclass(slots=True)
class _Inquiry:
    """Questions, counted; after one without an answer nothing more is asked."""

    timeout_s: float
    calls: int = 0
    silence: str | None = None

    def ask(self, argv: Sequence[str]) -> Answer | None:
        if self.silence is not None:
            return None
        self.calls += 1
        try:
            answer = call(argv, timeout_s=self.timeout_s)
        except NoAnswerError as error:
            self.silence = str(error)
            return None
        if (
            answer.was_killed
            or is_silence(answer.stderr)
            or (is_silence(answer.stdout) and "RECORDS" not in answer.stdout)
        ):
            self.silence = f"LSF cannot be asked: {one_line(answer.stderr or answer.stdout)}"
            return None
        return answer


def key_of(ticket: Ticket) -> JobKey:
    """Return the number and element that *ticket* stands for; raise `HpcmlError` where its id is none of LSF."""
    number = ticket.job_id.removesuffix("[]")
    if not (number.isascii() and number.isdigit()) or int(number) == 0:  # 0 means all of a user's jobs
        raise HpcmlError(f"{ticket.job_id!r} is no job id of LSF")
    return number, ticket.array_index


def query(tickets: Collection[Ticket], *, timeout_s: float = ASK_TIMEOUT_S) -> Answers:
    """Return what LSF knows of *tickets*: one call while bjobs knows them all, whatever their number below 500.

    A ticket in neither part of the answer is forgotten by bjobs and by the event logs, or its id was used again.
    """
    inquiry = _Inquiry(timeout_s)
    keys = {ticket: key_of(ticket) for ticket in tickets}
    numbers = sorted({number for number, _ in keys.values()}, key=int)
    jobs: dict[JobKey, dict[str, str]] = {}
    unasked: dict[str, str] = {}
    for first in range(0, len(numbers), _IDS_PER_CALL):
        some = numbers[first : first + _IDS_PER_CALL]
        found, why = _ask_jobs(inquiry, some)
        jobs |= found
        unasked |= why
    known: dict[Ticket, Known] = {}
    unanswered: dict[Ticket, str] = {}
    histories = 0
    for ticket, key in keys.items():
        said = jobs.get(key)
        if said is not None:
            meant = known_of(said) if is_ours(said, ticket.job_name) else None
            known |= {ticket: meant} if meant is not None else {}
        elif key[0] in unasked:
            unanswered[ticket] = unasked[key[0]]
        elif histories == _HISTORIES:
            unanswered[ticket] = "many jobs are gone from bjobs: the others are asked about first"
        else:
            histories += 1
            _ask_history(inquiry, ticket, key, known, unanswered)
    return Answers(known=known, unanswered=unanswered, calls=inquiry.calls)


def _ask_jobs(inquiry: _Inquiry, numbers: Sequence[str]) -> tuple[dict[JobKey, dict[str, str]], dict[str, str]]:
    """Return the records of jobs and their elements, and why others were not answered for."""
    answer = inquiry.ask(["bjobs", "-a", "-json", "-o", FIELDS, *numbers])
    if answer is None:
        return {}, dict.fromkeys(numbers, inquiry.silence or "")
    found = parse_jobs(answer.stdout)
    told = {number for number, _ in found or {}} | {job.partition("[")[0] for job in parse_unknown(answer.stderr)}
    if found is not None and len(told) < len(numbers):
        told |= {job.partition("[")[0] for job in parse_unknown(answer.stdout)}
    words = one_line(answer.stderr or answer.stdout)
    return found or {}, {
        number: f"LSF did not answer for {number}: {words}" for number in numbers if number not in told
    }


def _ask_history(
    inquiry: _Inquiry, ticket: Ticket, key: JobKey, known: dict[Ticket, Known], unanswered: dict[Ticket, str]
) -> None:
    """Look for the end of a job in the event logs."""
    answer = inquiry.ask(["bhist", "-l", "-n", "0", spelled(key)])
    if answer is None:
        unanswered[ticket] = inquiry.silence or ""
        return
    meant = parse_history(answer.stdout)
    if meant is not None and is_ours({"JOB_NAME": history_name(answer.stdout) or ""}, ticket.job_name):
        known[ticket] = meant


def spelled(key: JobKey) -> str:
    """Return the id as LSF takes it: ``4711``, or ``4711[3]``."""
    return key[0] if key[1] is None else f"{key[0]}[{key[1]}]"


def find(name: str, *, timeout_s: float = ASK_TIMEOUT_S) -> str | None:
    """Return the number of the last job called *name* of this user that bjobs knows, waiting, running or ended.

    None: there is none, nor was one in the last hour (CLEAN_PERIOD); of one that ran before, its journals tell. Raises
    `NoAnswerError` where LSF does not answer.
    """
    inquiry = _Inquiry(timeout_s)
    answer = inquiry.ask(["bjobs", "-a", "-json", "-o", "jobid jobindex stat job_name output_file", "-J", name])
    if answer is None:
        raise NoAnswerError(inquiry.silence or "")
    jobs = parse_jobs(answer.stdout)
    if jobs is None:
        if "is not found" in answer.stderr or "o matching job" in answer.stderr or "No job found" in answer.stderr:
            return None
        raise NoAnswerError(f"LSF cannot be asked: {one_line(answer.stderr or answer.stdout)}")
    return max((number for (number, _), said in jobs.items() if is_ours(said, name)), key=int, default=None)


def time_limit(environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the run limit that the job with these variables has now, in seconds, None without one; and None.

    Raises `HpcmlError` outside of a job, and `NoAnswerError` where LSF does not answer.
    """
    number = environ.get("LSB_JOBID")
    if not number:
        raise HpcmlError("this is no job of LSF: LSB_JOBID is not set")
    index = environ.get("LSB_JOBINDEX") or "0"
    key = (number, None if index == "0" else int(index))
    answer = call(["bjobs", "-json", "-o", FIELDS, spelled(key)], timeout_s=ASK_TIMEOUT_S)
    said = (parse_jobs(answer.stdout) or {}).get(key)
    if said is None:
        raise NoAnswerError(f"LSF did not answer for {spelled(key)}: {one_line(answer.stderr or answer.stdout)}")
    return parse_limit_s(said.get("RUNTIMELIMIT", "")), None
