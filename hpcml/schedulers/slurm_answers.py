"""What squeue and sacct print, read: rows, states in hpcml's words, and which job of an array a row speaks of."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from hpcml.schedulers.submitter import Answers, Known, Ticket
from hpcml.states import State

SEPARATOR = "\x1f"  # a job name may hold any of the usual ones
SQUEUE_FORMAT = SEPARATOR.join(["%i", "%T", "%r", "%S", "%j"])
SACCT_FIELDS = "JobID,State,ExitCode,JobName"

LONGEST_NAME = 255  # bytes that the accounting keeps

_OUR_NAME = re.compile(r"\.\d{8}-\d{6}-[0-9a-z]+(-r?\d+)?$")
_STEP = re.compile(r"\d+(_\d+)?[.+]")  # 12.batch; 12+1 is a part of a heterogeneous job
_ARRAY_ROW = re.compile(r"(?P<job>\d+)_\[(?P<indices>[^%\]]*)")
_STATES = {
    **{state.value: state for state in State if state is not State.LOST},
    **dict.fromkeys(
        ["CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "EXPEDITING"],
        State.PENDING,
    ),
    **dict.fromkeys(["BOOT_FAIL", "LAUNCH_FAILED"], State.NODE_FAIL),
    "DEADLINE": State.TIMEOUT,
    "REVOKED": State.CANCELLED,
}


def state_of(word: str) -> State:
    """Return the state for Slurm's *word*, as in `CANCELLED by 1001`; one that is not known here is not final."""
    first = word.split(maxsplit=1)[0].rstrip("+").upper() if word.strip() else ""
    return _STATES.get(first, State.RUNNING)  # COMPLETING, SUSPENDED, STAGE_OUT ... and what a later Slurm invents


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of an answer. `indices` None: a job that is no array; a range that was cut off has `open_end`."""

    job_id: str
    indices: frozenset[int] | None
    is_range: bool = False  # elements that wait together, or were cancelled together before they began
    open_end: bool = False
    name: str
    known: Known

    def covers(self, ticket: Ticket) -> bool:
        """Tell whether this row speaks of *ticket*."""
        if self.job_id != ticket.job_id or not is_ours(self.name, ticket):
            return False
        if self.indices is None or ticket.array_index is None:
            return self.indices is None and ticket.array_index is None
        return ticket.array_index in self.indices or self.open_end


def parse_squeue(text: str) -> list[Row]:
    """Return the rows of ``squeue --format=SQUEUE_FORMAT``; lines that are none are passed over."""
    rows: list[Row] = []
    for job_id, word, reason, start, name in _fields(text, 5):
        state = state_of(word)
        known = Known(
            state=state,
            raw=word,
            reason=None if reason in ("", "None") else reason,
            expected_start=start if state is State.PENDING and start not in ("", "N/A", "Unknown") else None,
        )
        rows += _row(job_id, name, known)
    return rows


def parse_sacct(text: str) -> list[Row]:
    """Return the rows of ``sacct --format=SACCT_FIELDS``; lines that are none are passed over."""
    rows: list[Row] = []
    for job_id, word, exit_code, name in _fields(text, 4):
        rows += _row(job_id, name, Known(state=state_of(word), raw=word, exit_code=exit_code or None))
    return rows


def is_ours(name: str, ticket: Ticket) -> bool:
    """Tell whether a job called *name* is that of *ticket*: another has its id where ids were counted anew."""
    if ticket.job_name is None:
        return _OUR_NAME.search(name) is not None
    wanted = ticket.job_name.strip()
    said, whole = name.encode(), wanted.encode()
    return said == whole or (len(said) >= LONGEST_NAME - 3 and whole.startswith(said))  # 3: of a letter cut in two


def pick(tickets: Collection[Ticket], rows: Collection[Row]) -> Mapping[Ticket, Row]:
    """Return the row of each ticket: its own, the last of several, or else that of a range it is in."""
    own: dict[tuple[str, int | None], list[Row]] = {}
    ranges: dict[str, list[Row]] = {}
    for row in rows:
        if row.is_range:
            ranges.setdefault(row.job_id, []).append(row)
        else:
            own.setdefault((row.job_id, None if row.indices is None else min(row.indices)), []).append(row)
    found: dict[Ticket, Row] = {}
    for ticket in tickets:
        single = reversed(own.get((ticket.job_id, ticket.array_index), []))
        for row in (*single, *ranges.get(ticket.job_id, [])):
            if row.covers(ticket):
                found[ticket] = row
                break
    return found


def needs_accounting(ticket: Ticket, live: Mapping[Ticket, Row]) -> bool:
    """Tell whether the queue has not said all of *ticket*: it has no row of it, or one of an end without exit code."""
    return ticket not in live or live[ticket].known.state.is_final


def merge(tickets: Collection[Ticket], queue: list[Row] | None, accounting: list[Row] | None) -> Answers:
    """Return what the two say together of *tickets*; None stands for one that did not answer.

    *queue* must have been asked first: what it holds is of this moment, the accounting is late by seconds or, after
    trouble, by any time. So the accounting's word that a job waits or runs is worth nothing once the queue has
    answered without that job.
    """
    live, past = pick(tickets, queue or []), pick(tickets, accounting or [])
    arrays = {row.job_id for row in [*(queue or []), *(accounting or [])] if row.indices is not None}
    known: dict[Ticket, Known] = {}
    unanswered: dict[Ticket, str] = {}
    for ticket in tickets:
        now, then = live.get(ticket), past.get(ticket)
        late = None if then is None else replace(then.known, is_live=False)
        if now is not None:
            both_ended = late is not None and late.state.is_final and now.known.state.is_final
            known[ticket] = replace(late, reason=now.known.reason) if late is not None and both_ended else now.known
        elif queue is not None and accounting is not None and _never_began(ticket, then, arrays):
            known[ticket] = Known(
                state=State.CANCELLED, raw="CANCELLED", reason="cancelled before it began", is_live=False
            )
        elif late is not None and (queue is None or late.state.is_final):
            known[ticket] = late
        elif late is not None:
            unanswered[ticket] = f"squeue has no job {ticket.job_id} any more, but sacct still says {late.raw}"
    return Answers(known=known, unanswered=unanswered)


def _never_began(ticket: Ticket, then: Row | None, arrays: Collection[str]) -> bool:
    """Tell whether an array element was cancelled while it waited: Slurm keeps no record of it (seen in 22.05).

    Its array is known, but it neither waits nor has a row of its own.
    """
    if ticket.array_index is None or ticket.job_id not in arrays:
        return False
    return then is None or (then.is_range and then.known.state is State.PENDING)


def _fields(text: str, count: int) -> Iterator[list[str]]:
    for line in text.split("\n"):  # not splitlines: a name may hold form feeds and the like
        fields = line.split(SEPARATOR, count - 1)
        if len(fields) == count:
            yield [field.strip() for field in fields]


def _row(job_id: str, name: str, known: Known) -> Iterator[Row]:
    if _STEP.match(job_id):
        return
    if match := _ARRAY_ROW.match(job_id):
        indices, open_end = _expand(match["indices"])
        yield Row(job_id=match["job"], indices=indices, is_range=True, open_end=open_end, name=name, known=known)
        return
    job, _, index = job_id.partition("_")
    if job.isdigit() and (index.isdigit() or not index):
        yield Row(job_id=job, indices=frozenset([int(index)]) if index else None, name=name, known=known)


def _expand(text: str) -> tuple[frozenset[int], bool]:
    """Return the numbers of ``0-3,7,10-20:2``, and whether the list was cut off with dots."""
    indices: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?", part.strip())
        if match is not None:
            first = int(match[1])
            indices.update(range(first, int(match[2] or first) + 1, int(match[3] or 1)))
    return frozenset(indices), "..." in text
