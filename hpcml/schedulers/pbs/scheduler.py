"""PBS Pro and OpenPBS: one run is a plain job, several are one job array.

A job is asked for by qsub's own words, and its script says the same, for who submits it by hand. Sources: the man pages
of qsub, qdel, qstat, qselect and pbs_resources; measured on OpenPBS 23.06.06 and git master. `qstat -F json` is not
used for jobs: it is invalid or cut short in several versions.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from hpcml.errors import HpcmlError, require
from hpcml.model.image import without_login
from hpcml.model.state import State
from hpcml.schedulers.commands import FEWER_JOBS, Answer, call
from hpcml.schedulers.contract import Batch, JobUsage, Known
from hpcml.schedulers.description import JobDraft, JobRow, NameSearch, Scheduler, StatusCommand
from hpcml.schedulers.pbs.nodes import on_every_node
from hpcml.schedulers.rehearsal import PATIENCE_S, Rehearsal
from hpcml.schedulers.request import Request, fill, request_for_batch
from hpcml.schedulers.script import refuse_line_breaks, words_of_directive
from hpcml.walltime import format_walltime

FIRST_LINES = (  # of every job: where and as if it had been typed
    'cd "${PBS_O_WORKDIR:-.}"',  # PBS starts jobs in the home directory
    'export PATH="${PBS_O_PATH:-$PATH}"  # PBS gives /bin:/usr/bin only; this is where it was submitted',
)
GPU_REQUEST = ":ngpus={gpus}"  # unless the site says it otherwise


_LAST_WORDS_S = 30  # of an agent, after the grace of its program
_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9_.+-]")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:=,@%+\[\]^-]+")
_DEPENDENCY = re.compile(r"(?:after|afterok|afternotok|afterany|before|beforeok|beforenotok|beforeany|on):\S+")
_CHUNK_RESOURCES = re.compile(r"[A-Za-z_]\w*=[^\s:=+]+(?::[A-Za-z_]\w*=[^\s:=+]+)*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MAIL_POINTS = {"NONE": "n", "BEGIN": "b", "END": "e", "FAIL": "a", "ALL": "abe"}
_HATCH = "; what PBS itself has for it can be given by resources.extra_directives"


_SUBMITTED = re.compile(r"^(\d+(?:\[\])?\.\S+)\s*$", re.MULTILINE)
_ID = re.compile(r"(\d+)(?:\[(\d*)\])?(?:\.\S+)?")
_ATTRIBUTE = re.compile(r" {4}([A-Za-z_][\w.]*) = (.*)")
_LISTED = re.compile(r"(\d+)(?:\.\S*)?")
_COLUMNS = 11
_UNKNOWN = re.compile(r"^qstat: (?:Unknown Job Id (\S+)|(\S+) Job has finished, use -x)", re.MULTILINE)
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


_GONE = (0, 35, 55, 153)  # what qdel ends with: deleted, finished, finished job of an array, unknown
_CONFIGURATION = Path("/etc/pbs.conf")
Attributes = Mapping[str, str]


# What is asked for, as options of qsub and as a job script.


def render(draft: JobDraft) -> str:
    """Return the whole job script; ``qsub SCRIPT`` by hand asks for the same as `submit` does.

    On several nodes the script starts itself on each of them. Raises `ConfigError` for what PBS has no word for, and
    where a value cannot be written as a ``#PBS`` line.
    """
    request = draft.request
    lines = ["#!/bin/bash", f"# {draft.remark}", *(f"#PBS {directive}" for directive in directives(draft)), ""]
    lines += FIRST_LINES
    if log_place(draft.logs) == "/dev/null":
        log = f'{shlex.quote(str(draft.logs))}/"${{PBS_JOBID:-by-hand}}".OU'
        lines.append(f"exec >>{log} 2>&1  # not by -o: qsub takes ASCII paths only")
    if request.nodes > 1:
        lines += on_every_node(draft.script, request.cluster.launcher, request.grace_s + _LAST_WORDS_S)
    return "\n".join([*lines, *draft.start()]) + "\n"


def submit(draft: JobDraft) -> list[str]:
    """Return the recommended submission: no login shell stands between PBS and the script.

    Such a shell dies of signals meant for the job, and its exit status hides the job's. `#PBS` lines are not read in
    this form, which is why every option is said here again.
    """
    return ["qsub", *(word for option in options(draft) for word in option), "--", "/bin/bash", str(draft.script)]


def directives(draft: JobDraft) -> list[str]:
    """Return the options as `#PBS` lines want them; what the user wrote as a directive stays as it was written.

    Raises `ConfigError` for a value with a double quote or a line break.
    """
    own = [f"{flag} {_quoted(value)}" for flag, value in _own_options(draft)]
    return [*own, *(text for text in draft.request.extra_directives if text), f"-N {draft.name}"]


def options(draft: JobDraft) -> list[tuple[str, ...]]:
    """Return the options of qsub, each as its words, unquoted.

    Raises `ConfigError` where a directive of the user cannot be split into words.
    """
    extra = [tuple(words_of_directive(text)) for text in draft.request.extra_directives if text]
    # The name is last, where nothing can replace it: a job whose id got lost is found again by it.
    return [*_own_options(draft), *extra, ("-N", draft.name)]


def _own_options(draft: JobDraft) -> list[tuple[str, str]]:
    request, site, size = draft.request, draft.request.cluster.pbs, draft.array_size
    _refuse(request)
    place, dependency = _place(request), _depend(request.dependency)
    totals = () if site.has_select else _totals(request)
    limits = (*totals, *request.pbs.whole_job().items())
    parallelism = f"%{request.array_parallelism}" if request.array_parallelism else ""
    words: list[tuple[str, str | None]] = [
        # A reservation of PBS is a queue; its id may carry the server's name: R123.server.
        ("-q", request.reservation.partition(".")[0] if request.reservation else request.partition),
        *([] if request.account is None else [site.account_option(request.account)]),
        ("-l", f"select={_select(request)}" if site.has_select else None),
        *(("-l", f"{name}={value}") for name, value in limits),
        ("-l", None if place is None else f"place={place}"),
        ("-l", None if request.walltime_s is None else f"walltime={format_walltime(request.walltime_s)}"),
        ("-J", None if size is None else f"0-{size - 1}{parallelism}"),
        ("-W", None if dependency is None else f"depend={dependency}"),
        ("-W", "umask=022"),  # PBS's own is 077, for everything that the job creates
        ("-j", "oe"),
        ("-k", "oed"),  # written at once to the place of -o, not copied there at the end
        ("-o", log_place(draft.logs)),
        ("-m", _mail_points(request)),
        ("-M", request.mail_user),
        ("-r", "y"),
    ]
    return [(flag, value) for flag, value in words if value is not None]


def log_place(folder: Path) -> str:
    """Return what `-o` may be told: the folder, or nowhere if qsub would refuse its name (it takes ASCII only)."""
    text = f"{folder}/"
    return text if text.isascii() and text.isprintable() and not set(text) & set("\"'\\`$^") else "/dev/null"


def job_label(text: str) -> str:
    """Return *text* as the beginning of a name that every PBS takes: no blanks, ASCII, and a letter first.

    >>> job_label("50 epochs")
    'j50_epochs'
    """
    label = _NAME_CHARACTERS.sub("_", text)
    return label if label[:1].isalpha() else f"j{label}"


def _refuse(request: Request) -> None:
    """Raise `ConfigError` for what PBS, or the site, has no word for."""
    require(
        request.qos is None,
        f"resources.qos={request.qos}: PBS has queues and no quality of service; give resources.partition{_HATCH}",
    )
    require(
        request.exclude is None,
        f"resources.exclude={request.exclude}: PBS cannot be told which nodes to avoid{_HATCH}",
    )
    refuse_line_breaks(request.extra_directives)
    _check_site(request)


def _select(request: Request) -> str:
    site = request.cluster
    words = [] if (cores := _cores(request)) is None else [f"ncpus={cores}"]
    if request.gpus_per_node > 0:
        gpus = fill(GPU_REQUEST if site.gpu_request is None else site.gpu_request, request)
        words.append(gpus.removeprefix(":"))
    if request.mem_mb is not None:
        words.append(f"mem={request.mem_mb}mb")
    words += _of_every_chunk(request)
    if request.constraint is not None:
        require(
            _CHUNK_RESOURCES.fullmatch(request.constraint) is not None,
            f"resources.constraint={request.constraint}: PBS knows no features; write name=value for a resource that "
            "the nodes must have",
        )
        words.append(request.constraint)
    chunk = "".join(f":{word}" for word in words if word)
    if request.nodelist is None:
        return "+".join([f"{request.nodes}{chunk}", *request.pbs.chunks])
    hosts = request.nodelist.split(",")
    require(
        len(hosts) == request.nodes and all(_HOST.fullmatch(host) for host in hosts),
        f"resources.nodelist={request.nodelist}: PBS wants exactly one name for each of resources.nodes="
        f"{request.nodes}, separated by commas and without brackets",
    )
    return "+".join(f"1{chunk}:host={host}" for host in hosts)


def _place(request: Request) -> str | None:
    """Return what the run, or else its site, says of the nodes' place; sites of whole nodes see to that themselves.

    Without scatter, PBS puts several chunks on one node.
    """
    site, asked = request.cluster.pbs, request.pbs.place
    if asked is not None or not site.has_select:  # place stands beside select only
        return asked
    exclusive = ["excl"] if request.exclusive else []
    if site.place is None:
        return ":".join([*(["scatter"] if request.nodes > 1 else []), *exclusive]) or None
    others = [word for word in site.place.split(":") if word not in ("shared", "excl", "exclhost")]
    return ":".join([*others, *exclusive]) if exclusive else site.place


def _cores(request: Request) -> int | None:
    return request.cores_per_node if request.cluster.pbs.says_cores else None


def _of_every_chunk(request: Request) -> Iterator[str]:
    """Yield what else a chunk says: ranks and threads where they are asked for, and what the site wants."""
    site, wanted = request.cluster.pbs, request.pbs
    ranks = wanted.mpiprocs if wanted.mpiprocs is not None else request.ranks_per_node
    threads = wanted.ompthreads
    if site.says_ranks:
        ranks = ranks or max(1, request.gpus_per_node)
        threads = threads or max(1, (_cores(request) or ranks) // ranks)
    if ranks is not None:
        yield f"mpiprocs={ranks}"
    if threads is not None:
        yield f"ompthreads={threads}"
    for name, template in site.chunk.items():
        yield f"{name}={fill(template, request)}"


def _totals(request: Request) -> Iterator[tuple[str, str]]:
    """Yield what a site without select is asked for: sums over all nodes (NCI, Gadi)."""
    cores = _cores(request)
    if cores is not None:
        yield "ncpus", str(cores * request.nodes)
    if request.gpus_per_node:
        yield "ngpus", str(request.gpus_per_node * request.nodes)
    if request.mem_mb is not None:
        yield "mem", f"{request.mem_mb * request.nodes}mb"


def _check_site(request: Request) -> None:
    """Raise `ConfigError` for what the site has no word for."""
    site, cores = request.cluster, _cores(request)
    if not site.pbs.has_select:
        chunks = {
            "resources.constraint": request.constraint,
            "resources.nodelist": request.nodelist,
            "resources.pbs.chunks": request.pbs.chunks or None,
            "resources.pbs.mpiprocs": request.pbs.mpiprocs,
            "resources.pbs.ompthreads": request.pbs.ompthreads,
            "resources.pbs.place": request.pbs.place,
        }
        for name, value in chunks.items():
            require(
                value is None,
                f"{name}={value}: cluster={site.name} has no select, and is asked for totals of all nodes{_HATCH}",
            )
    if site.pbs.exact_cores and request.gpus_per_node and site.cores_per_gpu:
        wanted = site.cores_per_gpu * request.gpus_per_node
        require(
            cores == wanted,
            f"ncpus={cores}: cluster={site.name} wants {site.cores_per_gpu} cores for each GPU, {wanted} a node: "
            "set resources.cpus_per_task",
        )


def _depend(text: str | None) -> str | None:
    if text is None:
        return None
    require(
        all(_DEPENDENCY.fullmatch(part) for part in text.split(",")),
        f"resources.dependency={text}: PBS has after, afterok, afternotok, afterany and before*, each as WORD:ID[:ID]",
    )
    return text


def _mail_points(request: Request) -> str | None:
    if request.mail_type is None:
        return "n" if request.mail_user is None else None  # None: PBS's own rule, which is to mail when a job is killed
    words = request.mail_type.upper().split(",")
    known = ", ".join(_MAIL_POINTS)
    require(set(words) <= set(_MAIL_POINTS), f"resources.mail_type={request.mail_type}: PBS has {known}")
    return "".join(sorted({letter for word in words for letter in _MAIL_POINTS[word]} - {"n"})) or "n"


def _quoted(value: str) -> str:
    if _PLAIN_WORD.fullmatch(value):
        return value
    require(not set(value) & set('"\n\r\0'), f"{value!r} cannot be written as a #PBS line")
    return f'"{value}"'


def environ(variables: Mapping[str, str], request: Request) -> dict[str, str]:  # noqa: ARG001 - no job of PBS has it
    """Return what qsub sees: where PBS's programs are, and no login of a registry.

    A site's or a user's ``-V`` would make qsub hand that on to the job, and show it to everybody who asks for the job
    with qstat.
    """
    return asking_environ(without_login(variables), None)


def asking_environ(
    variables: Mapping[str, str],
    cluster: str | None = None,  # noqa: ARG001 - PBS has one
    *,
    configuration: Path = _CONFIGURATION,
) -> dict[str, str]:
    """Return what PBS's programs see; inside a job, which has no PATH to speak of, also where they are.

    That is the PATH of the submission (PBS_O_PATH), PBS_EXEC of /etc/pbs.conf, or /opt/pbs.
    """
    path = variables.get("PATH", "")
    if variables.get("PBS_JOBID") and shutil.which("qsub", path=path) is None:
        lines = configuration.read_text(encoding="utf-8").splitlines() if configuration.is_file() else []
        settings = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
        places = [f"{place}/bin" for place in (settings.get("PBS_EXEC"), "/opt/pbs") if place]
        path = os.pathsep.join(filter(None, [path, variables.get("PBS_O_PATH"), *places]))
    return {**variables, "PATH": path, "LC_ALL": "C"}


def rehearse(batch: Batch, script: str) -> Rehearsal:  # noqa: ARG001 - PBS has no submission for trial
    """Ask PBS for the queue of *batch*, where it names one: whether it is there, and takes jobs."""
    request = request_for_batch(batch)
    if (name := request.partition or request.reservation) is None:
        return Rehearsal()
    try:
        answer = call(["qstat", "-Q", "-f", "-F", "json", name], timeout_s=PATIENCE_S, environ=dict(os.environ))
    except HpcmlError as error:
        return Rehearsal(warnings=(f"PBS did not say whether it would take the job: {error}",))
    if "Unknown queue" in answer.stderr:
        what = "or a reservation that has expired" if request.reservation or name[:1] in "RSM" else "as PBS knows it"
        return Rehearsal(refused=f"resources.partition={name}: {PBS.words(answer)}: it is no queue, {what}")
    try:
        queue = json.loads(answer.stdout, strict=False)["Queue"][name.partition("@")[0]]
    except (ValueError, LookupError, TypeError):
        return Rehearsal(warnings=(f"PBS did not say whether it would take the job: {PBS.words(answer)}",))
    if queue.get("enabled") == "False":
        return Rehearsal(refused=f"resources.partition={name}: this queue takes no jobs now (enabled=False)")
    stopped = queue.get("started") == "False"
    return Rehearsal(warnings=(f"queue {name} is stopped: no job starts in it now (started=False)",) if stopped else ())


# What PBS prints.


def submitted(stdout: str) -> list[str]:
    """Return the ids that qsub printed; a site's wrapper may print lines around them."""
    return _SUBMITTED.findall(stdout)


