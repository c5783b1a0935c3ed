"""What PBS says, read: ids, `qstat -f -w`, and what a job's attributes mean; pure functions of text.

Measured on OpenPBS 23.06.06 and git master. `-F json` is not used: it is invalid or cut short in several versions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from hpcml.schedulers.submitter import Known
from hpcml.states import State

Attributes = Mapping[str, str]

_SUBMITTED = re.compile(r"^(\d+(?:\[\])?\.\S+)\s*$", re.MULTILINE)
_ID = re.compile(r"(\d+)(?:\[(\d*)\])?(?:\.(\S+))?")
_ATTRIBUTE = re.compile(r" {4}([A-Za-z_][\w.]*) = (.*)")
_LISTED = re.compile(r"(\d+)(?:\.(\S*))?")
_COLUMNS = 11
_UNKNOWN = re.compile(r"Unknown Job Id (\S+)|(\S+) Job has finished, use -x")
_EXCEEDED = re.compile(r"exceeded resource (\S+)")
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


@dataclass(frozen=True, slots=True, order=True)
class JobId:
    """A job as PBS counts; that of another server is another job, but only its own server would know it."""

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
    """Return the job that `123`, `123.server`, `123[].server` or `123[4].server` stands for."""
    match = _ID.fullmatch(text.strip())
    if match is None:
        return None
    index = match[2]
    return JobId(int(match[1]), int(index) if index else None, index is not None, match[3])


def find_submitted_id(stdout: str) -> str | None:
    """Return the id that qsub printed; a site's wrapper may print lines around it."""
    found = _SUBMITTED.findall(stdout)
    return found[-1] if found else None


def parse_jobs(stdout: str) -> dict[JobId, dict[str, str]]:
    """Read `qstat -f -w`: one attribute a line, with line breaks inside values escaped, so that none can be forged."""
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
    """A job in the list that ``qstat -u USER`` prints: its name and its server's may be cut."""

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
    """Return the jobs that PBS says it does not know, or knows no longer."""
    ids = (parse_id(first or second) for first, second in _UNKNOWN.findall(stderr))
    return {job_id for job_id in ids if job_id is not None}


def one_line(stderr: str) -> str:
    """Return PBS's own words without its usage text, on one line."""
    lines: list[str] = []
    for line in stderr.splitlines():
        if line.startswith("usage:"):
            break
        if line.strip():
            lines.append(line.strip())
    return "; ".join(lines) or "no message"


def verdict(said: Attributes) -> Known | None:
    """Return what a job's attributes mean, or None where they hold no state that PBS has.

    COMPLETED means only that the job's process ended with 0, which a deleted job can do as well: the run's own
    journal decides where there is one.
    """
    letter = said.get("job_state", "")
    if letter in _WAITING:
        return Known(state=State.PENDING, raw=letter, reason=_why_waiting(said), expected_start=_expected_start(said))
    if letter in _RUNNING:
        return Known(state=State.RUNNING, raw=letter, reason=_why_not_running(said))
    if letter not in _ENDED:
        return None
    state, reason = _end(said)
    return Known(state=state, raw=letter, exit_code=said.get("Exit_status") if _ran(said) else None, reason=reason)


def _why_waiting(said: Attributes) -> str | None:
    comment = said.get("comment")
    if said["job_state"] == "H" and "s" in said.get("Hold_Types", "") and "run_count" in said:
        # After 21 tries PBS gives up. Measured of -o into a folder that the node lacks; no output can tell of it.
        return f"{comment or 'held after failed attempts to run'}: does the node see the folder for its log?"
    # "Job Array Began at ..." is the array's own, which its jobs show until they run.
    return None if comment is not None and comment.startswith("Job Array Began") else comment


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
