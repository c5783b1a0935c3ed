"""The double's jobs: what PBS remembers of them, where they fit, and how qstat writes them down."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import dataclass, field

SERVER = "pbs01"
OWNER = "hpcuser@localhost"
NODES = {"pbs01": {"ncpus": 32, "ngpus": 4, "mem": 256 << 20}, "pbs02": {"ncpus": 32, "ngpus": 4, "mem": 256 << 20}}
UNITS = {"b": 0, "kb": 1, "mb": 1 << 10, "gb": 1 << 20, "tb": 1 << 30}


@dataclass
class Chunk:
    """One chunk of a select statement; memory in kB."""

    need: dict[str, int]
    host: str | None = None
    mpiprocs: int = 1


@dataclass
class Spec:
    """What a plain job, an array or a subjob was submitted with."""

    name: str
    queue: str
    select: str
    chunks: list[Chunk]
    place: str
    walltime_s: int | None
    submit_arguments: str
    argv: list[str] | None  # the form with --
    script: str | None
    environ: dict[str, str]
    home: str
    cwd: str
    account: str | None = None
    join: str = "n"
    keep: str = "n"
    output: str | None = None
    error: str | None = None
    mail_points: str = "a"
    rerunable: bool = True
    umask: int = 0o077
    depend: str | None = None
    hold: str = "n"
    parallelism: int | None = None
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class Job:
    """One line of qstat. Subjobs of an array share its spec."""

    number: int
    spec: Spec
    parent: Job | None = None
    index: int | None = None
    state: str = "Q"
    substate: int = 10
    ctime: float = field(default_factory=time.time)
    stime: float | None = None
    obittime: float | None = None
    ended_at: float | None = None
    exit_status: int | None = None
    comment: str | None = None
    run_count: int = 0
    placed: list[tuple[str, Chunk]] = field(default_factory=list)
    subjobs: dict[int, Job] | None = None  # of an array
    process: subprocess.Popen[bytes] | None = None
    sessions: list[int] = field(default_factory=list)
    output_file: str | None = None
    deleted: bool = False
    overran: int | None = None
    kill_at: float | None = None
    rerun: bool = False
    own_record: bool = True  # a subjob without one shows its array's
    expired: int = 0
    running: int = 0
    next_index: int = 0

    @property
    def id(self) -> str:
        if self.subjobs is not None:
            return f"{self.number}[].{SERVER}"
        return f"{self.number}.{SERVER}" if self.index is None else f"{self.number}[{self.index}].{SERVER}"

    @property
    def ended(self) -> bool:
        return self.state in "FX"

    @property
    def exec_vnode(self) -> str:
        return "+".join(
            f"({node}:" + ":".join(f"{k}={v}{'kb' if k == 'mem' else ''}" for k, v in chunk.need.items()) + ")"
            for node, chunk in self.placed
        )


def clock(at: float | None) -> str:
    return time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(at))


def comment_clock() -> str:
    return time.strftime("%a %b %d at %H:%M")


def duration(text: str) -> int | None:
    """HH:MM:SS, MM:SS or seconds; PBS takes no days."""
    if not re.fullmatch(r"\d+(:\d+){0,2}", text):
        return None
    total = 0
    for part in text.split(":"):
        total = total * 60 + int(part)
    return total


def memory_kb(text: str) -> int | None:
    match = re.fullmatch(r"(\d+)([kmgt]?b)?", text)
    if match is None:
        return None
    return int(match[1]) * UNITS[match[2] or "b"] or int(match[1]) >> 10


def totals(spec: Spec) -> dict[str, int]:
    found: dict[str, int] = {}
    for chunk in spec.chunks:
        for name, count in chunk.need.items():
            found[name] = found.get(name, 0) + count
    return found


def attributes(job: Job) -> dict[str, object]:
    """Return the attributes in the order of PBS; values are str, int or a dict of such."""
    return {**_who(job), **_files(job), **_resources(job), **_history(job)}


def _started(job: Job) -> bool:
    return job.run_count > 0 and job.own_record


def _who(job: Job) -> dict[str, object]:
    said: dict[str, object] = {"Job_Name": job.spec.name, "Job_Owner": OWNER}
    if _started(job):
        said["resources_used"] = {
            "cpupercent": 0, "cput": "00:00:00", "mem": "0kb", "ncpus": totals(job.spec).get("ncpus", 1),
            "vmem": "0kb",
            "walltime": time.strftime("%H:%M:%S", time.gmtime((job.obittime or time.time()) - (job.stime or 0))),
        }  # fmt: skip
    said |= {"job_state": job.state, "queue": job.spec.queue, "server": SERVER}
    if job.spec.account:
        said["Account_Name"] = job.spec.account
    if not (job.parent and _started(job)):
        said["Checkpoint"] = "u"
    said["ctime"] = clock(job.ctime)
    if job.spec.depend:
        said["depend"] = job.spec.depend
    return said


def _files(job: Job) -> dict[str, object]:
    spec, started = job.spec, _started(job)
    suffix = str(job.number)
    if job.parent or job.subjobs is not None:
        suffix += f".{job.index}" if job.parent and started else ".^array_index^"
    said: dict[str, object] = {"Error_Path": f"{SERVER}:{spec.error or f'{spec.cwd}/{spec.name}.e{suffix}'}"}
    if job.placed and started:
        hosts = [f"{node}/0" + (f"*{c.need['ncpus']}" if c.need.get("ncpus", 1) > 1 else "") for node, c in job.placed]
        said |= {"exec_host": "+".join(hosts), "exec_vnode": job.exec_vnode}
    if not (job.parent and started):
        said["Hold_Types"] = spec.hold
    said |= {"Join_Path": spec.join, "Keep_Files": spec.keep, "Mail_Points": spec.mail_points}
    said["mtime"] = clock(job.ended_at or job.stime or job.ctime)
    said["Output_Path"] = f"{SERVER}:{spec.output or f'{spec.cwd}/{spec.name}.o{suffix}'}"
    return said


def _resources(job: Job) -> dict[str, object]:
    spec = job.spec
    said: dict[str, object] = {"Priority": 0, "qtime": clock(job.ctime), "Rerunable": str(spec.rerunable)}
    asked: dict[str, object] = {name: f"{count}kb" if name == "mem" else count for name, count in totals(spec).items()}
    asked |= {"nodect": len(spec.chunks), "place": spec.place, "select": spec.select}
    if spec.walltime_s is not None:
        hours, rest = divmod(spec.walltime_s, 3600)
        asked["walltime"] = f"{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"
    return {**said, "Resource_List": asked}


def _history(job: Job) -> dict[str, object]:
    parent, started = job.parent, _started(job)
    comment = job.comment or (parent.comment if parent and not started else None)
    said: dict[str, object | None] = {
        "stime": clock(job.stime) if job.stime else None,
        "obittime": clock(job.obittime) if job.obittime else None,
        "session_id": job.process.pid if job.process and not job.ended else None,
        "jobdir": job.spec.home if started else None,
        "substate": job.substate,
        "Variable_List": dict(job.spec.variables),
        "comment": comment,
        "etime": None if job.substate in (20, 22) else clock(job.ctime),
        "run_count": job.run_count if started else None,
        "Stageout_status": None if job.exit_status is None else 1,
        "Exit_status": job.exit_status,
        "array_id": parent.id if parent and started else None,
        "array_index": job.index if parent and started else None,
        "Submit_arguments": None if parent and started else job.spec.submit_arguments,
        **_array(job),
        "history_timestamp": int(job.ended_at or 0) if job.state == "F" else None,
        "project": "_pbs_project_default",
        "Submit_Host": "localhost",
        "max_run_subjobs": job.spec.parallelism if job.subjobs is not None else None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _array(job: Job) -> dict[str, object]:
    if job.subjobs is None:
        return {}
    total = len(job.subjobs)
    queued = total - job.expired - job.running
    return {
        "array": "True",
        "array_state_count": f"Queued:{queued} Running:{job.running} Exiting:0 Expired:{job.expired}",
        "array_indices_submitted": f"0-{total - 1}",
        "array_indices_remaining": f"{job.next_index}-{total - 1}" if job.next_index < total else "-",
    }


def as_text(jobs: list[Job], *, wide: bool) -> str:
    """Write `qstat -f`: with -w one attribute a line, without it broken at 80 columns and line breaks left raw."""
    lines = []
    for job in jobs:
        lines.append(f"Job Id: {job.id}")
        for name, value in attributes(job).items():
            if name == "Variable_List":
                pairs = value.items() if isinstance(value, dict) else ()
                value = ",".join(f"{k}={v}" for k, v in pairs)  # noqa: PLW2901
            parts = {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
            for key, part in parts.items():
                text = f"    {key} = {part}"
                if wide:
                    lines.append(text.replace("\n", "\\n"))
                else:
                    lines.append(text[:79])
                    lines += ["\t" + text[at : at + 71] for at in range(79, len(text), 71)]
        lines.append("")
    return "".join(f"{line}\n" for line in lines)


def as_json(jobs: list[Job], *, how: str) -> str:
    """Write `qstat -f -F json`; *how*: first (git master), all (a release), invalid (a release, a job called nan)."""
    whole: dict[str, object] = {"timestamp": int(time.time()), "pbs_version": "23.06.06", "pbs_server": SERVER}
    if jobs:
        shown = jobs if how != "first" or jobs[0].subjobs is not None or jobs[0].parent else jobs[:1]
        whole["Jobs"] = {job.id: attributes(job) for job in shown}
    text = json.dumps(whole, indent="\t", ensure_ascii=False).replace('": ', '":\t') + "\n"
    return text.replace(f'"{jobs[0].spec.name}"', "nan") if how == "invalid" and jobs else text


def as_table(jobs: list[Job]) -> str:
    if not jobs:
        return ""
    lines = [
        "Job id            Name             User              Time Use S Queue",
        "----------------  ---------------- ----------------  -------- - -----",
    ]
    for job in jobs:
        used = "00:00:00" if job.run_count and job.substate != 41 else "0"
        lines.append(
            f"{job.id:<17.17} {job.spec.name:<16.16} hpcuser          {used:>9} {job.state} {job.spec.queue:<16}"
        )
    return "".join(f"{line}\n" for line in lines)


def as_list(jobs: list[Job]) -> str:
    """Return what ``qstat -u USER`` prints: other columns, and words that are too long end in a star."""
    if not jobs:
        return ""
    lines = [
        "",
        f"{SERVER}: ",
        "                                                            Req'd  Req'd   Elap",
        "Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time",
        "--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----",
    ]
    for job in jobs:
        asked, limit = totals(job.spec), job.spec.walltime_s
        memory = f"{asked['mem'] >> 20}gb" if "mem" in asked else "--"
        time_asked = "--" if limit is None else f"{limit // 3600:02d}:{limit // 60 % 60:02d}"
        session = str(job.process.pid) if job.process and not job.ended else "--"
        lines.append(
            f"{_cut(job.id, 15)} {'hpcuser':<8} {_cut(job.spec.queue, 8)} {_cut(job.spec.name, 10)} "
            f"{session:>6} {len(job.spec.chunks):>3} {asked.get('ncpus', 1):>3} {memory:>6} {time_asked:>5} "
            f"{job.state} {'00:00' if job.state == 'R' else ' -- '}"
        )
    return "".join(f"{line}\n" for line in lines)


def _cut(text: str, width: int) -> str:
    return f"{text:<{width}}" if len(text) <= width else f"{text[: width - 1]}*"


def why_never(spec: Spec) -> str | None:
    """Return PBS's comment where the request can never be met by the two nodes together."""
    if "scatter" in spec.place and len(spec.chunks) > len(NODES):
        return "Can Never Run: Not enough total nodes available"
    for chunk in spec.chunks:
        if chunk.host and chunk.host not in NODES:
            return f"Can Never Run: Insufficient amount of resource: host ({chunk.host} != {','.join(NODES)})"
    for name, count in totals(spec).items():
        total = sum(node[name] for node in NODES.values())
        if count > total:
            unit = 1 << 20 if name == "mem" else 1
            tail = "gb" if name == "mem" else ""
            have = f"{total // unit}{tail}"
            return (
                f"Can Never Run: Insufficient amount of resource: {name} (R: {count // unit}{tail} A: {have} T: {have})"
            )
    return None


def fit(spec: Spec, free: dict[str, dict[str, int]], used: dict[str, int]) -> list[tuple[str, Chunk]] | str:
    """Return where the chunks go, or the resource that is lacking; *used* counts the jobs of each node."""
    left = {node: dict(room) for node, room in free.items()}
    placed: list[tuple[str, Chunk]] = []
    lacking = "ncpus"
    for chunk in spec.chunks:
        for node, room in left.items():
            lacks = next((name for name, count in chunk.need.items() if room[name] < count), None)
            if lacks:
                lacking = lacks
            taken = "scatter" in spec.place and node in [name for name, _ in placed]
            alone = "excl" in spec.place and used.get(node, 0) > 0
            if not lacks and not taken and not alone and chunk.host in (None, node):
                for name, count in chunk.need.items():
                    room[name] -= count
                placed.append((node, chunk))
                break
        else:
            return lacking
    return placed
