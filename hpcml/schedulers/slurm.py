"""Slurm: one run is a plain job, several are one job array.

Sources: the man pages of sbatch, squeue, sacct, scancel and scontrol; what they leave open was tried on Slurm 22.05.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path

from hpcml.errors import HpcmlError
from hpcml.model.image import without_login
from hpcml.model.state import State
from hpcml.schedulers.commands import FEWER_JOBS, Answer, advised, call
from hpcml.schedulers.contract import Batch, JobUsage, Known
from hpcml.schedulers.description import JobDraft, JobRow, NameSearch, Scheduler, StatusCommand
from hpcml.schedulers.rehearsal import PATIENCE_S, Rehearsal
from hpcml.schedulers.request import Request, fill, request_for_batch
from hpcml.schedulers.script import refuse_line_breaks
from hpcml.units import format_walltime

GPU_REQUEST = "--gpus-per-node={gpus}"  # unless the site says it otherwise
TYPED_GPU_REQUEST = "--gpus-per-node={gpu_type}:{gpus}"
_CLUSTERS = re.compile(r"^#SBATCH (?:--clusters?(?![\w-])[= ]*|-M[= ]*)(\S+)", re.MULTILINE)
# Slurm may warn a minute early: of a short walltime before the agent listens, and that would end the shell
_DEAF = "trap '' USR1  # --signal may come before the agent listens"


# The script: every directive, then the lines that start the agent.


def render(draft: JobDraft) -> str:
    """Return the whole script; it starts in the draft's folder and leaves there what Slurm and the agent print.

    Raises `ConfigError` where a value holds a line break, which would end its directive.
    """
    request, size = draft.request, draft.array_size
    words = [("clusters", clusters_of(os.environ)), *_directives(request, size), *_files(draft.folder, size)]
    refused = request.cluster.slurm.refuses
    lines = [_directive(name, value) for name, value in words if value is not None and name not in refused]
    if request.gpus_per_node > 0 and (gpus := _gpus(request)):
        lines.append(f"#SBATCH {gpus}")
    lines += [f"#SBATCH {extra}" for extra in request.extra_directives]
    # Last, where no other line can replace it: the job is found again by its name.
    lines += [_directive("job-name", draft.name), _directive("comment", f"hpcml:{draft.token}")]
    refuse_line_breaks((draft.remark, *lines))
    is_warned = request.warning_s is not None and "signal" not in refused
    named = [] if clusters_in("\n".join(lines)) is None else ["export HPCML_JOB_CLUSTER=$SLURM_CLUSTER_NAME"]
    start = draft.start(launcher=_launcher(request))
    shell = [*([_DEAF] if is_warned else []), *named, *_rendezvous(request), *start]
    return "\n".join(["#!/bin/bash", f"# {draft.remark}", *lines, "", *shell, ""])


def clusters_of(variables: Mapping[str, str]) -> str | None:
    """Return which of a site's clusters sbatch would choose from, joined by commas; None: its own."""
    return variables.get("SBATCH_CLUSTERS") or variables.get("SLURM_CLUSTERS") or None


def clusters_in(script: str) -> str | None:
    r"""Return the cluster that a script asks for, by the last of its ``#SBATCH`` lines that name any; None without one.

    >>> clusters_in("#SBATCH --clusters=big\n#SBATCH -M cm4\n"), clusters_in("#SBATCH --cluster-constraint=big")
    ('cm4', None)
    """
    said = _CLUSTERS.findall(script)
    return said[-1].strip("'\"") or None if said else None


def _gpus(request: Request) -> str:
    """Return the option that asks for GPUs; empty where the site's queue gives them with the node."""
    template = request.cluster.gpu_request
    return fill(GPU_REQUEST if template is None else template, request)


