"""PBS asked: which job has a name, and in what states many jobs are, in as few calls as possible.

Every program is called with a time limit, for a hung server blocks for ever. A list of the user's jobs tells which
live; only the others are looked at closely. What the answers mean is read in `answers`.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hpcml.model.state import State
from hpcml.schedulers.commands import Answer, NoAnswerError, call
from hpcml.schedulers.contract import Answers, Known, Ticket
from hpcml.schedulers.pbs.answers import (
    JobId,
    Line,
    is_ours,
    known_of,
    one_line,
    parse_id,
    parse_jobs,
    parse_list,
    parse_unknown,
)

ASK_TIMEOUT_S = 60.0  # ten thousand subjobs took 0.5 s on an idle server
NOT_HEARD = ("Connection refused", "cannot connect to server", "Couldn't connect to cluster")
_NOT_ASKED = (*NOT_HEARD, "pbs_iff", "reserved port", "End of File", "errno=15010", "errno=15007")
_NO_HISTORY = "not configured to maintain job history"
IDS_PER_CALL = 25  # each id costs a connection from a reserved port; hundreds at once stall qstat for a minute
_MOST_AT_ONCE = 10 * IDS_PER_CALL  # of jobs that are gone from the list: the rest has to wait for the next question


def was_not_asked(answer: Answer) -> bool:
    """Tell whether a program of PBS failed before the server could answer: nothing follows of any job.

    Looked for are messages of PBS's clients about the connection and about who asks.
    """
    return any(word in answer.stderr for word in _NOT_ASKED)


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
        ids = {parsed: word for word in answer.stdout.split() if (parsed := parse_id(word))}
        # A site's wrapper may end with status 0 whatever happens
        is_none = not ids and (bool(answer.stdout.strip()) or was_not_asked(answer))
        if answer.returncode != 0 or is_none:
            raise NoAnswerError(f"PBS cannot be asked: {one_line(answer.stderr or answer.stdout)}")
        return ids[max(ids)] if ids else None
    raise NoAnswerError("PBS answered neither with nor without history")


@dataclass(slots=True)
class Inquiry:
    """Questions to PBS, counted; after one without an answer nothing more is asked.

    `silence` is why PBS did not answer, in a line; None as long as it did. `calls` is what the questions cost. One
    `Inquiry` serves for one round of questions, so a server that hangs costs one time limit and not many.
    """

    timeout_s: float = ASK_TIMEOUT_S
    calls: int = 0
    silence: str | None = None
    _has_history: bool = True

    def describe(self, group: Sequence[JobId]) -> tuple[dict[JobId, dict[str, str]], dict[JobId, str]]:
        """Return the attributes of the jobs of *group*, or of an array and its jobs, and why others have none.

        A job in neither is one that PBS does not know, or knows no longer. *group* is one array, or plain jobs,
        `IDS_PER_CALL` at most: `describe` of the module sees to that. Raises `SubmissionError` where qstat is not
        there.
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
        """Return the answer, or None where there was none, now or before.

        A status other than 0 is an answer too where the server was heard: unknown jobs have one.
        """
        if self.silence is not None:
            return None
        self.calls += 1
        try:
            answer = call(argv, timeout_s=self.timeout_s)
        except NoAnswerError as error:
            self.silence = str(error)
            return None
        if answer.returncode != 0 and was_not_asked(answer):
            self.silence = f"PBS cannot be asked: {one_line(answer.stderr)}"
            return None
        return answer


class Described(NamedTuple):
    """The attributes of jobs, and why nothing was learned of others; one in neither is unknown to PBS."""

    found: dict[JobId, dict[str, str]]
    unanswered: dict[JobId, str]


def describe(jobs: Collection[JobId], inquiry: Inquiry) -> Described:
    """Look closely at *jobs*: one call for each array, and one for some twenty plain jobs.

    Both the backend and the plugin for submitit ask in this way. What an array's answer holds beyond *jobs* is left
    out.
    """
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
    of those that wait, for their reasons. *timeout_s* is for each call. A job that is in neither part of the answer is
    forgotten by PBS, or its id was used again for another job.
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
        if said is not None and is_ours(said, ticket.job_name):  # else the id was used again
            meant = known_of(said)
            known |= {ticket: meant} if meant is not None else {}
        elif job not in close or job in described.unanswered:
            if ticket in alive:
                known[ticket] = Known(state=alive[ticket].state, raw=alive[ticket].letter)
            else:
                later = f"{len(gone)} jobs are gone from the list: the others are asked about first"
                unanswered[ticket] = described.unanswered.get(job, later)
    return Answers(known=known, unanswered=unanswered, calls=inquiry.calls)


def _user() -> str | None:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return None


def _list(inquiry: Inquiry) -> dict[JobId, Line]:
    """Return this user's jobs that wait or run; nothing where PBS does not tell, so that each is looked at closely."""
    user = _user()
    if user is None:
        return {}
    answer = inquiry.ask(["qstat", "-u", user])
    return {} if answer is None or answer.returncode != 0 else parse_list(answer.stdout)


def _fits(line: Line, job: JobId, ticket: Ticket) -> bool:
    """Tell whether a line of the list is surely that of *ticket*; both names in it may be cut.

    Another name may be one that somebody gave to the job: then it has to be looked at closely.
    """
    server = job.server is None or job.server.startswith(line.server)
    return server and (ticket.job_name is None or ticket.job_name.startswith(line.name))
