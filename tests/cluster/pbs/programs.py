"""What each of PBS's programs answers: the texts, exit codes and formats of a real server."""

from __future__ import annotations

import getopt
import json
import re
import signal
from collections.abc import Callable
from typing import Any

from tests.cluster.pbs import mom
from tests.cluster.pbs.faults import Faults
from tests.cluster.pbs.model import NODES, SERVER, Job, as_json, as_list, as_table, as_text, duration
from tests.cluster.pbs.scheduler import Scheduler
from tests.cluster.pbs.submission import Refused, read

Answer = dict[str, Any]
QDEL_USAGE = "usage:\n\tqdel [-W force|suppress_email=X] [-x] job_identifier...\n\tqdel --version\n"
NO_HISTORY = "PBS is not configured to maintain job history"


def said(rc: int = 0, out: str = "", err: str = "", **more: object) -> Answer:
    return {"rc": rc, "out": out, "err": err, **more}


def empty_json() -> str:
    return as_json([], how="first")


def run(question: Answer, scheduler: Scheduler, faults: Faults) -> Answer:
    program: Callable[[Answer, Scheduler, Faults], Answer] = PROGRAMS[question["program"]]
    return program(question, scheduler, faults)


def look(text: str, scheduler: Scheduler, faults: Faults, *, history: bool) -> Job | str:
    job = scheduler.shown(text, history=history)
    if not isinstance(job, str) and job.number in faults.forgotten:
        return "unknown"
    if not faults.history and (job == "finished" or (not isinstance(job, str) and job.state == "F")):
        return "unknown"
    return job


def full(text: str) -> str:
    return text if "." in text else f"{text}.{SERVER}"


def qsub(question: Answer, scheduler: Scheduler, faults: Faults) -> Answer:
    if "--version" in question["argv"]:
        return said(out="pbs_version = 23.06.06\n")
    try:
        spec, size = read(
            question["argv"],
            cwd=question["cwd"],
            environ=question["env"],
            stdin=question.get("stdin"),
            array_limit=faults.array_limit,
        )
    except LookupError:
        return said(need="stdin")
    except Refused as refusal:
        return said(refusal.code, err=refusal.text)
    hook = faults.refusal
    if faults.account_wanted and not spec.account:
        hook = "Project (-A) is mandatory.\nSee https://example.invalid/docs"
    if hook:
        return said(32, err=f"qsub: {hook}\n")
    if faults.queue_disabled:
        return said(173, err="qsub: Queue is not enabled\n")
    job = scheduler.add(spec, size)
    return said(out=faults.banner if faults.mute else f"{faults.banner}{job.id}\n")


def qstat(question: Answer, scheduler: Scheduler, faults: Faults) -> Answer:
    if "--version" in question["argv"]:
        return said(out="pbs_version = 23.06.06\n")
    pairs, ids = getopt.gnu_getopt(question["argv"], "afF:iJpQrsStTu:wxHB")
    flags = dict(pairs)
    as_json_wanted = flags.get("-F") == "json"
    if "-B" in flags and as_json_wanted:
        server = {"Server": {"pbs01": {"server_state": "Active", "max_array_size": faults.array_limit}}}
        return said(out=json.dumps(json.loads(empty_json()) | server, indent="\t"))
    if "-B" in flags:
        return said(out=SERVER_LINE)
    if "-Q" in flags and as_json_wanted:
        return _queues(ids, faults)
    if "-x" in flags and not faults.history:
        err = "".join(f"qstat: {NO_HISTORY} {text}\n" for text in map(full, ids)) or f"qstat: {NO_HISTORY} \n"
        return said(out=empty_json() if as_json_wanted else "", err=err)
    found, rc, err = _look_all(ids, scheduler, faults, flags)
    if "-u" in flags:
        # With -f too, a real server prints nothing and exits with 0
        out = "" if "-f" in flags else as_list(found)
    elif "-f" in flags:
        out = as_json(found, how=faults.json) if as_json_wanted else as_text(found, wide="-w" in flags)
    else:
        out = as_table(found)
    return said(rc, out, err)


def _queues(names: list[str], faults: Faults) -> Answer:
    """Answer ``qstat -Q -f -F json NAME``, as recorded from PBS 23.06."""
    unknown = [name for name in names if name in faults.no_queues]
    shown = {
        name: {
            "queue_type": "Execution",
            "total_jobs": 0,
            "state_count": "Transit:0 Queued:0 Held:0 Waiting:0 Running:0 Exiting:0 Begun:0 ",
            **({"resources_max": faults.queue_limits} if faults.queue_limits else {}),
            **({"max_array_size": faults.queue_array_limit} if faults.queue_array_limit else {}),
            "enabled": str(not faults.queue_disabled),
            "started": str(not faults.queue_stopped),
        }
        for name in names
        if name not in unknown
    }
    whole = json.loads(empty_json()) | ({"Queue": shown} if shown else {})
    err = "".join(f"qstat: Unknown queue destination {name}\n" for name in unknown)
    return said(170 if unknown else 0, json.dumps(whole, indent="\t"), err)