def _directives(request: Request, array_size: int | None) -> Iterator[tuple[str, str | int | None]]:
    yield "account", request.account
    yield "partition", request.partition
    yield "qos", request.qos
    yield "nodes", request.nodes
    yield "ntasks-per-node", 1  # one agent, which starts the processes of its node
    yield "cpus-per-task", request.cpus_per_node
    yield "mem", None if request.mem_mb is None else f"{request.mem_mb}M"
    yield "time", None if request.walltime_s is None else format_walltime(request.walltime_s)
    yield "constraint", request.constraint
    yield "reservation", request.reservation
    yield "nodelist", request.nodelist
    yield "exclude", request.exclude
    yield "exclusive", "" if request.exclusive else None
    yield "dependency", request.dependency
    yield "kill-on-invalid-dep", "yes" if request.dependency and request.ends_with_dependency else None
    yield "mail-user", request.mail_user
    yield "mail-type", request.mail_type
    if array_size is not None:
        limit = "" if request.array_parallelism is None else f"%{request.array_parallelism}"
        yield "array", f"0-{array_size - 1}{limit}"
    # To the process that this shell becomes: the agent, or srun, which passes it on to the agents of all nodes
    yield "signal", None if request.warning_s is None else f"B:USR1@{request.warning_s}"
    yield "requeue", ""  # after a preemption or a dead node: the agent counts it as another attempt


def _files(folder: Path, array_size: int | None) -> Iterator[tuple[str, str]]:
    yield "chdir", str(folder)  # sbatch may have been typed in a folder that the node lacks
    yield "output", _log_pattern(folder, array=array_size is not None)
    yield "open-mode", "append"  # what an attempt before a requeue said is kept


def _log_pattern(folder: Path, *, array: bool) -> str:
    """Return the pattern of a log in *folder*; one backslash anywhere makes Slurm take all of it literally."""
    if "\\" in str(folder):
        return str(folder / "slurm.log").replace("\\", "\\\\")
    return str(folder).replace("%", "%%") + ("/slurm-%a.log" if array else "/slurm.log")


def _directive(name: str, value: str | int) -> str:
    """Return a line whose value arrives as it is: in double quotes sbatch knows two escapes and no expansion.

    Single quotes are not safe: a backslash is an escape within them too (measured, Slurm 22.05).
    """
    if value == "" and name in ("exclusive", "requeue"):
        return f"#SBATCH --{name}"
    text = str(value)
    if all(character.isalnum() or character in "-_=+:,./@%" for character in text) and text.isascii() and text:
        return f"#SBATCH --{name}={text}"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH --{name}="{escaped}"'


def _rendezvous(request: Request) -> list[str]:
    if request.nodes == 1:
        return []
    return [
        'HPCML_MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "export HPCML_MASTER_ADDR",
    ]


def _launcher(request: Request) -> list[str]:
    if request.nodes == 1:
        return []
    cpus = [] if request.cpus_per_node is None else [f"--cpus-per-task={request.cpus_per_node}"]  # else 1: 22.05 on
    return [
        *("srun", f"--nodes={request.nodes}", f"--ntasks={request.nodes}", "--ntasks-per-node=1", *cpus),
        *("--kill-on-bad-exit=1", "--export=ALL"),  # also where the site submits with --export=NONE
    ]


# Submission.

_NOT_SENT = re.compile(
    "^sbatch: .*(Unable to contact slurm controller|Unable to resolve|Temporary failure in name resolution)",
    re.MULTILINE,
)
_SILENT = (
    *(
        "Unable to contact",
        "Problem talking to",
        "onnection refused",
        "Socket timed out",
        "Zero Bytes were transmitted",
    ),
    *("Unexpected message received", "Transport endpoint is not connected", "Connection reset", "Connection timed out"),
    *("Broken pipe", "essage receive failure", "essage send failure"),
)
# What sbatch says where it takes, or slurmctld took, no job. Other errors of its own may come after the job was queued
_REFUSED = re.compile(
    r"^sbatch: (error: Batch job submission failed: |fatal: |unrecognized option|invalid option|option '.*' )",
    re.MULTILINE,
)
_NAMED = re.compile(r"^\s*Submitted batch job (\d+)(?: on cluster (\S+))?", re.MULTILINE)
_SETTINGS = {  # sbatch prefers these variables to the directives of a script
    "SBATCH_ACCOUNT": "account",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_TIMELIMIT": "walltime_s",
}
_OUTER = ("SLURM_", "SBATCH_", "SUBMITIT_", "HPCML_JOB_CLUSTER")
_KEPT = ("SLURM_CONF", "SBATCH_EXPORT", "SLURM_JWT")
# What the script and Slurm told a job of itself: sbatch would hand it on to the next
_OF_THIS_JOB = (
    *("HPCML_REQUEUE", "HPCML_MASTER_ADDR", "HPCML_NODE_RANK", "HPCML_JOB_START", "TMPDIR"),
    *("HPCML_JOB_ID", "HPCML_JOB_NAME", "HPCML_ARRAY_INDEX", "HPCML_PACK"),  # of a job of LSF or Flux
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
)


