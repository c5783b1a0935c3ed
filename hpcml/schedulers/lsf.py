"""IBM Spectrum LSF: made from its documentation and from public code, never run with a real one.

Sources: IBM's pages of bsub, bjobs, bkill and brequeue, and what public clients of LSF parse; for jsrun and
-nnodes OLCF's guide to Summit. LSF says more than was asked: banners of the site come first, and exit statuses mean
little, so only records and sentences count. How a site differs from another is said by its profile, in
`hpcml.model.cluster.Lsf`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcml.codec import Json
from hpcml.errors import require
from hpcml.model.image import without_login
from hpcml.model.state import State
from hpcml.schedulers.commands import Answer
from hpcml.schedulers.contract import JobUsage, Known, Ticket
from hpcml.schedulers.description import JobDraft, JobRow, NameSearch, Scheduler, StatusCommand
from hpcml.schedulers.request import Request, fill
from hpcml.schedulers.script import refuse_line_breaks, until_agents_end

GPU_REQUEST = '-gpu "num={gpus}:mode=shared:j_exclusive=yes"'  # of each host; unless the site says it otherwise
_WAITS = {"afterok": "done", "afterany": "ended", "afternotok": "exit", "after": "started"}
_JOB = re.compile(r"\d+(?:\[\d*\])?")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MAIL = {"NONE": "", "BEGIN": "-B", "END": "-N"}
_LAST_WORDS_S = 30  # of an agent, after the grace of its program
_HATCH = "; what LSF itself has for it can be given by resources.extra_directives"
_FIELDS = (
    "jobid jobindex stat job_name exit_code exit_reason pend_reason suspend_reason cpu_used run_time max_mem "
    "runtimelimit"
)
_SUBMITTED = re.compile(r"^\s*Job <(\d+)> is submitted to (?:default )?queue", re.MULTILINE)
_NOT_FOUND = re.compile(r"Job <(\d+(?:\[\d+\])?)>:? (?:is not found|No matching job found)")
_KILLED = re.compile(r"Job <(\d+(?:\[\d+\])?)>:? (is being terminated|Job has already finished|No matching job found)")
_REFUSAL = re.compile(r"Job <\d+(?:\[\d+\])?>: (?!Job has already finished|No matching job found)")
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
_ELEMENT = re.compile(r"\[(\d*)[^\]]*\](?:%\d+)?$")  # behind the name of an array
_NONE_NAMED = re.compile("is not found|o matching job|No job found")
_REASON = re.compile(r"TERM_[A-Z_]+")
_SIZE = re.compile(r"([\d.]+) *([kmgt]?)bytes?", re.IGNORECASE)
_MIB = {"": 1 / 1024**2, "k": 1 / 1024, "m": 1, "g": 1024, "t": 1024**2}

# What is asked for, as a job script with ``#BSUB`` lines.


def render(draft: JobDraft) -> str:
    """Return the whole script; it starts in the draft's folder, where LSF leaves what the job prints.

    Raises `ConfigError` for what LSF has no word for, and for a value that cannot stand in a ``#BSUB`` line.
    """
    request, size = draft.request, draft.array_size
    lines = list(_directives(request, draft.folder, is_array=size is not None))
    limit = f"%{request.array_parallelism}" if request.array_parallelism else ""
    title = draft.name if size is None else f"{draft.name}[1-{size}]{limit}"
    lines.append(f"-J {_quoted(title)}")  # last, where nothing replaces it: the job is found again by it
    refuse_line_breaks((draft.remark, *lines))
    job = "$LSB_JOBID" if size is None else "$LSB_JOBID[]"
    exports = [
        "unset HPCML_ARRAY_INDEX HPCML_PACK HPCML_NODE_RANK",  # of a job that submitted this one
        f"export HPCML_JOB_ID={job} HPCML_JOB_NAME={shlex.quote(draft.name)}",
        "HPCML_JOB_START=$(date +%s%N).$$  # a job that is started once more keeps its id",
        "export HPCML_JOB_START",
    ]
    if size is not None:
        exports.append("export HPCML_ARRAY_INDEX=$LSB_JOBINDEX HPCML_PACK=$((LSB_JOBINDEX - 1))  # LSF counts from 1")
    start = draft.start(launcher=_launcher(request))
    if request.cluster.lsf.launcher == "blaunch" and request.nodes > 1:
        command, grace_s = start[-1].removeprefix("exec "), request.grace_s + _LAST_WORDS_S
        start = [*start[:-1], *_on_every_node(command, draft.folder, grace_s)]
    shell = [*exports, *_rendezvous(request), *start]
    return "\n".join(["#!/bin/bash", f"# {draft.remark}", *(f"#BSUB {line}" for line in lines), "", *shell, ""])


def submit(draft: JobDraft) -> list[str]:
    """Return bsub's words; where the site does not want the script as one of them, it reads it."""
    return ["bsub"] if _reads_script(draft.request) else ["bsub", str(draft.script)]