def parse_jobs(stdout: str) -> dict[str, dict[str, str]]:
    """Read ``qstat -f -w``: one attribute a line, with line breaks inside values escaped, so that none can be forged.

    Attributes are as PBS prints them, resources and variables too, by their whole names (``Resource_List.walltime``),
    by the id of their job. Of an attribute that stands twice the first counts.
    """
    jobs: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    for line in stdout.split("\n"):  # not splitlines: a value may hold form feeds and the like
        if line.startswith("Job Id: "):
            current = jobs.setdefault(line.removeprefix("Job Id: ").strip(), {})
        elif current is not None and (match := _ATTRIBUTE.match(line)):
            current.setdefault(match[1], match[2])
    return jobs


def rows(stdout: str) -> list[JobRow]:
    """Return the jobs, and jobs of arrays, of ``qstat -f -w``."""
    jobs = parse_jobs(stdout).items()
    return [_row(match, job) for job_id, job in jobs if (match := _ID.fullmatch(job_id)) is not None]


def _row(match: re.Match[str], job: Attributes) -> JobRow:
    limit_s, used_s = (parse_time_s(job.get(f"{name}.walltime", "")) for name in ("Resource_List", "resources_used"))
    return JobRow(
        number=match[1],
        index=int(match[2]) if match[2] else None,
        name=job.get("Job_Name", ""),
        known=known_of(job),
        limit_s=limit_s,
        # it may be some minutes too much, since what was used is told that late (mom's max_check_poll)
        left_s=None if limit_s is None or used_s is None else limit_s - used_s,
    )