def environ(variables: Mapping[str, str], request: Request) -> dict[str, str]:
    """Return what sbatch gets and the job inherits: nothing of an outer job, and nothing that outvotes the script.

    A site's or a user's SBATCH_ACCOUNT and the like stay where the request leaves the choice open. To which of a site's
    clusters the job is sent is in its script. No job gets the login of a registry.
    """
    inherited = without_login(variables)
    own = _OF_THIS_JOB if "SLURM_JOB_ID" in variables else ()
    kept = {name: value for name, value in inherited.items() if not name.startswith(_OUTER) and name not in own}
    defaults = [name for name, field in _SETTINGS.items() if getattr(request, field) is None]
    return kept | {name: variables[name] for name in (*_KEPT, *defaults) if name in variables}


def explain(words: str, variables: Mapping[str, str]) -> str:
    """Return sbatch's *words* of a refusal with the variable that was read for what it refuses."""
    keys = {name: f"set resources.{field.removesuffix('_s')}" for name, field in _SETTINGS.items() if name in variables}
    return words + "".join(f": {name}={variables[name]} was read" for name, key in keys.items() if key in words)


def submitted(stdout: str) -> list[str]:
    """Return the ids in sbatch's own lines, ``4711;big`` of one on another cluster; a banner may speak of others."""
    return [f"{number};{cluster}" if cluster else number for number, cluster in _NAMED.findall(stdout)]


# What --test-only says where sbatch takes the job, which then waits: the last also of nodes that are drained (22.05)
_WAITS = (
    *("Required node not available", "Required partition not available", "nodes are busy", "Job dependency"),
    *("Requested nodes are busy", "Unable to contact slurm controller", "Socket timed out", "Connection"),
    *("Could not establish a configuration source", "Resource temporarily unavailable"),  # the latter at MaxJobCount
    "Requested node configuration is not available",
)
_STARTS = re.compile(r"to start at (\S+) using ")
_HELD = re.compile(r"^#SBATCH (?:--hold|-H)\b", re.MULTILINE)


def rehearse(batch: Batch, script: str) -> Rehearsal:
    """Ask Slurm what it would do with *script* of *batch*, by ``sbatch --test-only``; nothing is queued or written.

    Silence is a warning: whether the job is taken shows when it is submitted.
    """
    sees = environ(os.environ, request_for_batch(batch))
    try:
        answer = call(["sbatch", "--test-only"], timeout_s=PATIENCE_S, input=script, environ=sees)
    except HpcmlError as error:
        return Rehearsal(warnings=(f"Slurm did not say whether it would take the job: {error}",))
    words, starts = SLURM.words(answer), _STARTS.search(answer.stderr)
    if answer.returncode == 0:
        # Of a job that will be held it tells when it could start
        return Rehearsal(starts_at=_unix(starts[1]) if starts and not _HELD.search(script) else None)
    is_own = any(map(SLURM.speaks.match, answer.stderr.splitlines()))  # else a wrapper of the site has said it
    if answer.was_cut_short or not is_own:
        return Rehearsal(warnings=(f"Slurm did not say whether it would take the job: {answer.end}: {words}",))
    if any(sign in words for sign in _WAITS):
        return Rehearsal(warnings=(f"Slurm says of the job: {words}",))
    return Rehearsal(refused=f"Slurm refused the job: {explain(advised(words, _ADVICE), sees)}")


