"""Flux asked: one ``flux jobs`` for all jobs, by their ids; which job has a name; how long a job may run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hpcml.errors import HpcmlError
from hpcml.schedulers.commands import Answer, NoAnswerError, call
from hpcml.schedulers.contract import Answers, Known, Ticket
from hpcml.schedulers.flux.answers import (
    Said,
    duration_s,
    is_silence,
    known_of,
    one_line,
    parse_jobs,
    parse_unknown,
    plain,
)

ASK_TIMEOUT_S = 60.0  # a broker that is stopped never answers
_IDS_PER_CALL = 500
_ASK = ("flux", "jobs", "--json")


def query(tickets: Collection[Ticket], *, timeout_s: float = ASK_TIMEOUT_S) -> Answers:
    """Return what Flux knows of *tickets*: one call for each 500; after one without an answer nothing more is asked.

    A ticket in neither part of the answer is unknown to Flux, or its id is that of a job with another name.
    """
    ids = list(dict.fromkeys(plain(ticket.job_id) for ticket in tickets))
    jobs: dict[str, Said] = {}
    why: dict[str, str] = {}
    silence: str | None = None
    calls = 0
    for first in range(0, len(ids), _IDS_PER_CALL):
        some = ids[first : first + _IDS_PER_CALL]
        if silence is None:
            calls += 1
            try:
                found, unsaid = _ask(some, timeout_s)
            except NoAnswerError as error:
                silence = str(error)
            else:
                jobs |= found
                why |= unsaid
                continue
        why |= dict.fromkeys(some, silence)
    known: dict[Ticket, Known] = {}
    for ticket in tickets:
        said = jobs.get(plain(ticket.job_id))
        if said is not None and ticket.job_name in (None, said.get("name")):
            meant = known_of(said)
            known |= {ticket: meant} if meant is not None else {}
    unanswered = {ticket: why[plain(ticket.job_id)] for ticket in tickets if plain(ticket.job_id) in why}
    return Answers(known=known, unanswered=unanswered, calls=calls)


def _ask(ids: Sequence[str], timeout_s: float) -> tuple[dict[str, Said], dict[str, str]]:
    """Return the jobs of *ids*, and why some were not answered for; raise `NoAnswerError` where no broker was heard."""
    answer = heard([*_ASK, *ids], timeout_s)
    jobs = parse_jobs(answer.stdout) or {}
    unsaid = set(ids) - set(jobs) - parse_unknown(answer.stderr)
    return jobs, {job: f"Flux did not answer for {job}: {one_line(answer.stderr)}" for job in unsaid}


def heard(argv: Sequence[str], timeout_s: float) -> Answer:
    """Return what *argv*, a command of Flux, answered; raise `NoAnswerError` where it reached no broker."""
    answer = call(argv, timeout_s=timeout_s)
    if answer.was_killed or (answer.returncode and is_silence(answer.stderr)):
        raise NoAnswerError(f"Flux cannot be asked: {one_line(answer.stderr)}")
    return answer


def jobs_named(name: str, *, timeout_s: float, among: bool) -> dict[str, Said]:
    """Return this user's jobs called *name*, or with *among* ``NAME.0`` and so on, by id: waiting, running and ended.

    Of one that Flux has purged, nothing is told. Raises `NoAnswerError` where it does not answer.
    """
    chosen = ["--count=0"] if among else [f"--name={name}"]
    answer = heard([*_ASK, "-a", *chosen], timeout_s)
    jobs = parse_jobs(answer.stdout)
    if jobs is None:
        raise NoAnswerError(f"Flux cannot be asked: {one_line(answer.stderr)}")
    if not among:
        return {job: said for job, said in jobs.items() if said.get("name") == name}
    return {job: said for job, said in jobs.items() if str(said.get("name", "")).rpartition(".")[0] == name}


def time_limit(environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the time limit that the job with these variables has now, in seconds, None without one; and None.

    Raises `HpcmlError` outside of a job, and `NoAnswerError` where Flux does not answer.
    """
    job = plain(environ.get("FLUX_JOB_ID", ""))
    if not job:
        raise HpcmlError("this is no job of Flux: FLUX_JOB_ID is not set")
    said = _ask([job], ASK_TIMEOUT_S)[0].get(job)
    if said is None:
        raise NoAnswerError(f"Flux does not know {job}")
    return duration_s(said), None
