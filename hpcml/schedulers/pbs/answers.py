"""What PBS says, read: ids, `qstat -f -w`, and what a job's attributes mean; pure functions of text.

Measured on OpenPBS 23.06.06 and git master. `-F json` is not used: it is invalid or cut short in several versions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import takewhile

from hpcml.model.state import State
from hpcml.schedulers.batches import TOKEN
from hpcml.schedulers.commands import telling_lines
from hpcml.schedulers.contract import JobUsage, Known

Attributes = Mapping[str, str]

_SUBMITTED = re.compile(r"^(\d+(?:\[\])?\.\S+)\s*$", re.MULTILINE)
_ID = re.compile(r"(\d+)(?:\[(\d*)\])?(?:\.(\S+))?")
_ATTRIBUTE = re.compile(r" {4}([A-Za-z_][\w.]*) = (.*)")
_LISTED = re.compile(r"(\d+)(?:\.(\S*))?")
_COLUMNS = 11
_UNKNOWN = re.compile(r"Unknown Job Id (\S+)|(\S+) Job has finished, use -x")
_EXCEEDED = re.compile(r"exceeded resource (\S+)")
_KILOBYTES = re.compile(r"(\d+)kb")  # as PBS writes what was used
_WAITING = frozenset("QHWTM")
_RUNNING = frozenset("RSUBE")
_ENDED = frozenset("FX")
# Exit_status below zero is PBS's own verdict. -4 was measured, the limits are those of the administrator's guide.
_OWN_VERDICTS = {
    -29: (State.TIMEOUT, "walltime exceeded"),
    -28: (State.TIMEOUT, "CPU time exceeded"),
    -27: (State.OUT_OF_MEMORY, "memory exceeded"),
    -26: (State.OUT_OF_MEMORY, "virtual memory exceeded"),
    -4: (State.NODE_FAIL, "the node was lost"),
}
_RELEASED_BY = {  # by the letter in Hold_Types, the strongest first (man qhold)
    "s": "PBS itself or an administrator has to release it",
    "o": "an operator of PBS has to release it",
    "u": "qrls releases it",
}
_KILLED = frozenset({"265", "137"})  # the script by SIGKILL; its last command, as a shell counts


@dataclass(frozen=True, slots=True, order=True)
class JobId:
    """A job as PBS counts; that of another server is another job, but only its own server would know it.

    It is the key of every answer here. Ids are ordered by number, then by index.

    >>> parse_id("4711[3].pbs01").asked
    '4711[3].pbs01'
    """

    number: int
    index: int | None = None  # of a job in an array
    array: bool = False  # an array, or a job of one
    server: str | None = field(default=None, compare=False)  # None: the one that this machine asks

    @property
    def asked(self) -> str:
        """The id as a client wants it; an array's bare number would be unknown."""
        brackets = f"[{'' if self.index is None else self.index}]" if self.array else ""
        return f"{self.number}{brackets}{f'.{self.server}' if self.server else ''}"

    @property
    def parent(self) -> JobId:
        """The array, or the job itself."""
        return replace(self, index=None)


def parse_id(text: str) -> JobId | None:
    """Return the job that `123`, `123.server`, `123[].server` or `123[4].server` stands for.

    Blanks around it are ignored. None for any other text.

    >>> parse_id("123.server").number, parse_id("123[4].server").index, parse_id("no id")
    (123, 4, None)
    """
    match = _ID.fullmatch(text.strip())
    if match is None:
        return None
    index = match[2]
    return JobId(int(match[1]), int(index) if index else None, index is not None, match[3])


def find_submitted_id(stdout: str) -> str | None:
    """Return the id that qsub printed; a site's wrapper may print lines around it.

    The last line that is an id counts. None where there is no such line.
    """
    found = _SUBMITTED.findall(stdout)
    return found[-1] if found else None


