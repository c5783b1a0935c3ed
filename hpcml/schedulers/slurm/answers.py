"""What squeue and sacct print, read: rows, states in hpcml's words, and which job of an array a row speaks of."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from hpcml.model.state import State
from hpcml.schedulers.batches import TOKEN
from hpcml.schedulers.contract import Answers, JobUsage, Known, Ticket

SEPARATOR = "\x1f"  # a job name may hold any of the usual ones
SQUEUE_FORMAT = SEPARATOR.join(["%i", "%T", "%r", "%S", "%Z", "%j"])  # last the name, which may hold anything
SACCT_FIELDS = "JobID,State,ExitCode,ElapsedRaw,TotalCPU,MaxRSS,WorkDir,JobName"

LONGEST_NAME = 255  # bytes that the accounting keeps

_OUR_NAME = re.compile(r"\.(\d{8}-\d{6}-[0-9a-z]+(?:-r?\d+)?)$")
_STEP = re.compile(r"\d+(_\d+)?[.+]")  # 12.batch; 12+1 is a part of a heterogeneous job
_STEP_OF = re.compile(r"(?<=\d)\..*$")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")
_UNITS = ["", "K", "M", "G", "T", "P"]
_CPU_TIME = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)")
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
# What reasons for which a job waits mean to who waits for it (man squeue, JOB REASON CODES); the first that fits counts
_MEANINGS = tuple(
    (re.compile(sign), words)
    for sign, words in (
        (
            r"^(QOS|Assoc)MaxWall|^PartitionTimeLimit",
            "it does not start with this walltime: hpcml cancel ends it, hpcml retry --walltime gives it another",
        ),
        (
            r"^(QOS|Assoc)Max\w+Per(Job|Node)|^(QOS|Assoc)Min|^BadConstraints",
            "it does not start with what it asks for: hpcml cancel ends it",
        ),
        (r"^PartitionNodeLimit", "its partition allows fewer nodes, or too many are down or drained"),
        (r"^(QOS|Assoc)Grp(?!\w*Run)\w+Minutes", "the time of its account or QOS is used up"),
        (r"^DependencyNeverSatisfied", "what it waits for has ended otherwise: hpcml cancel ends it"),
        (r"^Invalid(Account|QOS)|^(Account|QOS)NotAllowed", "it may not use this any more: hpcml cancel ends it"),
        (r"^ReservationDeleted", "its reservation is gone: hpcml cancel ends it"),
        (r"^JobHeldUser|requeued.* held", "scontrol release lets it start"),
        (r"^JobHeldAdmin", "an administrator has to release it"),
    )
)
_ENDING = frozenset({"COMPLETING", "STAGE_OUT"})
_KILLED = frozenset({"0:9", "137:0"})  # the script by SIGKILL; its last command, as a shell counts
_CANCELLED_UNRECORDED = Known(
    state=State.CANCELLED,
    raw="no record",
    reason="cancelled before it began, as far as is known",
    is_live=False,
    never_began=True,
)


def state_of(word: str) -> State:
    """Return the state for Slurm's *word*, as in `CANCELLED by 1001`; one that is not known here is not final.

    >>> state_of("CANCELLED by 1001").value, state_of("COMPLETING").value
    ('CANCELLED', 'RUNNING')
    """
    first = word.split(maxsplit=1)[0].rstrip("+").upper() if word.strip() else ""
    return _STATES.get(first, State.RUNNING)  # COMPLETING, SUSPENDED, STAGE_OUT ... and what a later Slurm invents


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One line of an answer. `indices` None: a job that is no array; a range that was cut off has `open_end`.

    Of squeue it is a job or element that waits or runs, or ended a moment ago; of sacct one that the accounting knows.
    `job_id` is the number alone, an array's that of the whole array.
    """

    job_id: str
    indices: frozenset[int] | None
    is_range: bool = False  # elements that wait together, or were cancelled together before they began
    open_end: bool = False
    folder: str  # in which it was submitted to run
    name: str
    known: Known

    def covers(self, ticket: Ticket) -> bool:
        """Tell whether this row speaks of *ticket*."""
        if self.job_id != ticket.job_id or not is_ours(self.name, self.folder, ticket):
            return False
        if self.indices is None or ticket.array_index is None:
            return self.indices is None and ticket.array_index is None
        return ticket.array_index in self.indices or self.open_end