def list_rows(stdout: str) -> list[JobRow]:
    """Return the plain jobs of ``qstat -u USER`` that live; lines that are none, or cannot be read, are left out.

    Job ID, Username, Queue, Jobname, SessID, NDS, TSK, Memory, Time, S, Time: a name has no blanks, and may be cut.
    """
    found: list[JobRow] = []
    for line in stdout.split("\n"):
        words = line.split()
        match = _LISTED.fullmatch(words[0]) if len(words) == _COLUMNS else None
        if match is not None and (state := _state_of(words[-2])) is not None:
            known = Known(state=state, raw=words[-2])
            found.append(JobRow(number=match[1], name=words[3].rstrip("*"), known=known, is_brief=True))
    return found


def _state_of(letter: str) -> State | None:
    """Return the state of a job that has not ended."""
    return State.PENDING if letter in _WAITING else State.RUNNING if letter in _RUNNING else None


def found(answer: Answer, name: str) -> Mapping[str, str] | None:
    """Return the last of the ids that qselect printed; a site's wrapper may end with status 0 whatever happens."""
    ids = {int(match[1]): word for word in answer.stdout.split() if (match := _ID.fullmatch(word))}
    if answer.returncode or (not ids and answer.stdout.strip()):
        return None
    return {name: ids[max(ids)]} if ids else {}