def _reads_script(request: Request) -> bool:
    return request.cluster.lsf.submit != "argument"


def _directives(request: Request, folder: Path, *, is_array: bool) -> Iterator[str]:
    site = request.cluster.lsf
    _refuse(request)
    options = {
        site.account: request.account,
        "-q": request.partition,
        "-W": None if request.walltime_s is None else format_minutes(request.walltime_s),
        "-U": request.reservation,
        "-w": None if request.dependency is None else _condition(request.dependency),
    }
    yield from (f"{flag} {_quoted(value)}" for flag, value in options.items() if value is not None)
    yield from _whole_nodes(request) if site.nodes == "nnodes" else _slots(request)
    if request.gpus_per_node > 0:
        template = request.cluster.gpu_request
        if words := fill(GPU_REQUEST if template is None else template, request):
            yield words
    if request.nodelist is not None:
        yield f"-m {_quoted(' '.join(_hosts('nodelist', request.nodelist)))}"
    if request.exclusive:
        yield "-x"
    if request.mail_user is not None:
        yield f"-u {_quoted(request.mail_user)}"
    for word in (request.mail_type or "NONE").upper().split(","):
        require(word in _MAIL, f"resources.mail_type={request.mail_type}: LSF has {', '.join(_MAIL)}")
        if _MAIL[word]:
            yield _MAIL[word]
    yield f"-cwd {_quoted(str(folder))}"
    yield f"-o {_quoted(f'{folder}/job-%I.log' if is_array else f'{folder}/job.log')}"  # appended to; else it is mailed
    yield "-r"  # started once more where its host dies: the agent counts it as another attempt
    yield from request.extra_directives


def _refuse(request: Request) -> None:
    """Raise `ConfigError` for what LSF, or this site's, has no word for."""
    require(
        request.qos is None,
        f"resources.qos={request.qos}: LSF has queues and no quality of service; give resources.partition{_HATCH}",
    )
    if request.cluster.lsf.nodes != "nnodes":
        return
    for name in ("mem_mb", "constraint", "exclude", "nodelist"):
        value, key = getattr(request, name), name.removesuffix("_mb")
        require(
            value is None,
            f"resources.{key}: cluster={request.cluster.name} gives whole nodes by -nnodes, beside which LSF takes no "
            "resource string (-R): leave it out",
        )


def _whole_nodes(request: Request) -> Iterator[str]:
    yield f"-nnodes {request.nodes}"
    if (flags := request.cluster.lsf.alloc_flags) is not None:
        yield f'-alloc_flags "{flags}"'