def parse_squeue(text: str) -> list[JobRow]:
    """Return the rows of ``squeue --format=SQUEUE_FORMAT``; lines that are none are passed over.

    Steps of jobs are left out. The expected start is ISO 8601 in the zone of the cluster, and told of waiting jobs
    only.
    """
    rows: list[JobRow] = []
    for job_id, word, reason, start, folder, name in _fields(text, 6):
        state = state_of(word)
        meaning = _meaning(reason) if state is State.PENDING else None
        known = Known(
            state=state,
            raw=word,
            reason=_said(reason) if meaning is None else f"{reason}: {meaning}",
            is_ending=word in _ENDING,
            is_stuck=meaning is not None,
            expected_start=start if state is State.PENDING and _may_start(reason, start) else None,
        )
        rows += _row(job_id, folder, name, known)
    return rows


def _said(reason: str) -> str | None:
    return None if reason in ("", "None") else reason


def _meaning(reason: str) -> str | None:
    """Return what *reason* of a job that waits means, where that does not pass by itself."""
    return next((words for sign, words in _MEANINGS if sign.search(reason)), None)


def _may_start(reason: str, start: str) -> bool:
    """Tell whether *start* is told of a job that can start: one that is held keeps what was expected before."""
    is_held = (
        "held" in reason.lower() or reason == "DependencyNeverSatisfied"
    )  # JobHeldUser; job requeued in held state
    return start not in ("", "N/A", "Unknown") and not is_held


def parse_sacct(text: str) -> list[JobRow]:
    """Return the rows of ``sacct --format=SACCT_FIELDS``; lines that are none are passed over.

    The exit code is Slurm's ``STATUS:SIGNAL`` (man sacct). Steps of jobs are left out, but for the most memory that a
    task of one used on a node: only they have it.
    """
    lines = list(_fields(text, 8))
    memory_mb: dict[str, float] = {}
    for job_id, *_, max_rss, _, _ in lines:
        if (used_mb := _memory_mb(max_rss)) is not None:
            job = _STEP_OF.sub("", job_id)
            memory_mb[job] = max(memory_mb.get(job, 0.0), used_mb)
    rows: list[JobRow] = []
    for job_id, word, exit_code, elapsed, cpu, _, folder, name in lines:
        state = state_of(word)
        counted = state.is_final and elapsed.isdigit()
        used = (
            JobUsage(wall_s=int(elapsed), cpu_s=_cpu_s(cpu), max_memory_mb=memory_mb.get(job_id)) if counted else None
        )
        was_killed = exit_code in _KILLED
        known = Known(state=state, raw=word, exit_code=exit_code or None, used=used, was_killed=was_killed)
        rows += _row(job_id, folder, name, known)
    return rows


def parse_time_s(text: str) -> int | None:
    """Return the seconds of ``2-00:00:00``, ``1:00:00`` or ``30:00`` (minutes here), None for UNLIMITED and n/a."""
    match = _CPU_TIME.fullmatch(text.strip())
    return None if match is None else int(_cpu_s(text.strip()) or 0) or None


def _memory_mb(text: str) -> float | None:
    match = _MEMORY.fullmatch(text)
    return None if match is None else round(float(match[1]) * 1024.0 ** (_UNITS.index(match[2]) - 2), 1)


def _cpu_s(text: str) -> float | None:
    """Return the seconds of ``1-02:03:04``, ``02:03:04`` or ``03:04.567``; None where nothing was counted."""
    match = _CPU_TIME.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return round(((days * 24 + hours) * 60 + minutes) * 60 + seconds, 3)


def token_in(name: str) -> str | None:
    """Return the token at the end of a name of ours, which no other submission has; None where there is none."""
    match = _OUR_NAME.search(name.strip())
    return None if match is None else match[1]


