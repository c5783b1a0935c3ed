"""What LSF says, read: ids, the JSON of bjobs, the lines of bhist and bkill; pure functions of text.

Sources: IBM's pages of bjobs, bhist and bkill, and what public clients of LSF parse. Nothing here was recorded. LSF
says more than was asked: banners of the site come first, and exit statuses mean little, so only records and sentences
count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hpcml.codec import Json
from hpcml.model.state import State
from hpcml.schedulers.batches import TOKEN
from hpcml.schedulers.commands import telling_lines
from hpcml.schedulers.contract import JobUsage, Known

FIELDS = (
    "jobid jobindex stat job_name output_file exit_code exit_reason pend_reason suspend_reason cpu_used run_time "
    "max_mem runtimelimit"
)
JobKey = tuple[str, int | None]  # the number, and the element of an array

_SUBMITTED = re.compile(r"^\s*Job <(\d+)> is submitted to (?:default )?queue", re.MULTILINE)
_NOT_FOUND = re.compile(r"Job <(\d+(?:\[\d+\])?)>:? (?:is not found|No matching job found)")
_KILLED = re.compile(r"Job <(\d+(?:\[\d+\])?)>:? (is being terminated|Job has already finished|No matching job found)")
_REFUSAL = re.compile(r"Job <\d+(?:\[\d+\])?>: (?!Job has already finished|No matching job found)")
_SILENT = ("LSF is down", "Cannot connect to LSF", "Failed in LSF lim", "Communication time out", "batch daemon not")
_WAITING = {
    "PEND": None,
    "WAIT": None,
    "PROV": "its host is being prepared",
    "PSUSP": "bresume lets it start, an administrator's where an administrator suspended it",
}
_RUNNING = {
    "RUN": None,
    "USUSP": "suspended by its owner or an administrator",
    "SSUSP": "suspended by LSF",
    "UNKWN": "LSF has lost sight of its host; it may come back",
}
_SUCCESS = frozenset({"DONE", "POST_DONE", "PDONE", "POST_ERR"})  # how the site's own post-processing ended is its own
# Reasons of an end (IBM, "termination reasons"): what each means here
_REASONS = {
    **dict.fromkeys(("TERM_RUNLIMIT", "TERM_DEADLINE", "TERM_WINDOW"), State.TIMEOUT),
    **dict.fromkeys(("TERM_OWNER", "TERM_FORCE_OWNER"), State.CANCELLED),
    **dict.fromkeys(("TERM_ADMIN", "TERM_FORCE_ADMIN"), State.CANCELLED),
    **dict.fromkeys(("TERM_MEMLIMIT", "TERM_SWAP"), State.OUT_OF_MEMORY),
    **dict.fromkeys(("TERM_PREEMPT", "TERM_REQUEUE_OWNER", "TERM_REQUEUE_ADMIN"), State.PREEMPTED),
    **dict.fromkeys(("TERM_CWD_NOTEXIST", "TERM_CSM_ALLOC"), State.NODE_FAIL),
}
_KILLED_CODE = "137"  # by SIGKILL
_REASON = re.compile(r"TERM_[A-Z_]+")
_END = re.compile(  # of bhist, behind the time: not in a script or a name, which stand in <>
    r"^[^<\n]*: (?:(Done successfully)|Exited with exit code (\d+)|Exited by signal (\d+)|"
    r"Completed <exit>(?:; *(TERM_[^.\n]*))?)",
    re.MULTILINE,
)
_SIZE = re.compile(r"([\d.]+) *([kmgt]?)bytes?", re.IGNORECASE)
_MIB = {"": 1 / 1024**2, "k": 1 / 1024, "m": 1, "g": 1024, "t": 1024**2}


def find_submitted_id(stdout: str) -> str | None:
    r"""Return the last number that bsub printed, between whatever a site's esub said.

    >>> find_submitted_id("Your job requests 12 slots.\nJob <4242> is submitted to queue <gpu>.\n")
    '4242'
    """
    found = _SUBMITTED.findall(stdout)
    return found[-1] if found else None


def parse_jobs(stdout: str) -> dict[JobKey, dict[str, str]] | None:
    """Read the JSON of bjobs: the records by number and element; None where there is none.

    What stands before the JSON and after it is passed over. A record that carries an error, or no job, is left out.
    """
    decoder = json.JSONDecoder(strict=False)
    for match in re.finditer(r"\{", stdout):
        try:
            said: Json = decoder.raw_decode(stdout, match.start())[0]
        except ValueError:
            continue
        if isinstance(said, dict) and isinstance(said.get("RECORDS"), list):
            return dict(_record(one) for one in said["RECORDS"] if isinstance(one, dict) and _is_job(one))
    return None


def _is_job(record: Mapping[str, Any]) -> bool:
    return "ERROR" not in record and str(record.get("JOBID", "")).isdigit()


def _record(record: Mapping[str, Any]) -> tuple[JobKey, dict[str, str]]:
    said = {str(key): str(value).strip() for key, value in record.items()}
    index = said.get("JOBINDEX", "0")
    return (said["JOBID"], int(index) if index.isdigit() and index != "0" else None), said


def parse_unknown(text: str) -> set[str]:
    """Return the jobs that LSF says it does not find, as they were asked for: ``4711`` or ``4711[3]``."""
    return set(_NOT_FOUND.findall(text))


def is_silence(text: str) -> bool:
    """Tell whether these words are those of a client that reached no server: nothing follows of any job."""
    return any(words in text for words in _SILENT)


def one_line(text: str) -> str:
    """Return what was said on one line, its lines joined with semicolons, without rulers and empty ones."""
    return "; ".join(telling_lines(text)) or "no message"


def refusals_of_kill(text: str) -> list[str]:
    """Return the lines of bkill that say that a job was not told; one that has ended or is forgotten is none."""
    return [line.strip() for line in text.splitlines() if _REFUSAL.match(line.strip()) and not _KILLED.search(line)]


def is_ours(said: Mapping[str, str], name: str | None) -> bool:
    """Tell whether the job of our job's id is the one submitted as *name*; an element's name ends in its index.

    Anybody may change the name of a job that waits (man bmod); the folder of its log is called as our names end.
    """
    listed = said.get("JOB_NAME", "")
    if name is None or not listed or re.sub(r"\[[^\]]*\](?:%\d+)?$", "", listed) == name:
        return True
    marked = TOKEN.search(name)
    return marked is not None and marked[0] in said.get("OUTPUT_FILE", "")


def known_of(said: Mapping[str, str]) -> Known | None:
    """Return what a record of bjobs means, or None where it holds no state of LSF's.

    COMPLETED means only that the script ended with 0: the run's own journal decides where there is one.
    """
    stat = said.get("STAT", "").upper()
    if stat in _WAITING:
        why = [_said(said, "PEND_REASON") or ("suspended before it began" if stat == "PSUSP" else None), _WAITING[stat]]
        words = ": ".join(filter(None, why)) or None
        return Known(state=State.PENDING, raw=stat, reason=words, is_stuck=stat == "PSUSP")
    if stat in _RUNNING:
        return Known(state=State.RUNNING, raw=stat, reason=_said(said, "SUSPEND_REASON") or _RUNNING[stat])
    if stat in _SUCCESS:
        return Known(state=State.COMPLETED, raw=stat, exit_code="0", used=_used(said))
    if stat == "ZOMBI":
        return Known(state=State.NODE_FAIL, raw=stat, reason="its host was lost while it was killed; it may still run")
    if stat != "EXIT":
        return None
    return ended(_said(said, "EXIT_CODE"), _said(said, "EXIT_REASON"), used=_used(said))


def ended(code: str | None, reason: str | None, *, used: JobUsage | None = None, raw: str = "EXIT") -> Known:
    """Return what the end of a job without success means: by the reason of LSF, or else by the exit code."""
    why = _REASON.search(reason or "")
    state = _REASONS.get(why[0], State.FAILED) if why else State.FAILED
    if reason is None and code is not None:
        number = int(code) if code.isdigit() else 0
        by_signal = f", as after signal {number - 128}" if 128 < number < 128 + 65 else ""
        reason = f"exit status {code}{by_signal}"
    if code is None and reason is None:
        state, reason = State.CANCELLED, "ended before it ran"
    return Known(state=state, raw=raw, exit_code=code, reason=reason, used=used, was_killed=code == _KILLED_CODE)


def parse_history(stdout: str) -> Known | None:
    """Read the end of ``bhist -l`` of one job, in the event logs after bjobs has forgotten it; None: it tells no end.

    The name of the job stands there, too: see `history_name`.
    """
    found = _END.findall(re.sub(r"\n {10,}", "", stdout))  # long lines are folded
    if not found:
        return None
    if found[-1][0]:
        return Known(state=State.COMPLETED, raw="DONE", exit_code="0", is_live=False)
    code = next((first for _, first, _, _ in found if first), None)
    signal = next((second for _, _, second, _ in found if second), None)
    reason = next((third for _, _, _, third in found if third), None)
    if code is None and signal is not None:
        code = str(128 + int(signal))
    return replace(ended(code, reason), is_live=False)


def history_name(stdout: str) -> str | None:
    """Return the job's name in ``bhist -l``, None where it is not told."""
    match = re.search(r"Job Name <([^>]*)>", re.sub(r"\n {10,}", "", stdout))
    return match[1] if match else None


