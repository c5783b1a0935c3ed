"""What Flux says, read: ids, the JSON of ``flux jobs``, and what a job in it means; pure functions of text.

Recorded on flux-core 0.88.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hpcml.model.state import State
from hpcml.schedulers.contract import JobUsage, Known

Said = Mapping[str, Any]

_ID = re.compile(r"[f\u0192][1-9A-HJ-NP-Za-km-z]+")
_UNKNOWN = re.compile(r"JobID (\S+) unknown")
_KILL_REFUSED = re.compile(r"^flux-cancel: ERROR: (.*)$", re.MULTILINE)
_GONE = ("job is inactive", "unknown job id")
_SILENT = ("Unable to connect to Flux", "Connection refused", "Connection reset", "No such file or directory")
_RESULTS = {"COMPLETED": State.COMPLETED, "CANCELED": State.CANCELLED, "TIMEOUT": State.TIMEOUT}
_KILLED = "137"  # by SIGKILL
_WAITING = frozenset({"NEW", "DEPEND", "PRIORITY", "SCHED"})


def plain(job_id: str) -> str:
    """Return an id in base 58 with an f in front, which every locale can print and Flux takes as it takes its own.

    >>> plain("\u01922TJSAQF")
    'f2TJSAQF'
    """
    return f"f{job_id[1:]}" if job_id.startswith("\u0192") else job_id


def find_submitted_ids(stdout: str) -> list[str]:
    """Return the ids that ``flux submit`` printed, one a line, in their order; banners are passed over."""
    return [plain(line.strip()) for line in stdout.splitlines() if _ID.fullmatch(line.strip())]


def parse_jobs(stdout: str) -> dict[str, Said] | None:
    """Read ``flux jobs --json``: the jobs by plain id; None where there is no JSON.

    For a single id Flux prints the job itself, without the list around it. Banners before the JSON are passed over.
    """
    decoder = json.JSONDecoder(strict=False)
    for match in re.finditer(r"\{", stdout):
        try:
            said = decoder.raw_decode(stdout, match.start())[0]
        except ValueError:
            continue
        listed = said.get("jobs") if "jobs" in said else [said] if "jobid" in said else None
        if isinstance(listed, list):
            return {plain(str(job["jobid"])): job for job in listed if isinstance(job, dict) and "jobid" in job}
    return None


def parse_unknown(stderr: str) -> set[str]:
    """Return the plain ids that Flux says it does not know."""
    return {plain(job_id) for job_id in _UNKNOWN.findall(stderr)}


def is_silence(stderr: str) -> bool:
    """Tell whether these words are those of a command that reached no broker: nothing follows of any job."""
    return any(words in stderr for words in _SILENT)


def one_line(text: str) -> str:
    """Return Flux's own words on one line, without its name and its usage."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("usage:", " "))]
    return "; ".join(re.sub(r"^flux[- ]\w+: (?:ERROR: |error: )?", "", line) for line in lines) or "no message"


def refusals_of_cancel(stderr: str) -> list[str]:
    """Return why jobs could not be cancelled; one that has ended or is forgotten is no refusal."""
    return [line for line in _KILL_REFUSED.findall(stderr) if not any(gone in line for gone in _GONE)]


def known_of(said: Said) -> Known | None:
    """Return what a job in the JSON means, or None where it holds no state of Flux's.

    COMPLETED means only that the script ended with 0: the run's own journal decides where there is one.
    """
    state = str(said.get("state", ""))
    if state in _WAITING:
        return Known(state=State.PENDING, raw=state, reason=_why_waiting(said), is_stuck=said.get("urgency") == 0)
    if state in ("RUN", "CLEANUP"):
        is_ending = state == "CLEANUP"
        return Known(state=State.RUNNING, raw=state, reason="ending" if is_ending else None, is_ending=is_ending)
    if state != "INACTIVE":
        return None
    result, exception = str(said.get("result", "")), _exception(said)
    ran = "t_run" in said
    used = JobUsage(wall_s=_number(said.get("runtime"))) if ran else None
    code = str(said["returncode"]) if ran and isinstance(said.get("returncode"), int) else None
    ended, reason = _end(result, exception, code)
    was_killed = code == _KILLED
    return Known(state=ended, raw=result or state, exit_code=code, reason=reason, used=used, was_killed=was_killed)


def _end(result: str, exception: Mapping[str, str], code: str | None) -> tuple[State, str | None]:
    kind, note = exception.get("type"), exception.get("note") or None
    if result in _RESULTS:
        return _RESULTS[result], note
    if kind is None:
        number = int(code) if code is not None else 0
        by_signal = f", as after signal {number - 128}" if 128 < number < 128 + 65 else ""
        return State.FAILED, None if code is None else f"exit status {code}{by_signal}"
    if kind == "dependency":
        return State.CANCELLED, f"never ran: its dependency cannot be met ({note})"
    return State.PREEMPTED if kind == "preempt" else State.FAILED, f"{kind}: {note}"


def why_never_placed(said: Said) -> str | None:
    """Return why a job that was taken can never run, which Flux says only a moment after it has taken it."""
    exception = _exception(said)
    return exception.get("note") if said.get("state") == "INACTIVE" and exception.get("type") == "alloc" else None


def duration_s(said: Said) -> int | None:
    """Return the time limit that the job has now, in seconds; None without one (Flux says 0)."""
    duration = _number(said.get("duration"))
    return round(duration) if duration else None


def _why_waiting(said: Said) -> str | None:
    if said.get("urgency") == 0:
        return "held: flux job urgency ID default lets it start"
    waits = said.get("dependencies")
    return f"waits for {', '.join(map(str, waits))}" if isinstance(waits, list) and waits else None


def _exception(said: Said) -> Mapping[str, str]:
    found = said.get("exception")
    if not isinstance(found, dict) or not found.get("occurred"):
        return {}
    return {key: str(found.get(key, "")) for key in ("type", "note")}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