def known_of(job: Attributes) -> Known | None:
    """Return what a job's attributes mean, or None where they hold no state that PBS has.

    COMPLETED means only that the job's process ended with 0, which a deleted job can do as well: the run's own journal
    decides where there is one. *job* are the attributes that `parse_jobs` read of one job. The reason is one line for
    people, or None; the exit code is PBS's Exit_status as text, and None where the job never ran. A start that is
    expected is in ISO 8601, in the zone of the server.

    >>> known_of({"job_state": "F", "Exit_status": "271", "run_count": "1"}).reason
    'ended by signal 15'
    """
    letter = job.get("job_state", "")
    if letter in _WAITING:
        why, start = _why_waiting(job), _expected_start(job)
        return Known(state=State.PENDING, raw=letter, reason=why, expected_start=start, is_stuck=_is_stuck(job))
    if letter in _RUNNING:
        return Known(state=State.RUNNING, raw=letter, reason=_why_not_running(job), is_ending=letter == "E")
    if letter not in _ENDED:
        return None
    state, reason = _end(job)
    if not _ran(job):
        return Known(state=state, raw=letter, reason=reason)
    code = job.get("Exit_status")
    was_killed = code in _KILLED
    return Known(state=state, raw=letter, exit_code=code, reason=reason, used=_used(job), was_killed=was_killed)