def parse_limit_s(text: str) -> int | None:
    """Return the seconds of a RUNTIMELIMIT in minutes, ``1440.0`` or ``3.0/hostA``; None without one.

    >>> parse_limit_s("1440.0"), parse_limit_s("3.0/hostA"), parse_limit_s("-")
    (86400, 180, None)
    """
    match = re.match(r"(\d+(?:\.\d+)?)(?:/|$)", text.strip())
    return round(float(match[1]) * 60) if match else None


def _said(record: Mapping[str, str], key: str) -> str | None:
    text = record.get(key, "").strip()
    return None if text in ("", "-") else text.rstrip(";")


def _used(record: Mapping[str, str]) -> JobUsage:
    memory = _SIZE.fullmatch(record.get("MAX_MEM", ""))
    return JobUsage(
        wall_s=_seconds(record.get("RUN_TIME", "")),
        cpu_s=_seconds(record.get("CPU_USED", "")),
        max_memory_mb=round(float(memory[1]) * _MIB[memory[2].lower()], 1) if memory else None,
    )


def _seconds(text: str) -> float | None:
    """Return the seconds of ``16038 second(s)`` or, as with -hms, ``08:38:26``."""
    if match := re.match(r"(\d+(?:\.\d+)?) second", text):
        return float(match[1])
    parts = text.split(":")
    if len(parts) == 3 and all(part.isdigit() for part in parts):
        return float(int(parts[0]) * 3600 + int(parts[1]) * 60 + int(parts[2]))
    return None