def _look_all(
    ids: list[str], scheduler: Scheduler, faults: Faults, flags: dict[str, str]
) -> tuple[list[Job], int, str]:
    history = "-x" in flags or "-H" in flags
    rc, err, found = 0, "", []
    texts = ids or [job.id for job in scheduler.jobs.values() if history or not job.ended]
    for text in texts:
        job = look(text, scheduler, faults, history=history)
        if job == "malformed" and not text[:1].isdigit():
            rc, err = 170, err + f"qstat: Unknown queue destination {text}\n"
        elif job == "malformed":
            rc, err = 1, err + f"qstat: illegally formed job identifier: {text}\n"
        elif job == "unknown":
            rc, err = 153, err + f"qstat: Unknown Job Id {full(text)}\n"
        elif job == "finished":
            rc, err = (
                35,
                err + f"qstat: {full(text)} Job has finished, use -x or -H to obtain historical job information\n",
            )
        elif not isinstance(job, str):
            found.append(job)
            if "-t" in flags and job.subjobs is not None:
                found += job.subjobs.values()
    return found, rc, err


def qdel(question: Answer, scheduler: Scheduler, faults: Faults) -> Answer:
    try:
        pairs, ids = getopt.gnu_getopt(question["argv"], "W:x")
    except getopt.GetoptError:
        return said(2, err=QDEL_USAGE)
    if not re.fullmatch(r"force|suppress_email=.*|\d+|", dict(pairs).get("-W", "")):
        return said(2, err=f"qdel: illegal -W value\n{QDEL_USAGE}")
    if not ids:
        return said(2, err=QDEL_USAGE)
    rc, err = 0, ""
    for text in ids:
        job = look(text, scheduler, faults, history=True)
        if job == "malformed":
            rc, err = 1, err + f"qdel: illegally formed job identifier: {text}\n"
        elif isinstance(job, str):
            rc, err = 153, err + f"qdel: Unknown Job Id {full(text)}\n"
        elif job.state == "X":
            rc, err = 55, err + f"qdel: Request invalid for finished array subjob {full(text)}\n"
        elif job.state == "F":
            rc, err = 35, err + f"qdel: Job has finished {full(text)}\n"
        elif not faults.qdel_ignored:
            scheduler.delete(job)
    return said(rc, err=err)


def _running(program: str, text: str, scheduler: Scheduler, faults: Faults) -> Job | Answer:
    job = look(text, scheduler, faults, history=True)
    if isinstance(job, str):
        return said(153, err=f"{program}: Unknown Job Id {full(text)}\n")
    if job.ended:
        return said(35, err=f"{program}: Job has finished\n")
    return job


def qsig(question: Answer, scheduler: Scheduler, faults: Faults) -> Answer:
    pairs, ids = getopt.gnu_getopt(question["argv"], "s:")
    name = dict(pairs).get("-s", "SIGTERM")
    for text in ids:
        job = _running("qsig", text, scheduler, faults)
        if isinstance(job, dict):
            return job
        if job.state != "R":
            return said(168, err=f"qsig: Request invalid for state of job {full(text)}\n")
        if name in ("suspend", "resume"):
            return said(159, err=f"qsig: Unauthorized Request  {full(text)}\n")
        known = {
            **{one.name: one.value for one in signal.Signals},
            **{one.name[3:]: one.value for one in signal.Signals},
        }
        number = int(name) if name.isdigit() else known.get(name)
        if number is None:
            return said(165, err=f"qsig: Unknown/illegal signal name {full(text)}\n")
        scheduler.signal(job, number)
    return said()


def qalter(question: Answer, scheduler: Scheduler, faults: Faults) -> Answer:
    pairs, ids = getopt.gnu_getopt(question["argv"], "A:l:N:W:q:h:")
    for text in ids:
        job = look(text, scheduler, faults, history=False)
        if isinstance(job, str):
            return said(153, err=f"qalter: Unknown Job Id {full(text)}\n")
        for flag, value in pairs:
            name, _, number = value.partition("=")
            if flag == "-N":
                job.spec.name = value
            elif flag == "-W" and name == "max_run_subjobs":
                job.spec.parallelism = int(number)
            elif flag == "-l" and name == "walltime":
                if job.state == "R" and not faults.operator:
                    return said(159, err=f"qalter: Unauthorized Request  {full(text)}\n")
                job.spec.walltime_s = duration(number)
    return said()