def _unix(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()  # of this machine's time zone, as scontrol prints it
    except ValueError:
        return None


# What squeue and sacct print.

_SEPARATOR = "\x1f"  # a job name may hold any of the usual ones
_SQUEUE_FORMAT = _SEPARATOR.join(["%i", "%T", "%r", "%S", "%l", "%L", "%j"])  # last the name, which may hold anything
_SACCT_FIELDS = "JobID,State,ExitCode,ElapsedRaw,TotalCPU,MaxRSS,JobName"
_NO_ACCOUNTING = "accounting storage is disabled"
_ALL = 10**9  # one call for any number
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


def state_of(word: str) -> State:
    """Return the state for Slurm's *word*, as in `CANCELLED by 1001`; one that is not known here is not final.

    >>> state_of("CANCELLED by 1001").value, state_of("COMPLETING").value
    ('CANCELLED', 'RUNNING')
    """
    first = word.split(maxsplit=1)[0].rstrip("+").upper() if word.strip() else ""
    return _STATES.get(first, State.RUNNING)  # COMPLETING, SUSPENDED, STAGE_OUT ... and what a later Slurm invents


def squeue_rows(stdout: str) -> list[JobRow] | None:
    """Return the rows of squeue; lines that are none are passed over, and words without a row are no answer.

    Steps of jobs are left out. The expected start is ISO 8601 in the zone of the cluster, and told of waiting jobs
    only.
    """
    if _SEPARATOR not in stdout:
        return None if stdout.strip() else []
    rows: list[JobRow] = []
    for job_id, word, reason, start, limit, left, name in _fields(stdout, 7):
        state = state_of(word)
        meaning = _meaning(reason) if state is State.PENDING else None
        no_reason = reason in ("", "None")
        known = Known(
            state=state,
            raw=word,
            reason=None if no_reason else reason if meaning is None else f"{reason}: {meaning}",
            is_ending=word in _ENDING,
            is_stuck=meaning is not None,
            expected_start=start if state is State.PENDING and _may_start(reason, start) else None,
        )
        rows += _rows(job_id, name, known, limit_s=parse_time_s(limit), left_s=parse_time_s(left))
    return rows


def _meaning(reason: str) -> str | None:
    """Return what *reason* of a job that waits means, where that does not pass by itself."""
    return next((words for sign, words in _MEANINGS if sign.search(reason)), None)


def _may_start(reason: str, start: str) -> bool:
    """Tell whether *start* is told of a job that can start: one that is held keeps what was expected before."""
    is_held = (
        "held" in reason.lower() or reason == "DependencyNeverSatisfied"
    )  # JobHeldUser; job requeued in held state
    return start not in ("", "N/A", "Unknown") and not is_held


def sacct_rows(stdout: str) -> list[JobRow] | None:
    """Return the rows of sacct; lines that are none are passed over, and words without a row are no answer.

    The exit code is Slurm's ``STATUS:SIGNAL`` (man sacct). Steps of jobs are left out, but for the most memory that a
    task of one used on a node: only they have it.
    """
    if _SEPARATOR not in stdout:
        return None if stdout.strip() else []
    lines = list(_fields(stdout, 7))
    memory_mb: dict[str, float] = {}
    for job_id, *_, max_rss, _ in lines:
        if (used_mb := _memory_mb(max_rss)) is not None:
            job = _STEP_OF.sub("", job_id)
            memory_mb[job] = max(memory_mb.get(job, 0.0), used_mb)
    rows: list[JobRow] = []
    for job_id, word, exit_code, elapsed, cpu, _, name in lines:
        state = state_of(word)
        used = None
        if state.is_final and elapsed.isdigit():
            used = JobUsage(wall_s=int(elapsed), cpu_s=_cpu_s(cpu), max_memory_mb=memory_mb.get(job_id))
        was_killed = exit_code in _KILLED
        known = Known(state=state, raw=word, exit_code=exit_code or None, used=used, was_killed=was_killed)
        rows += _rows(job_id, name, known)
    return sorted(rows, key=lambda row: not row.is_range)  # an element's own row holds


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


def _fields(text: str, count: int) -> Iterator[list[str]]:
    for line in text.split("\n"):  # not splitlines: a name may hold form feeds and the like
        fields = line.split(_SEPARATOR, count - 1)
        if len(fields) == count:
            yield [field.strip() for field in fields]


def _rows(
    job_id: str, name: str, known: Known, *, limit_s: int | None = None, left_s: int | None = None
) -> Iterator[JobRow]:
    """Yield a row for each job or element that *job_id* names; of elements that wait together, for each of them."""
    is_partial = known.state.is_final and known.exit_code is None  # squeue does not tell how a job ended
    if _STEP.match(job_id):
        return
    if match := _ARRAY_ROW.match(job_id):
        for index in _expand(match["indices"]):
            yield JobRow(number=match["job"], index=index, is_range=True, name=name, known=known, is_partial=is_partial)
        return
    number, _, element = job_id.partition("_")
    if number.isdigit() and (not element or element.isdigit()):
        index_or_none = int(element) if element else None
        yield JobRow(
            number=number,
            index=index_or_none,
            name=name,
            known=known,
            is_partial=is_partial,
            limit_s=limit_s,
            left_s=left_s,
        )


def _expand(text: str) -> Iterator[int]:
    """Yield the numbers of ``0-3,7,10-20:2``; a list that was cut off ends with dots."""
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?", part.strip())
        if match is not None:
            first = int(match[1])
            yield from range(first, int(match[2] or first) + 1, int(match[3] or 1))


# Questions.

_OF_THE_USERS_TASTE = ("SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_", "SCONTROL_")
_OTHER_CLUSTER = ("SLURM_CLUSTERS", "SBATCH_CLUSTERS", "SLURM_WORKING_CLUSTER")
_TOKEN_TIME = re.compile(r"\d{8}-\d{6}")
# Named one by one, jobs are chosen by when they were in one of them. Without, by when they became eligible, which one
# that was held, or waited for another, and was cancelled then never did (measured, 22.05: such are left out).
_EVERY_STATE = "--state=BF,CA,CD,DL,F,NF,OOM,PD,PR,R,RQ,TO"
_GONE = ("already completing or completed", "Invalid job id")  # what scancel says of a job that has ended


def reading_environ(variables: Mapping[str, str], cluster: str | None = None) -> dict[str, str]:
    """Return *variables* without what changes which jobs are shown, and how, or which are cancelled.

    Users set SQUEUE_FORMAT and the like for their own eyes, SCANCEL_INTERACTIVE or SCANCEL_PARTITION for their own
    hands (man squeue, man scancel). What sends jobs to another cluster, SBATCH_CLUSTERS, says where to look for those
    of which nothing else does; *cluster* is known where it is not None.
    """
    sent_to = clusters_of(variables) if cluster is None else None
    hidden = _OF_THE_USERS_TASTE if cluster is None else (*_OF_THE_USERS_TASTE, *_OTHER_CLUSTER)
    kept = {name: value for name, value in variables.items() if not name.startswith(hidden)}
    return {
        **kept,
        **({"SLURM_CLUSTERS": sent_to} if sent_to else {}),
        "LC_ALL": "C",
        "SLURM_TIME_FORMAT": "standard",
        "SLURM_BITSTR_LEN": "0",  # by default a list of array indices is cut after 64 characters
    }


def _squeue(columns: str) -> list[str]:
    """Return the squeue that shows all jobs of this user, ended ones too while Slurm remembers them (MinJobAge)."""
    return ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", f"--format={columns}"]


def _sacct(fields: str) -> list[str]:
    # Without --duplicates: of a requeued job, and of an id used twice, the last row is the one that holds
    return ["sacct", "--noheader", "--parsable2", f"--delimiter={_SEPARATOR}", f"--format={fields}"]


def _past(token: str) -> list[str]:
    """Return the sacct that shows this user's jobs since *token*; a clock that is late by a day hides none."""
    when = ["--allocations", f"--user={os.getuid()}", _EVERY_STATE, f"--starttime={_day_before(token)}"]
    return [*_sacct("JobID,JobName"), *when, "--endtime=now+1day"]


def _day_before(token: str) -> str:
    """Return a time before anything was submitted under *token*, which begins with one; a day is for the zones."""
    match = _TOKEN_TIME.match(token)
    if match is None:
        return "now-1year"
    try:
        return (datetime.strptime(match[0], "%Y%m%d-%H%M%S") - timedelta(days=1)).isoformat()  # noqa: DTZ007
    except ValueError:
        return "now-1year"


def found(answer: Answer, name: str) -> Mapping[str, str] | None:
    """Return the last job called *name* in rows of an id and a name; None where there was no answer."""
    if _NO_ACCOUNTING in answer.stderr:
        return {}
    if answer.returncode or (answer.stdout.strip() and _SEPARATOR not in answer.stdout):
        return None
    pairs = _fields(answer.stdout, 2)
    ids = [number for job_id, called in pairs if called == name.strip() and (number := job_id.partition("_")[0])]
    return {name: max(ids, key=int)} if ids else {}


def refusals(answer: Answer) -> list[str]:
    """Return why jobs were not cancelled; that one has ended already is no refusal."""
    parts = SLURM.words(answer).split("; ") if answer.returncode else []
    return [part for part in parts if not any(gone in part for gone in _GONE)]


def _own_job(variables: Mapping[str, str]) -> str | None:
    array, index = variables.get("SLURM_ARRAY_JOB_ID"), variables.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array and index else variables.get("SLURM_JOB_ID")


_ADVICE = {  # words of Slurm's refusals, and what to set
    "Invalid account": "set resources.account",
    "nvalid partition": "set resources.partition",
    "Invalid qos": "set resources.qos",
    "time limit is invalid": "set resources.walltime to what the partition allows",
    "Invalid job array specification": "the array is larger than the site allows: set cluster.max_array_size to "
    "the MaxArraySize that scontrol show config tells",
    "SubmitJob": FEWER_JOBS,  # AssocMaxSubmitJobLimit, QOSMaxSubmitJobPerUserLimit, AssocGrpSubmitJobsLimit ...
}

SLURM = Scheduler(
    name="slurm",
    title="Slurm",
    programs=("sbatch", "squeue", "sacct", "scancel"),
    gpu_request=GPU_REQUEST,
    typed_gpu_request=TYPED_GPU_REQUEST,
    rehearse=rehearse,
    avoids_nodes=True,
    job=re.compile(r"\d+(_\d+)?(\+\d+)?"),  # 4711, 4711_3 and 4711+5, in minutes (man sbatch)
    alternatives="?",
    render=render,
    submit=lambda draft: ["sbatch", str(draft.script)],
    by_hand="sbatch",
    label=str,
    environ=environ,
    submitted=submitted,
    refused=_REFUSED,
    unheard=_NOT_SENT,
    silent=_SILENT,
    speaks=re.compile(
        r"(?:sbatch|allocation failure|squeue|sacct|scancel|scontrol): (?:error: |fatal: )?"
        r"(?:Batch job submission failed: )?"
    ),
    advice=_ADVICE,
    explain=explain,
    job_id=re.compile(r"(\d+)(?:_\d+)?"),
    queue=StatusCommand(argv=lambda _: _squeue(_SQUEUE_FORMAT), rows=squeue_rows, needs_success=True, per_call=_ALL),
    history=StatusCommand(  # with the steps: what was used is counted of them
        argv=lambda ids: [*_sacct(_SACCT_FIELDS), f"--jobs={','.join(ids)}"],
        rows=sacct_rows,
        needs_success=True,
        tolerated=_NO_ACCOUNTING,
        per_call=5000,  # Linux takes 128 KiB in one word of a command line
    ),
    searches=[
        NameSearch(argv=lambda *_: _squeue(_SEPARATOR.join(["%F", "%j"])), found=found),
        NameSearch(argv=lambda _, token, *__: _past(token), found=found),
    ],
    elements_vanish=True,
    asking_environ=reading_environ,
    has_clusters=True,
    clusters=lambda script: (clusters_in(script) or "").split(","),
    cancel=lambda ids: ["scancel", *ids],  # SIGTERM, and SIGKILL after the site's KillWait
    cancels_at_once=1000,  # Linux takes 2 MiB of words
    refusals=refusals,
    own_job=_own_job,
    own_variable="SLURM_JOB_ID",
    own_question=lambda job: ["squeue", "--noheader", "--array", f"--jobs={job}", f"--format={_SQUEUE_FORMAT}"],
    requeue=lambda job: ["scontrol", "requeue", job],  # it keeps its id, and is killed at once
)