def parse_jobs(stdout: str) -> dict[JobId, dict[str, str]]:
    """Read `qstat -f -w`: one attribute a line, with line breaks inside values escaped, so that none can be forged.

    Attributes are as PBS prints them, resources and variables too, by their whole names (``Resource_List.walltime``). A
    job whose id cannot be read is left out. Of an attribute that stands twice the first counts.
    """
    jobs: dict[JobId, dict[str, str]] = {}
    current: dict[str, str] | None = None
    for line in stdout.split("\n"):  # not splitlines: a value may hold form feeds and the like
        if line.startswith("Job Id: "):
            job_id = parse_id(line.removeprefix("Job Id: "))
            current = None if job_id is None else jobs.setdefault(job_id, {})
        elif current is not None and (match := _ATTRIBUTE.match(line)):
            current.setdefault(match[1], match[2])
    return jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A job in the list that ``qstat -u USER`` prints: its name and its server's may be cut.

    `letter` is PBS's own state (man qstat), `state` what it means here.
    """

    letter: str
    state: State
    name: str
    server: str


def parse_list(stdout: str) -> dict[JobId, Line]:
    """Read ``qstat -u USER``: plain jobs that live; lines that are none, or cannot be read, are left out.

    Job ID, Username, Queue, Jobname, SessID, NDS, TSK, Memory, Time, S, Time: a name has no blanks.
    """
    found: dict[JobId, Line] = {}
    for line in stdout.split("\n"):
        words = line.split()
        match = _LISTED.fullmatch(words[0]) if len(words) == _COLUMNS else None
        state = _state_of(words[-2]) if match else None
        if match is not None and state is not None:
            name, server = words[3].rstrip("*"), (match[2] or "").rstrip("*")
            found[JobId(int(match[1]))] = Line(letter=words[-2], state=state, name=name, server=server)
    return found


def _state_of(letter: str) -> State | None:
    """Return the state of a job that has not ended."""
    return State.PENDING if letter in _WAITING else State.RUNNING if letter in _RUNNING else None


def parse_unknown(stderr: str) -> set[JobId]:
    """Return the jobs that PBS says it does not know, or knows no longer.

    They are read from what qstat printed on standard error, which names each of them on a line.
    """
    ids = (parse_id(first or second) for first, second in _UNKNOWN.findall(stderr))
    return {job_id for job_id in ids if job_id is not None}


def one_line(stderr: str) -> str:
    """Return PBS's own words without its usage text and without rulers, on one line.

    For messages to people: the lines are joined with semicolons.
    """
    lines = takewhile(lambda line: not line.startswith("usage:"), telling_lines(stderr))
    return "; ".join(lines) or "no message"


def is_ours(said: Attributes, name: str | None) -> bool:
    """Tell whether the job that has our job's id, and these attributes, is the one that was submitted as *name*.

    It is unless something contradicts: a server that was set up anew counts ids anew. The name alone does not, since
    anybody may change that of a job that waits (man qalter); what qsub was called with stays, and so does the place of
    the log, of which our names have the end. None: no name is known to contradict.

    >>> is_ours({"Job_Name": "urgent", "Submit_arguments": "-N mine.20261121-083015-222abcde -J 0-1"}, "mine")
    True
    """
    if name is None or said.get("Job_Name") == name:
        return True
    place = said.get("Output_Path", "").removesuffix("/dev/null").rpartition(":")[2]
    traces = [
        trace for trace in (said.get("Submit_arguments"), place) if trace
    ]  # a subjob that started lacks the first
    marked = TOKEN.search(name)
    return not traces or any((marked[0] if marked else name) in trace for trace in traces)


def known_of(said: Attributes) -> Known | None:
    """Return what a job's attributes mean, or None where they hold no state that PBS has.

    COMPLETED means only that the job's process ended with 0, which a deleted job can do as well: the run's own journal
    decides where there is one. *said* are the attributes that `parse_jobs` read of one job. The reason is one line for
    people, or None; the exit code is PBS's Exit_status as text, and None where the job never ran. A start that is
    expected is in ISO 8601, in the zone of the server.

    >>> known_of({"job_state": "F", "Exit_status": "271", "run_count": "1"}).reason
    'ended by signal 15'
    """
    letter = said.get("job_state", "")
    if letter in _WAITING:
        why, start = _why_waiting(said), _expected_start(said)
        return Known(state=State.PENDING, raw=letter, reason=why, expected_start=start, is_stuck=_is_stuck(said))
    if letter in _RUNNING:
        return Known(state=State.RUNNING, raw=letter, reason=_why_not_running(said), is_ending=letter == "E")
    if letter not in _ENDED:
        return None
    state, reason = _end(said)
    if not _ran(said):
        return Known(state=state, raw=letter, reason=reason)
    code = said.get("Exit_status")
    was_killed = code in _KILLED
    return Known(state=state, raw=letter, exit_code=code, reason=reason, used=_used(said), was_killed=was_killed)


def _used(said: Attributes) -> JobUsage:
    memory = _KILOBYTES.fullmatch(said.get("resources_used.mem", ""))
    return JobUsage(
        wall_s=parse_time_s(said.get("resources_used.walltime", "")),
        cpu_s=parse_time_s(said.get("resources_used.cput", "")),
        max_memory_mb=round(int(memory[1]) / 1024, 1) if memory else None,
    )


def parse_time_s(text: str) -> int | None:
    """Return the seconds of ``48:00:00``, ``30:00`` or ``90``; None for any other text.

    >>> parse_time_s("01:00:30"), parse_time_s("UNLIMITED")
    (3630, None)
    """
    total_s = 0
    for part in text.split(":"):
        if not (part.isascii() and part.isdigit()):
            return None
        total_s = total_s * 60 + int(part)
    return total_s


def _why_waiting(said: Attributes) -> str | None:
    comment = said.get("comment")
    if comment is not None and comment.startswith("Job Array Began"):
        comment = None  # the array's own, which its jobs show until they run
    holds = said.get("Hold_Types", "n")
    if said["job_state"] == "H" and "s" in holds and "run_count" in said:
        # After 21 tries PBS gives up. Measured of -o into a folder that the node lacks; no output can tell of it.
        return f"{comment or 'held after failed attempts to run'}: does the node see the folder for its log?"
    if "s" in holds and "depend" in said:
        return f"{comment or 'waits for other jobs'} (depend={said['depend']})"
    # Not by the state: jobs of an array that is held are in state Q, and tell of it here alone
    if released_by := next((words for letter, words in _RELEASED_BY.items() if letter in holds), None):
        return f"{comment or 'held'}: {released_by}"
    if comment is None and said["job_state"] == "W" and "Execution_Time" in said:
        return f"waits until {said['Execution_Time']}"
    return comment


def _is_stuck(said: Attributes) -> bool:
    """Tell whether a job that waits is held, but for others on which it depends, or can never run as things are."""
    holds = said.get("Hold_Types", "n")
    is_held = "o" in holds or "u" in holds or ("s" in holds and "depend" not in said)
    return is_held or said.get("comment", "").startswith("Can Never Run")


def _ran(said: Attributes) -> bool:
    # A subjob that was deleted while it waited shows its array's Exit_status and invented times.
    return "run_count" in said or "exec_host" in said


def _end(said: Attributes) -> tuple[State, str | None]:
    status = said.get("Exit_status")
    if status is None or not _ran(said):
        # "s": held by the system. PBS deletes a job whose dependency cannot come true any more.
        if "depend" in said and "s" in said.get("Hold_Types", ""):
            return State.CANCELLED, f"never ran: its dependency cannot be met ({said['depend']})"
        return State.CANCELLED, "deleted before it ran"
    if said.get("substate") == "91":  # whatever Exit_status: 0 and the script's own code were seen
        return State.CANCELLED, said.get("comment")
    try:
        code = int(status)
    except ValueError:
        return State.FAILED, f"Exit_status {status}"
    return _end_by_code(code, said.get("comment", ""))


def _end_by_code(code: int, comment: str) -> tuple[State, str | None]:
    if code in _OWN_VERDICTS:
        return _OWN_VERDICTS[code]
    if exceeded := _EXCEEDED.search(comment):
        state = {"walltime": State.TIMEOUT, "mem": State.OUT_OF_MEMORY, "vmem": State.OUT_OF_MEMORY}
        return state.get(exceeded[1], State.FAILED), f"{exceeded[1]} exceeded"
    return (State.COMPLETED, None) if code == 0 else (State.FAILED, _failure(code, comment))


def _failure(code: int, comment: str) -> str:
    if code < 0:
        return f"PBS could not run it (Exit_status {code}: {comment})"
    if code > 256:
        return f"ended by signal {code - 256}"
    if 128 < code < 128 + 65:
        return f"exit status {code}, as after signal {code - 128}"
    return f"exit status {code}"


def _why_not_running(said: Attributes) -> str | None:
    return {"S": "suspended", "U": "suspended: the workstation is in use", "E": "ending"}.get(said["job_state"])


def _expected_start(said: Attributes) -> str | None:
    text = said.get("estimated.start_time")
    if text is None:
        return None
    try:
        return datetime.strptime(text, "%a %b %d %H:%M:%S %Y").isoformat()  # noqa: DTZ007 - PBS names no zone
    except ValueError:
        return None