def is_ours(name: str, folder: str, ticket: Ticket) -> bool:
    """Tell whether a job called *name* is that of *ticket*: another has its id where ids were counted anew.

    A name that the accounting has cut still fits. Anybody may change that of a job that waits (man scontrol), but not
    the *folder* that its script names, which is called as the end of our names is. For a ticket without a name, any job
    of hpcml will do.
    """
    marked = TOKEN.search(folder)
    if ticket.job_name is None:
        return marked is not None or _OUR_NAME.search(name) is not None
    wanted = ticket.job_name.strip()
    said, whole = name.encode(), wanted.encode()
    is_cut = len(said) >= LONGEST_NAME - 3 and whole.startswith(said)  # 3: of a letter cut in two
    return said == whole or is_cut or (marked is not None and marked[0] in wanted)


def pick(tickets: Collection[Ticket], rows: Collection[JobRow]) -> Mapping[Ticket, JobRow]:
    """Return the row of each ticket: its own, the last of several, or else that of a range it is in.

    A ticket without a row is absent.
    """
    own: dict[tuple[str, int | None], list[JobRow]] = {}
    ranges: dict[str, list[JobRow]] = {}
    for row in rows:
        if row.is_range:
            ranges.setdefault(row.job_id, []).append(row)
        else:
            own.setdefault((row.job_id, None if row.indices is None else min(row.indices)), []).append(row)
    found: dict[Ticket, JobRow] = {}
    for ticket in tickets:
        single = reversed(own.get((ticket.job_id, ticket.array_index), []))
        for row in (*single, *ranges.get(ticket.job_id, [])):
            if row.covers(ticket):
                found[ticket] = row
                break
    return found


def needs_accounting(ticket: Ticket, live: Mapping[Ticket, JobRow]) -> bool:
    """Tell whether the queue has not said all of *ticket*: it has no row of it, or one of an end without exit code."""
    return ticket not in live or live[ticket].known.state.is_final


def merge(tickets: Collection[Ticket], queue: list[JobRow] | None, accounting: list[JobRow] | None) -> Answers:
    """Return what the two say together of *tickets*; None stands for one that did not answer.

    *queue* must have been asked first: what it holds is of this moment, the accounting is late by seconds or, after
    trouble, by any time. So the accounting's word that a job waits or runs is worth nothing once the queue has
    answered without that job: it is LOST then, unless it is told more another time.
    """
    live, past = pick(tickets, queue or []), pick(tickets, accounting or [])
    arrays = {row.job_id for row in [*(queue or []), *(accounting or [])] if row.indices is not None}
    known: dict[Ticket, Known] = {}
    for ticket in tickets:
        now, then = live.get(ticket), past.get(ticket)
        late = None if then is None else replace(then.known, is_live=False)
        if now is not None:
            both_ended = late is not None and late.state.is_final and now.known.state.is_final
            known[ticket] = replace(late, reason=now.known.reason) if late is not None and both_ended else now.known
        elif queue is not None and accounting is not None and _never_began(ticket, then, arrays):
            known[ticket] = _CANCELLED_UNRECORDED
        elif late is not None and (queue is None or late.state.is_final):
            known[ticket] = late
        elif late is not None:  # a moment after its end, or for ever: "runaway jobs" of sacctmgr(1)
            reason = "squeue has no such job any more, and sacct has not been told of its end"
            known[ticket] = Known(state=State.LOST, raw=late.raw, reason=reason, is_live=False)
    return Answers(known=known)


def _never_began(ticket: Ticket, then: JobRow | None, arrays: Collection[str]) -> bool:
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


def _row(job_id: str, folder: str, name: str, known: Known) -> Iterator[JobRow]:
    if _STEP.match(job_id):
        return
    indices: frozenset[int] | None
    if match := _ARRAY_ROW.match(job_id):
        indices, open_end = _expand(match["indices"])
        job, is_range = match["job"], True
    else:
        job, _, index = job_id.partition("_")
        indices, open_end, is_range = frozenset([int(index)]) if index.isdigit() else None, False, False
        if not job.isdigit() or (index and indices is None):
            return
    yield JobRow(
        job_id=job, indices=indices, is_range=is_range, open_end=open_end, folder=folder, name=name, known=known
    )


def _expand(text: str) -> tuple[frozenset[int], bool]:
    """Return the numbers of ``0-3,7,10-20:2``, and whether the list was cut off with dots."""
    indices: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?", part.strip())
        if match is not None:
            first = int(match[1])
            indices.update(range(first, int(match[2] or first) + 1, int(match[3] or 1)))
    return frozenset(indices), "..." in text
