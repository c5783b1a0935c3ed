"""The states of many PBS jobs by few calls: a list of what lives, and a close look at the rest."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Mapping
from typing import NamedTuple

from hpcml.schedulers.pbs_answers import JobId, Line, parse_list, verdict
from hpcml.schedulers.pbs_client import ASK_TIMEOUT_S, Inquiry
from hpcml.schedulers.submitter import Answers, Known, Ticket
from hpcml.states import State

IDS_PER_CALL = 25  # each id costs a connection from a reserved port; hundreds at once stall qstat for a minute
_MOST_AT_ONCE = 10 * IDS_PER_CALL  # of jobs that are gone from the list: the rest has to wait for the next question


class Described(NamedTuple):
    """The attributes of jobs, and why nothing was learned of others; one in neither is unknown to PBS."""

    found: dict[JobId, dict[str, str]]
    unanswered: dict[JobId, str]


def describe(jobs: Collection[JobId], inquiry: Inquiry) -> Described:
    """Look closely at *jobs*: one call for each array, and one for some twenty plain jobs."""
    found: dict[JobId, dict[str, str]] = {}
    unanswered: dict[JobId, str] = {}
    for array in sorted({job.parent for job in jobs if job.array}):
        members, unsaid = inquiry.describe([array])
        found |= members
        unanswered |= {job: unsaid[array] for job in jobs if job.parent == array and array in unsaid}
    plain = sorted(job for job in jobs if not job.array)
    for first in range(0, len(plain), IDS_PER_CALL):
        some, unsaid = inquiry.describe(plain[first : first + IDS_PER_CALL])
        found |= some
        unanswered |= unsaid
    wanted = set(jobs)
    return Described({job: said for job, said in found.items() if job in wanted}, unanswered)


def query(ids: Mapping[Ticket, JobId], *, timeout_s: float = ASK_TIMEOUT_S) -> Answers:
    """Return what PBS knows of *ids*; for any number of plain jobs this is one or two calls while all of them live.

    A list of the user's jobs tells which plain jobs live. Looked at closely are those that it does not show, and some
    of those that wait, for their reasons.
    """
    inquiry = Inquiry(timeout_s)
    plain = {ticket: job for ticket, job in ids.items() if not job.array}
    lines = _list(inquiry) if len(set(plain.values())) > IDS_PER_CALL else {}
    alive = {ticket: lines[job] for ticket, job in plain.items() if job in lines and _fits(lines[job], job, ticket)}
    gone = sorted({job for ticket, job in plain.items() if ticket not in alive})
    waiting = sorted(plain[ticket] for ticket, line in alive.items() if line.state is State.PENDING)
    close = {*gone[:_MOST_AT_ONCE], *waiting[:IDS_PER_CALL], *(job for job in ids.values() if job.array)}
    described = describe(close, inquiry)
    known: dict[Ticket, Known] = {}
    unanswered: dict[Ticket, str] = {}
    for ticket, job in ids.items():
        said = described.found.get(job)
        if said is not None and ticket.job_name in (None, said.get("Job_Name")):  # else the id was used again
            meant = verdict(said)
            known |= {ticket: meant} if meant is not None else {}
        elif job not in close or job in described.unanswered:
            if ticket in alive:
                known[ticket] = Known(state=alive[ticket].state, raw=alive[ticket].letter)
            else:
                later = f"{len(gone)} jobs are gone from the list: the others are asked about first"
                unanswered[ticket] = described.unanswered.get(job, later)
    return Answers(known=known, unanswered=unanswered, calls=inquiry.calls)


def _list(inquiry: Inquiry) -> dict[JobId, Line]:
    """Return this user's jobs that wait or run; nothing where PBS does not tell, so that each is looked at closely."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return {}
    answer = inquiry.ask(["qstat", "-u", user])
    return {} if answer is None or answer.returncode != 0 else parse_list(answer.stdout)


def _fits(line: Line, job: JobId, ticket: Ticket) -> bool:
    """Tell whether a line of the list is that of *ticket*, as far as it shows; both names in it may be cut."""
    server = job.server is None or job.server.startswith(line.server)
    return server and (ticket.job_name is None or ticket.job_name.startswith(line.name))