def _used(job: Attributes) -> JobUsage:
    memory = _KILOBYTES.fullmatch(job.get("resources_used.mem", ""))
    return JobUsage(
        wall_s=parse_time_s(job.get("resources_used.walltime", "")),
        cpu_s=parse_time_s(job.get("resources_used.cput", "")),
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


def _why_waiting(job: Attributes) -> str | None:
    comment = job.get("comment")
    if comment is not None and comment.startswith("Job Array Began"):
        comment = None  # the array's own, which its jobs show until they run
    holds = job.get("Hold_Types", "n")
    if job["job_state"] == "H" and "s" in holds and "run_count" in job:
        # After 21 tries PBS gives up. Measured of -o into a folder that the node lacks; no output can tell of it.
        return f"{comment or 'held after failed attempts to run'}: does the node see the folder for its log?"
    if "s" in holds and "depend" in job:
        return f"{comment or 'waits for other jobs'} (depend={job['depend']})"
    # Not by the state: jobs of an array that is held are in state Q, and tell of it here alone
    if released_by := next((words for letter, words in _RELEASED_BY.items() if letter in holds), None):
        return f"{comment or 'held'}: {released_by}"
    if comment is None and job["job_state"] == "W" and "Execution_Time" in job:
        return f"waits until {job['Execution_Time']}"
    return comment


def _is_stuck(job: Attributes) -> bool:
    """Tell whether a job that waits is held, but for others on which it depends, or can never run as things are."""
    holds = job.get("Hold_Types", "n")
    is_held = "o" in holds or "u" in holds or ("s" in holds and "depend" not in job)
    return is_held or job.get("comment", "").startswith("Can Never Run")


def _ran(job: Attributes) -> bool:
    # A subjob that was deleted while it waited shows its array's Exit_status and invented times.
    return "run_count" in job or "exec_host" in job


def _end(job: Attributes) -> tuple[State, str | None]:
    status = job.get("Exit_status")
    if status is None or not _ran(job):
        # "s": held by the system. PBS deletes a job whose dependency cannot come true any more.
        if "depend" in job and "s" in job.get("Hold_Types", ""):
            return State.CANCELLED, f"never ran: its dependency cannot be met ({job['depend']})"
        return State.CANCELLED, "deleted before it ran"
    if job.get("substate") == "91":  # whatever Exit_status: 0 and the script's own code were seen
        return State.CANCELLED, job.get("comment")
    try:
        code = int(status)
    except ValueError:
        return State.FAILED, f"Exit_status {status}"
    return _end_by_code(code, job.get("comment", ""))


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


def _why_not_running(job: Attributes) -> str | None:
    return {"S": "suspended", "U": "suspended: the workstation is in use", "E": "ending"}.get(job["job_state"])


def _expected_start(job: Attributes) -> str | None:
    text = job.get("estimated.start_time")
    if text is None:
        return None
    try:
        return datetime.strptime(text, "%a %b %d %H:%M:%S %Y").isoformat()  # noqa: DTZ007 - PBS names no zone
    except ValueError:
        return None


def refusals(answer: Answer) -> list[str]:
    """Return why a job was not deleted; that it has ended, or is forgotten, is no refusal."""
    return [] if answer.returncode in _GONE else [PBS.words(answer)]


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


# Words of PBS's refusals (pbs_messages.c), and what to set; the first that is in them counts
_ADVICE = {
    "Array job exceeds": "set cluster.max_array_size to what the server and the queue allow: larger sweeps are split",
    "limit on resource": "you may have no more of it asked for at once: wait, submit fewer, or ask for less",
    "would exceed": FEWER_JOBS,
    "Maximum number of jobs": FEWER_JOBS,
    "violates queue": "set resources.walltime, nodes and gpus_per_node to what the queue allows (qstat -Q -f), or "
    "resources.partition to another",
    "Unknown queue": "set resources.partition",
    "Unauthorized Request": "the queue may be closed to you: resources.partition names another",
}


PBS = Scheduler(
    name="pbs",
    title="PBS",
    programs=("qsub", "qstat", "qdel", "qselect"),
    gpu_request=GPU_REQUEST,
    rehearse=rehearse,
    job=re.compile(r"\d+(\[\d*\])?(\.[\w.-]+)?"),  # 4711.server and 4711[].server (man qsub)
    waits_for_elements=False,
    render=render,
    submit=submit,
    by_hand="qsub",
    label=job_label,
    environ=environ,
    submitted=submitted,
    refused=re.compile(r"^qsub: .*\w", re.MULTILINE),
    unheard=re.compile(
        "^qsub: .*(Connection refused|cannot connect to server|Couldn't connect to cluster)", re.MULTILINE
    ),
    silent=(
        *("Connection refused", "cannot connect to server", "Couldn't connect to cluster", "pbs_iff", "reserved port"),
        *("End of File", "errno=15010", "errno=15007"),
    ),
    advice=_ADVICE,
    job_id=_ID,
    # -x: without it, finished jobs vanish from the answer (man qstat). Each id costs a connection from a reserved port,
    # and hundreds at once stall qstat for a minute
    queue=StatusCommand(
        argv=lambda ids: ["qstat", "-x", *(["-t"] if "[" in ids[0] else []), "-f", "-w", *ids],
        rows=rows,
        unknown=_UNKNOWN,
        per_call=25,
        most=250,
    ),
    overview=StatusCommand(argv=lambda _: ["qstat", "-u", _user()], rows=list_rows, needs_success=True, per_call=10**9),
    # The server itself answers: none means that no such job waits, runs, or has ended within the history
    searches=[NameSearch(argv=lambda name, *_: ["qselect", "-x", "-N", name], found=found)],
    # such a site shows nothing at all with -x, running jobs included, and exits with 0
    optional=("-x", "not configured to maintain job history"),
    asking_environ=asking_environ,
    # One id for each call: a list that ends in an unknown id can kill the server. SIGTERM comes, SIGKILL ten seconds
    # later, and may be forgotten: one that still runs after some fifteen seconds has to be told again
    cancel=lambda ids: ["qdel", *ids],
    cancels_at_once=1,
    refusals=refusals,
    own_job=lambda variables: variables.get("PBS_JOBID"),
    own_variable="PBS_JOBID",
    own_question=lambda job: ["qstat", "-f", "-w", job],
)