def qrerun(question: Answer, scheduler: Scheduler, faults: Faults) -> Answer:
    for text in question["argv"]:
        job = _running("qrerun", text, scheduler, faults)
        if isinstance(job, dict):
            return job
        if not faults.operator:
            return said(159, err=f"qrerun: Unauthorized Request  {full(text)}\n")
        scheduler.rerun(job)
    return said()


def qselect(question: Answer, scheduler: Scheduler, faults: Faults) -> Answer:
    pairs, _ = getopt.gnu_getopt(question["argv"], "u:N:s:q:x")
    flags = dict(pairs)
    if "-x" in flags and not faults.history:
        return said(err=f"qselect: {NO_HISTORY} \n")
    lines = []
    for job in scheduler.jobs.values():
        if job.number in faults.forgotten or (job.ended and "-x" not in flags):
            continue
        if job.spec.name != flags.get("-N", job.spec.name) or job.state not in flags.get("-s", job.state):
            continue
        lines.append(f"{job.id}\n")
    return said(out="".join(lines))


def pbsnodes(question: Answer, scheduler: Scheduler, faults: Faults) -> Answer:  # noqa: ARG001
    nodes: dict[str, object] = {}
    for name, room in NODES.items():
        has = {"arch": "linux", "host": name, "mem": f"{room['mem'] >> 20}gb", "ncpus": room["ncpus"]}
        has |= {"ngpus": room["ngpus"], "vnode": name}
        jobs = sum(any(node == name for node, _ in job.placed) for job in scheduler.live.values())
        nodes[name] = {
            "Mom": name, "ntype": "PBS", "state": "free", "pcpus": 2, "resources_available": has,
            "resources_assigned": {"ncpus": jobs}, "resv_enable": "True", "sharing": "default_shared", "license": "l",
        }  # fmt: skip
    if "json" in question["argv"]:
        whole = {"timestamp": 0, "pbs_version": "23.06.06", "pbs_server": SERVER, "nodes": nodes}
        return said(out=json.dumps(whole, indent="\t").replace('": ', '":\t') + "\n")
    lines = []
    for name, node in nodes.items():
        lines.append(name)
        assert isinstance(node, dict)
        for key, value in node.items():
            parts = {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
            lines += [f"     {k} = {v}" for k, v in parts.items()]
        lines.append("")
    return said(out="".join(f"{line}\n" for line in lines))


def _task(job: Job, scheduler: Scheduler, host: str, argv: list[str], number: int) -> Answer:
    environ = mom.environment(job, scheduler.state)
    rank = list(dict.fromkeys(node for node, _ in job.placed)).index(host)
    environ |= {"PBS_NODENUM": str(rank), "PBS_TASKNUM": f"{rank or ''}{number:07d}"}
    for name in ("SHELL", "USER", "LOGNAME", *(() if rank else ("PBS_NODEFILE",))):
        environ.pop(name, None)
    return {"job": job.id, "argv": argv, "env": environ, "cwd": job.spec.home}


def pbs_tmrsh(question: Answer, scheduler: Scheduler, faults: Faults) -> Answer:  # noqa: ARG001
    host, *argv = question["argv"]
    job = scheduler.shown(question["env"].get("PBS_JOBID", ""), history=True)
    if isinstance(job, str):
        return said(1, err="pbs_tmrsh: not a PBS job\n")
    if host not in [node for node, _ in job.placed]:
        return said(1, err=f"pbs_tmrsh: host {host} is not in the job\n")
    return said(tasks=[_task(job, scheduler, host, argv, 2)])


def pbsdsh(question: Answer, scheduler: Scheduler, faults: Faults) -> Answer:  # noqa: ARG001
    """One task for each line of the node file, or for those of one host; the exit code is 0 whatever they return."""
    pairs, argv = getopt.getopt(question["argv"], "n:h:osv")
    wanted = dict(pairs).get("-h")
    job = scheduler.shown(question["env"].get("PBS_JOBID", ""), history=True)
    if isinstance(job, str):
        return said(1, err="pbsdsh: not a PBS job\n")
    hosts = [node for node, chunk in job.placed for _ in range(chunk.mpiprocs)]
    if wanted is not None and wanted not in hosts:
        return said(1, err=f"pbsdsh: host {wanted} is not in the job\n")
    hosts = [host for host in hosts if wanted in (None, host)]
    return said(tasks=[_task(job, scheduler, host, argv, number) for number, host in enumerate(hosts, 2)])


SERVER_LINE = (
    "Server             Max   Tot   Que   Run   Hld   Wat   Trn   Ext Status\n"
    "---------------- ----- ----- ----- ----- ----- ----- ----- ----- -----------\n"
    "pbs01                0     0     0     0     0     0     0     0 Active    \n"
)
PROGRAMS = {
    one.__name__: one for one in (qsub, qstat, qdel, qsig, qalter, qrerun, qselect, pbsnodes, pbs_tmrsh, pbsdsh)
}