def _slots(request: Request) -> Iterator[str]:
    """Yield slots, which are cores, and the resource strings: memory of each host, and which hosts."""
    cores, site = request.cores_per_node or 1, request.cluster
    yield f"-n {request.nodes * cores}"
    yield '-R "span[hosts=1]"' if request.nodes == 1 else f'-R "span[ptile={cores}]"'
    if request.mem_mb is not None:
        share = -(-request.mem_mb // cores) if site.lsf.memory == "per_slot" else request.mem_mb
        yield f"-M {request.mem_mb}MB"  # with units: what a bare number means is the site's LSF_UNIT_FOR_LIMITS
        yield f'-R "rusage[mem={share}MB]"'
    avoided = [] if request.exclude is None else [f"hname!='{host}'" for host in _hosts("exclude", request.exclude)]
    chosen = " && ".join([*([] if request.constraint is None else [request.constraint]), *avoided])
    if chosen:
        yield f"-R {_quoted(f'select[{chosen}]')}"


def _hosts(key: str, text: str) -> list[str]:
    hosts = text.split(",")
    good = all(_HOST.fullmatch(host) for host in hosts)
    require(good, f"resources.{key}={text}: LSF wants names of hosts, separated by commas and without brackets")
    return hosts


def _condition(text: str) -> str:
    """Return a dependency in LSF's words (bsub -w): ``afterok:12,afterany:13`` is ``done(12) && ended(13)``."""
    parts: list[str] = []
    for clause in text.split(","):
        word, *jobs = clause.split(":")
        require(
            word in _WAITS and bool(jobs) and all(_JOB.fullmatch(job) or job.startswith("<") for job in jobs),
            f"resources.dependency={text}: LSF has {', '.join(_WAITS)}, each as WORD:ID[:ID]",
        )
        parts += [f"{_WAITS[word]}({job.removesuffix('[]')})" for job in jobs]
    return " && ".join(parts)


def format_minutes(seconds: int) -> str:
    """Return H:MM, rounded up: LSF has no seconds (bsub -W [hour:]minute).

    >>> format_minutes(7200), format_minutes(90)
    ('2:00', '0:02')
    """
    minutes = -(-seconds // 60)
    return f"{minutes // 60}:{minutes % 60:02d}"


def _launcher(request: Request) -> list[str]:
    """Return what starts one agent on each node, where the script itself is on none of them."""
    if request.cluster.lsf.launcher != "jsrun":
        return []
    site = request.cluster  # resource sets of a whole node, one task each, bound to nothing: the agent starts the rest
    cores = ["-c", str(site.cores_per_gpu * site.gpus_per_node)] if site.cores_per_gpu and site.gpus_per_node else []
    gpus = ["-g", str(site.gpus_per_node)] if site.gpus_per_node else []
    return ["jsrun", "-n", str(request.nodes), "-r", "1", "-a", "1", *cores, *gpus, "-b", "none"]


def _rendezvous(request: Request) -> list[str]:
    if request.nodes == 1:
        return []
    hosts = "mapfile -t nodes < <(awk '!seen[$0]++' \"$LSB_DJOB_HOSTFILE\")"
    if request.cluster.lsf.launcher == "jsrun":  # the first is the launch node, on which the script runs
        hosts = "mapfile -t nodes < <(grep -v -e batch -e login \"$LSB_DJOB_HOSTFILE\" | awk '!seen[$0]++')"
    return [hosts, "export HPCML_MASTER_ADDR=${nodes[0]}"]


def _on_every_node(command: str, folder: Path, grace_s: int) -> list[str]:
    """Return the lines that start *command* on each host: by blaunch, but for the first, where this shell is.

    The first that fails ends the others: SIGTERM, with the reason in a file that their agents read, after *grace_s*
    seconds SIGKILL. Signals to the job are handed on.
    """
    return f"""
export HPCML_JOB_END={shlex.quote(str(folder))}/job.$LSB_JOBID.$LSB_JOBINDEX.end
told=()  # blaunch need not hand on what is exported here
for name in HPCML_JOB_ID HPCML_JOB_NAME HPCML_JOB_START HPCML_JOB_END HPCML_ARRAY_INDEX HPCML_PACK \\
    HPCML_MASTER_ADDR HPCML_REQUEUE HPCML_TIME_LIMIT; do
    [ -z "${{!name}}" ] || told+=("$name=${{!name}}")
done
agents=()
for rank in "${{!nodes[@]}}"; do
    there=(blaunch "${{nodes[rank]}}" -no-shell)  # else the words are a line for a shell, as rsh's are
    [ "$rank" -gt 0 ] || there=()
    "${{there[@]}}" /usr/bin/env HPCML_NODE_RANK="$rank" "${{told[@]}}" {command} &
    agents+=($!)
done
signal_all() {{ kill -s "$1" "${{agents[@]}}" 2>/dev/null; }}
set +e
ending=  # by LSF, which signals each process of the job: no failure of theirs
trap 'signal_all USR1' USR1
trap 'ending=1; signal_all TERM' TERM INT
trap : USR2
status=0 why= term_at= kill_at=  # seconds of this shell; not set: never
{until_agents_end("$SECONDS")}
    [ "${{#agents[@]}}" -gt 0 ] || break
    if [ -z "$ending" ] && [ -n "$term_at" ] && [ "$SECONDS" -ge "$term_at" ]; then
        [ -z "$why" ] || echo "$why" >"$HPCML_JOB_END"
        signal_all TERM
        term_at= kill_at=$((SECONDS + {grace_s}))
    elif [ -n "$kill_at" ] && [ "$SECONDS" -ge "$kill_at" ]; then
        signal_all KILL
        kill_at=
    fi
done
rm -f "$HPCML_JOB_END"
exit "$status"
""".strip("\n").splitlines()


def _quoted(value: str) -> str:
    """Return *value* as a word of a ``#BSUB`` line, which LSF reads with double quotes and no escapes in them."""
    require(
        not set(value) & set('"\n\r\0'), f"{value!r} cannot be written as a #BSUB line: it holds a quote or a line end"
    )
    return value if re.fullmatch(r"[A-Za-z0-9_./:=,@%+-]+", value) else f'"{value}"'


def environ(variables: Mapping[str, str], request: Request) -> dict[str, str]:  # noqa: ARG001 - as Slurm's
    """Return what bsub gets and, by its ``-env all``, the job: nothing of an outer job, nor the login of a registry."""
    return {
        name: value
        for name, value in without_login(variables).items()
        if not name.startswith(("LSB_JOB", "LSB_BATCH", "LS_JOB"))
    }


# What LSF prints.


def submitted(stdout: str) -> list[str]:
    r"""Return the numbers that bsub printed, between whatever a site's esub said.

    >>> submitted("Your job requests 12 slots.\nJob <4242> is submitted to queue <gpu>.\n")
    ['4242']
    """
    return _SUBMITTED.findall(stdout)


def parse_jobs(stdout: str) -> list[Mapping[str, str]] | None:
    """Read the JSON of bjobs: its records; None where there is none.

    What stands before the JSON and after it is passed over. A record that carries an error, or no job, is left out.
    """
    decoder = json.JSONDecoder(strict=False)
    for match in re.finditer(r"\{", stdout):
        try:
            found: Json = decoder.raw_decode(stdout, match.start())[0]
        except ValueError:
            continue
        if isinstance(found, dict) and isinstance(found.get("RECORDS"), list):
            records = [one for one in found["RECORDS"] if isinstance(one, dict) and _is_job(one)]
            return [{str(key): str(value).strip() for key, value in record.items()} for record in records]
    return None


def _is_job(record: Mapping[str, Any]) -> bool:
    return "ERROR" not in record and str(record.get("JOBID", "")).isdigit()


def rows(stdout: str) -> list[JobRow] | None:
    """Return the jobs, and elements of arrays, of bjobs."""
    jobs = parse_jobs(stdout)
    return None if jobs is None else [_row(job) for job in jobs]


def _row(job: Mapping[str, str]) -> JobRow:
    index = job.get("JOBINDEX", "0")
    return JobRow(
        number=job["JOBID"],
        index=int(index) if index.isdigit() and index != "0" else None,
        name=_ELEMENT.sub("", job.get("JOB_NAME", "")),
        known=known_of(job),
        limit_s=parse_limit_s(job.get("RUNTIMELIMIT", "")),
    )


def found(answer: Answer, name: str) -> Mapping[str, str] | None:
    """Return the last job called *name*, as bjobs knows it for an hour after its end (CLEAN_PERIOD)."""
    jobs = rows(answer.stdout)
    if jobs is None:
        return {} if _NONE_NAMED.search(answer.stderr) else None
    number = max((row.number for row in jobs if row.name == name), key=int, default=None)
    return {} if number is None else {name: number}


def known_of(job: Mapping[str, str]) -> Known | None:
    """Return what a record of bjobs means, or None where it holds no state of LSF's.

    COMPLETED means only that the script ended with 0: the run's own journal decides where there is one.
    """
    stat = job.get("STAT", "").upper()
    if stat in _WAITING:
        why = [_text(job, "PEND_REASON") or ("suspended before it began" if stat == "PSUSP" else None), _WAITING[stat]]
        words = ": ".join(filter(None, why)) or None
        return Known(state=State.PENDING, raw=stat, reason=words, is_stuck=stat == "PSUSP")
    if stat in _RUNNING:
        return Known(state=State.RUNNING, raw=stat, reason=_text(job, "SUSPEND_REASON") or _RUNNING[stat])
    if stat in _SUCCESS:
        return Known(state=State.COMPLETED, raw=stat, exit_code="0", used=_used(job))
    if stat == "ZOMBI":
        return Known(state=State.NODE_FAIL, raw=stat, reason="its host was lost while it was killed; it may still run")
    if stat != "EXIT":
        return None
    return ended(_text(job, "EXIT_CODE"), _text(job, "EXIT_REASON"), used=_used(job))


def ended(code: str | None, reason: str | None, *, used: JobUsage | None = None) -> Known:
    """Return what the end of a job without success means: by the reason of LSF, or else by the exit code."""
    why = _REASON.search(reason or "")
    state = _REASONS.get(why[0], State.FAILED) if why else State.FAILED
    if reason is None and code is not None:
        number = int(code) if code.isdigit() else 0
        by_signal = f", as after signal {number - 128}" if 128 < number < 128 + 65 else ""
        reason = f"exit status {code}{by_signal}"
    if code is None and reason is None:
        state, reason = State.CANCELLED, "ended before it ran"
    return Known(state=state, raw="EXIT", exit_code=code, reason=reason, used=used, was_killed=code == _KILLED_CODE)


def parse_limit_s(text: str) -> int | None:
    """Return the seconds of a RUNTIMELIMIT in minutes, ``1440.0`` or ``3.0/hostA``; None without one.

    >>> parse_limit_s("1440.0"), parse_limit_s("3.0/hostA"), parse_limit_s("-")
    (86400, 180, None)
    """
    match = re.match(r"(\d+(?:\.\d+)?)(?:/|$)", text.strip())
    return round(float(match[1]) * 60) if match else None


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


def _text(record: Mapping[str, str], key: str) -> str | None:
    text = record.get(key, "").strip()
    return None if text in ("", "-") else text.rstrip(";")


def refusals(answer: Answer) -> list[str]:
    """Return the lines of bkill that say that a job was not told; one that has ended or is forgotten is none."""
    lines = f"{answer.stdout}\n{answer.stderr}".splitlines()
    refused = [line.strip() for line in lines if _REFUSAL.match(line.strip()) and not _KILLED.search(line)]
    is_other = answer.returncode != 0 and not any("Job <" in line for line in lines)
    return [f"bkill failed ({answer.end}): {LSF.words(answer)}"] if is_other else refused


def _own_job(variables: Mapping[str, str]) -> str | None:
    number, index = variables.get("LSB_JOBID"), variables.get("LSB_JOBINDEX") or "0"
    return number if index == "0" or not number else f"{number}[{index}]"


def _number(ticket: Ticket) -> str:
    return ticket.job_id.removesuffix("[]")


def _spelled(ticket: Ticket) -> str:
    return ticket.spelled.replace("[]", "")


LSF = Scheduler(
    name="lsf",
    title="LSF",
    untried="made from IBM's documentation, and never run with a real LSF",
    programs=("bsub", "bjobs", "bkill"),
    gpu_request=GPU_REQUEST,
    avoids_nodes=True,
    job=re.compile(r"\d+(\[\d*\])?"),
    render=render,
    submit=submit,
    by_hand="bsub",
    reads_script=_reads_script,
    environ=environ,
    submitted=submitted,
    first_index=1,
    array_id="{}[]",
    refused=re.compile("Job not submitted|Request aborted by esub"),
    unheard=re.compile("Request from non-LSF host rejected"),  # of a host that LSF is just getting to know
    silent=("LSF is down", "Cannot connect to LSF", "Failed in LSF lim", "Communication time out", "batch daemon not"),
    job_id=re.compile(r"([1-9]\d*)(?:\[\d*\])?"),  # 0 means all of a user's jobs
    queue=StatusCommand(
        argv=lambda ids: ["bjobs", "-a", "-json", "-o", _FIELDS, *ids], rows=rows, word=_number, unknown=_NOT_FOUND
    ),
    searches=[NameSearch(argv=lambda name, *_: ["bjobs", "-a", "-json", "-o", _FIELDS, "-J", name], found=found)],
    cancel=lambda ids: ["bkill", *ids],  # SIGINT, SIGTERM and SIGKILL, ten seconds apart (JOB_TERMINATE_INTERVAL)
    cancel_word=_spelled,
    refusals=refusals,
    own_job=_own_job,
    own_variable="LSB_JOBID",
    own_question=lambda job: ["bjobs", "-json", "-o", _FIELDS, job],
    requeue=lambda job: ["brequeue", job],  # it is killed at once, and keeps its id (man brequeue)
    requeued="is being requeued",
)
