"""Flux (flux-core): made from recordings of a real one, 0.88.0, and its man pages.

A job of ``flux submit`` runs the script once on each node, as srun does, so no launcher is needed. Of several jobs one
call makes them all (``--cc``): Flux has no arrays.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcml.errors import require
from hpcml.model.image import without_login
from hpcml.model.state import State
from hpcml.schedulers.commands import Answer
from hpcml.schedulers.contract import JobUsage, Known, Ticket
from hpcml.schedulers.description import JobDraft, JobRow, NameSearch, Scheduler, StatusCommand
from hpcml.schedulers.request import Request, fill
from hpcml.schedulers.script import refuse_line_breaks, words_of_directive

GPU_REQUEST = (
    "--gpus-per-task={gpus}"  # a task is an agent, and has its whole node's; unless the site says it otherwise
)
# Within which the others leave after the first node, well or not: agents wait for each other (other_nodes), and the
# first may have a webhook to tell and the run to queue again after the others have left (flux-core, src/shell/doom.c)
_EXIT_TIMEOUT_S = 30
_WAITS = ("afterok", "afterany", "afternotok", "after")
_BASE58 = "[1-9A-HJ-NP-Za-km-z]"
_JOB = re.compile(f"[f\u0192]?{_BASE58}+")
_ID = re.compile(f"[f\u0192]{_BASE58}+")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_HATCH = "; what Flux itself has for it can be given by resources.extra_directives"
_ASK = ("flux", "jobs", "--json")
_CANCEL_REFUSED = re.compile(r"^flux-cancel: (?:ERROR|error): (.*)$", re.MULTILINE)
_GONE = ("job is inactive", "unknown job id")
_RESULTS = {"COMPLETED": State.COMPLETED, "CANCELED": State.CANCELLED, "TIMEOUT": State.TIMEOUT}
_KILLED = "137"  # by SIGKILL
_WAITING = frozenset({"NEW", "DEPEND", "PRIORITY", "SCHED"})


# What is asked for, and the script that each node then runs.


def render(draft: JobDraft) -> str:
    """Return the script that each node runs; its head says how it is submitted by hand.

    Raises `ConfigError` for what Flux has no word for, and for a value with a line break.
    """
    by_hand = shlex.join(submit(draft))
    refuse_line_breaks((draft.remark, by_hand))
    number = "" if draft.array_size is None else ".$FLUX_JOB_CC"
    exports = [
        "trap '' USR1  # --signal may come before the agent listens",
        "unset HPCML_ARRAY_INDEX HPCML_PACK HPCML_JOB_START",  # of a job that submitted this one
        "export HPCML_JOB_ID=${FLUX_JOB_ID//\u0192/f} HPCML_NODE_RANK=$FLUX_TASK_RANK",
        f"export HPCML_JOB_NAME={shlex.quote(draft.name)}{number}",
    ]
    if draft.array_size is not None:
        exports.append("export HPCML_PACK=$FLUX_JOB_CC")
    shell = [*exports, *(_RENDEZVOUS if draft.request.nodes > 1 else ()), *draft.start()]
    return "\n".join(["#!/bin/bash", f"# {draft.remark}", f"# {by_hand}", "", *shell, ""])


# The first of gpu[001-2,7].site is gpu001.site: what stands before the bracket, the first number, what stands behind it
_RENDEZVOUS = (
    "nodes=$(flux jobs -n -o '{nodelist}' \"$FLUX_JOB_ID\")",
    "if [[ $nodes =~ ^([^][,]+)\\[([0-9]+)[^]]*\\]([^][,]*) ]]; then",
    "    HPCML_MASTER_ADDR=${BASH_REMATCH[1]}${BASH_REMATCH[2]}${BASH_REMATCH[3]}",
    "else",
    "    HPCML_MASTER_ADDR=${nodes%%,*}",
    "fi",
    "export HPCML_MASTER_ADDR",
)


def submit(draft: JobDraft) -> list[str]:
    """Return the words of ``flux submit`` for *draft*."""
    braces = set(str(draft.folder)) & set("{}")
    require(
        not braces,
        f"{draft.folder}: flux submit fills in what stands in braces, so no folder of a run may have them in its name",
    )
    several = [] if draft.array_size is None else [f"--cc=0-{draft.array_size - 1}"]
    name, log = draft.name, draft.folder / f"job{draft.log_suffix}.log"  # flux begins its files anew
    if several:
        name, log = f"{name}.{{cc}}", log.with_name("job-{cc}.log")
    files = [f"--output={log}", f"--job-name={name}"]
    return ["flux", "submit", *_options(draft.request, draft.folder), *several, *files, "bash", str(draft.script)]


def _options(request: Request, folder: Path) -> Iterator[str]:
    _refuse(request)
    yield from _resources(request)
    options = {
        "time-limit": None if request.walltime_s is None else f"{request.walltime_s}s",  # bare numbers are minutes
        "queue": request.partition,
        "setattr": None if request.account is None else f"bank={request.account}",
        "requires": " and ".join(_conditions(request)) or None,
    }
    yield from (f"--{name}={value}" for name, value in options.items() if value is not None)
    if request.dependency is not None:
        yield from (f"--dependency={one}" for one in _dependencies(request.dependency))
    if request.warning_s is not None and request.walltime_s is None:  # else the agent's own clock does it
        yield f"--signal=USR1@{request.warning_s}s"
    yield f"--cwd={folder}"
    if request.nodes > 1:
        yield f"--setopt=exit-timeout={_EXIT_TIMEOUT_S}s"  # the first node that fails ends the others
    for text in request.extra_directives:
        yield from words_of_directive(text)


def _resources(request: Request) -> Iterator[str]:
    yield f"--nodes={request.nodes}"
    yield f"--ntasks={request.nodes}"
    if request.cores_per_node is not None:
        yield f"--cores-per-task={request.cores_per_node}"
    if request.gpus_per_node > 0:
        template = request.cluster.gpu_request
        yield from shlex.split(fill(GPU_REQUEST if template is None else template, request))
    if request.exclusive or request.cluster.whole_nodes:
        yield "--exclusive"


def _conditions(request: Request) -> Iterator[str]:
    """Yield what a node must be, in the language of constraints (RFC 35)."""
    if request.constraint is not None:
        yield request.constraint
    for key, word in (("nodelist", "host"), ("exclude", "-host")):
        if (text := getattr(request, key)) is not None:
            good = all(_HOST.fullmatch(host) for host in text.split(","))
            require(good, f"resources.{key}={text}: write names of hosts, separated by commas and without brackets")
            yield f"{word}:{text}"


def _refuse(request: Request) -> None:
    """Raise `ConfigError` for what Flux has no word for."""
    lacking = {
        "mem": (request.mem_mb, "Flux shares out cores and GPUs, and no memory"),
        "qos": (request.qos, "Flux has queues and no quality of service; give resources.partition"),
        "reservation": (request.reservation, "Flux has no reservations of its own"),
        "mail_user": (request.mail_user, "Flux sends no mail"),
        "mail_type": (request.mail_type, "Flux sends no mail"),
    }
    for key, (value, why) in lacking.items():
        require(value is None, f"resources.{key}: {why}: leave it out{_HATCH}")


def _dependencies(text: str) -> Iterator[str]:
    for clause in text.split(","):
        word, *jobs = clause.split(":")
        require(
            word in _WAITS and bool(jobs) and all(_JOB.fullmatch(job) or job.startswith("<") for job in jobs),
            f"resources.dependency={text}: Flux has {', '.join(_WAITS)}, each as WORD:ID[:ID]",
        )
        yield from (f"{word}:{job}" for job in jobs)


def environ(variables: Mapping[str, str], request: Request) -> dict[str, str]:  # noqa: ARG001 - as Slurm's
    """Return what flux gets and the job inherits: nothing that an outer job was told of itself."""
    outer = ("FLUX_JOB_", "FLUX_TASK_", "PMI_", "PMIX_")
    return {name: value for name, value in without_login(variables).items() if not name.startswith(outer)}


# What Flux prints.


def plain(job_id: str) -> str:
    """Return an id in base 58 with an f in front, which every locale can print and Flux takes as it takes its own.

    >>> plain("\u01922TJSAQF")
    'f2TJSAQF'
    """
    return f"f{job_id[1:]}" if job_id.startswith("\u0192") else job_id


def submitted(stdout: str) -> list[str]:
    """Return the ids that ``flux submit`` printed, one a line, in their order; banners are passed over."""
    return [plain(line.strip()) for line in stdout.splitlines() if _ID.fullmatch(line.strip())]


def parse_jobs(stdout: str) -> list[Mapping[str, Any]] | None:
    """Read ``flux jobs --json``; None where there is no JSON.

    For a single id Flux prints the job itself, without the list around it. Banners before the JSON are passed over.
    """
    decoder = json.JSONDecoder(strict=False)
    for match in re.finditer(r"\{", stdout):
        try:
            found = decoder.raw_decode(stdout, match.start())[0]
        except ValueError:
            continue
        listed = found.get("jobs") if "jobs" in found else [found] if "jobid" in found else None
        if isinstance(listed, list):
            return [job for job in listed if isinstance(job, dict) and "jobid" in job]
    return None


def rows(stdout: str) -> list[JobRow] | None:
    """Return the jobs of ``flux jobs --json``."""
    jobs = parse_jobs(stdout)
    return None if jobs is None else [row_of(job) for job in jobs]


def row_of(job: Mapping[str, Any]) -> JobRow:
    """Return what a job in the JSON says; a duration of 0 is none."""
    duration, exception = _number(job.get("duration")), _exception(job)
    is_unsatisfiable = job.get("state") == "INACTIVE" and exception.get("type") == "alloc"
    return JobRow(
        number=str(job.get("jobid", ""))[1:],
        name=str(job.get("name", "")),
        known=known_of(job),
        limit_s=round(duration) if duration else None,
        never_placed=exception.get("note") if is_unsatisfiable else None,
    )


def found(answer: Answer, name: str) -> Mapping[str, str] | None:
    """Return the latest job of each name that is *name*, or ``NAME.0`` and so on; ended ones until Flux purges them."""
    jobs = parse_jobs(answer.stdout)
    if jobs is None:
        return None
    in_order = sorted(jobs, key=lambda job: (float(job.get("t_submit") or 0.0), plain(str(job["jobid"]))))
    return {str(job.get("name", "")): plain(str(job["jobid"])) for job in in_order if name in str(job.get("name", ""))}


def known_of(job: Mapping[str, Any]) -> Known | None:
    """Return what a job in the JSON means, or None where it holds no state of Flux's.

    COMPLETED means only that the script ended with 0: the run's own journal decides where there is one.
    """
    state = str(job.get("state", ""))
    if state in _WAITING:
        return Known(state=State.PENDING, raw=state, reason=_why_waiting(job), is_stuck=job.get("urgency") == 0)
    if state in ("RUN", "CLEANUP"):
        is_ending = state == "CLEANUP"
        return Known(state=State.RUNNING, raw=state, reason="ending" if is_ending else None, is_ending=is_ending)
    if state != "INACTIVE":
        return None
    result, exception = str(job.get("result", "")), _exception(job)
    ran = "t_run" in job
    used = JobUsage(wall_s=_number(job.get("runtime"))) if ran else None
    code = str(job["returncode"]) if ran and isinstance(job.get("returncode"), int) else None
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


def _why_waiting(job: Mapping[str, Any]) -> str | None:
    if job.get("urgency") == 0:
        return "held: flux job urgency ID default lets it start"
    waits = job.get("dependencies")
    return f"waits for {', '.join(map(str, waits))}" if isinstance(waits, list) and waits else None


def _exception(job: Mapping[str, Any]) -> Mapping[str, str]:
    found = job.get("exception")
    if not isinstance(found, dict) or not found.get("occurred"):
        return {}
    return {key: str(found.get(key, "")) for key in ("type", "note")}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def refusals(answer: Answer) -> list[str]:
    """Return why jobs could not be cancelled; one that has ended or is forgotten is no refusal."""
    return [line for line in _CANCEL_REFUSED.findall(answer.stderr) if not any(gone in line for gone in _GONE)]


def _word(ticket: Ticket) -> str:
    return plain(ticket.job_id)


FLUX = Scheduler(
    name="flux",
    title="Flux",
    untried="made from recordings of flux-core 0.88.0, and not yet run at a site",
    programs=("flux",),
    gpu_request=GPU_REQUEST,
    avoids_nodes=True,
    limits_arrays=False,
    job=re.compile(f"[f\u0192]{_BASE58}{{6,}}"),  # hpcml's own ids of runs have no f in front
    render=render,
    submit=submit,
    by_hand="flux submit ... bash",
    environ=environ,
    submitted=submitted,
    first_index=None,
    refused=re.compile(r"\[Errno|flux-submit: (?:ERROR|error)"),
    unheard=re.compile("^flux-submit: .*Unable to connect to Flux", re.MULTILINE),
    silent=("Unable to connect to Flux", "Connection refused", "Connection reset"),
    speaks=re.compile(r"flux[- ]\w+: (?:ERROR: |error: )?"),
    settles_s=0.5,  # within which Flux says that a job can never be placed
    job_id=re.compile(f"[f\u0192]?({_BASE58}+)"),
    queue=StatusCommand(
        argv=lambda ids: [*_ASK, *ids], rows=rows, word=_word, unknown=re.compile(r"JobID (\S+) unknown"), per_call=500
    ),
    searches=[
        NameSearch(
            argv=lambda name, _, several: [*_ASK, "-a", "--count=0" if several else f"--name={name}"], found=found
        )
    ],
    cancel=lambda ids: ["flux", "cancel", *ids],  # SIGTERM, and SIGKILL five seconds later
    cancel_word=_word,
    refusals=refusals,
    own_job=lambda variables: plain(variables.get("FLUX_JOB_ID", "")),
    own_variable="FLUX_JOB_ID",
    own_question=lambda job: [*_ASK, job],
)
