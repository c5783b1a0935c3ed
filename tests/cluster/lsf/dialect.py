"""The LSF double's words, **made from documentation and public code, never recorded**: no LSF was there to be asked.

What is known of its answers, and from where, is beside the texts. Known to be left out: fair shares, esub, hosts' load.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
from pathlib import Path
from typing import Any

from tests.cluster.double.engine import Engine, Job
from tests.cluster.double.faults import Faults

_VALUED = (
    *("-J", "-q", "-P", "-G", "-U", "-W", "-w", "-n", "-R", "-M", "-o", "-e", "-oo", "-cwd", "-gpu", "-m", "-u"),
    *("-nnodes", "-alloc_flags", "-Q", "-env", "-Jd"),
)
_CONDITION = re.compile(r"(done|ended|exit|started)\((\d+)(?:\[(\d+)\])?\)")
_WORDS = {"done": "afterok", "ended": "afterany", "exit": "afternotok", "started": "after"}
_ID = re.compile(r"(\d+)(?:\[(\d*)\])?")
_QUEUES = {"batch": "-", "debug": "120.0", "normal": "1440.0"}


def said(out: str = "", err: str = "", rc: int = 0) -> dict[str, Any]:
    return {"rc": rc, "out": out, "err": err}


class Dialect:
    """LSF's programs over the engine."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.engine = Engine(state, next_number=101)
        self.engine.ending = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)  # JOB_TERMINATE_INTERVAL: 10 s in LSF
        self.engine.keeps_in_vain = True  # PEND: "Job dependency condition not satisfied;"

    def kind_of(self, program: str, _argv: list[str]) -> str:
        kinds = {"bsub": "submit", "bkill": "cancel", "bmod": "change", "brequeue": "change", "blaunch": "launch"}
        return kinds.get(program, "ask")

    def unheard(self, kind: str, *, is_down: bool) -> dict[str, Any]:
        if kind == "submit" and not is_down:  # ERT's tests: a host that LSF is just getting to know
            return said(err="Request from non-LSF host rejected\n", rc=255)
        return said(err="LSF is down. Please wait ...\n", rc=255)

    def run(self, question: dict[str, Any], faults: Faults) -> dict[str, Any]:
        return getattr(self, question["program"])(question["argv"], question, faults)

    def variables(self, job: Job, _rank: int) -> dict[str, str]:
        hosts = self.state / f"hosts.{job.number}.{job.index or 0}"
        hosts.write_text("".join(f"{host}\n" * job.cores for host in job.hosts))
        return {
            "LSB_JOBID": str(job.number), "LSB_JOBINDEX": str(job.index or 0), "LSB_JOBNAME": _name(job),
            "LSB_QUEUE": job.queue, "LSB_HOSTS": " ".join(host for host in job.hosts for _ in range(job.cores)),
            "LSB_MCPU_HOSTS": " ".join(f"{host} {job.cores}" for host in job.hosts), "LSB_DJOB_HOSTFILE": str(hosts),
            "LS_SUBCWD": job.cwd,
        }  # fmt: skip

    def bsub(self, argv: list[str], question: dict[str, Any], faults: Faults) -> dict[str, Any]:
        flags, rest = _options(argv)
        text = question.get("stdin")
        if text is None:
            text = Path(rest[0]).read_text()  # as with LSB_BSUB_PARSE_SCRIPT=Y, and on Summit
        own, _ = _options(
            [word for line in re.findall(r"^#BSUB (.*)$", text, re.MULTILINE) for word in shlex.split(line)]
        )
        wanted = {**own, **flags}  # the command's options win over the script's
        if faults.refusal:
            return said(err=f"{faults.refusal}\nRequest aborted by esub. Job not submitted.\n", rc=255)
        queue = wanted.get("-q", ["batch"])[-1]
        if queue not in _QUEUES:
            return said(err="No such queue. Job not submitted.\n", rc=255)
        if "-o" not in wanted:
            return said(err="Returning output by mail is not supported on this cluster.\nRequest aborted by esub. "
                        "Job not submitted.\n", rc=255)  # fmt: skip
        nodes, cores = _size(wanted)
        if nodes * cores > 16:
            return said(err="Too many processors requested. Job not submitted.\n", rc=255)
        number = self.engine.new_number()
        script = self.state / f"script.{number}"  # a copy, so that $0 tells nothing: ~/.lsbatch
        script.write_text(text, errors="surrogateescape")
        self._add(number, script, wanted, question, queue, nodes, cores)
        if faults.mute:
            return said()
        where = f"queue <{queue}>" if "-q" in wanted else f"default queue <{queue}>"
        return said(f"Job <{number}> is submitted to {where}.\n")

    def _add(self, number: int, script: Path, wanted: dict[str, list[str]], question: dict[str, Any], queue: str,
             nodes: int, cores: int) -> None:  # fmt: skip
        title = re.fullmatch(r"([^\[]*)(?:\[1-(\d+)\](?:%(\d+))?)?", wanted.get("-J", [script.name])[-1])
        assert title is not None, wanted
        minutes = wanted.get("-W", [None])[-1]
        gpus = re.search(r"num=(\d+)", wanted.get("-gpu", [""])[-1])
        for index in range(1, int(title[2]) + 1) if title[2] else [None]:
            self.engine.jobs.append(
                Job(
                    number=number,
                    name=title[1],
                    argv=["/bin/bash", str(script)],
                    environ=question["env"],
                    cwd=wanted.get("-cwd", [question["cwd"]])[-1],
                    output=wanted["-o"][-1].replace("%J", str(number)).replace("%I", str(index or 0)),
                    index=index,
                    nodes=nodes,
                    cores=cores,
                    gpus=int(gpus[1]) if gpus else 0,
                    limit_s=None if minutes is None else _minutes(minutes) * 60.0,
                    queue=queue,
                    waits=[
                        (_WORDS[word], int(job), int(element) if element else None)
                        for word, job, element in _CONDITION.findall(" ".join(wanted.get("-w", [])))
                    ],
                    at_once=int(title[3]) if title[3] else None,
                )
            )

    def bjobs(self, argv: list[str], _question: dict[str, Any], faults: Faults) -> dict[str, Any]:
        flags, ids = _options(argv)
        fields = flags["-o"][-1].split()
        shown: list[Job] = []
        missing: list[str] = []
        if "-J" in flags:
            shown = [job for job in self.engine.jobs if job.name == flags["-J"][-1]]
            if not shown:
                return said(err=f"Job <{flags['-J'][-1]}> is not found\n", rc=255)
        elif not ids:
            shown = [job for job in self.engine.jobs if str(job.number) not in faults.forgotten]
            if not shown:
                return said(err="No job found\n", rc=255)
        for one in ids:
            found = [job for job in self._meant(one) if str(job.number) not in faults.forgotten]
            shown += found
            missing += [] if found else [one]
        records = [{field.upper(): _value(job, field, faults) for field in fields} for job in shown]
        whole = {"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}
        err = "".join(f"Job <{one}> is not found\n" for one in missing)
        return said(json.dumps(whole, indent=2).replace("/", "\\/") + "\n", err, 255 if missing and shown else 0)

    def bkill(self, argv: list[str], _question: dict[str, Any], _faults: Faults) -> dict[str, Any]:
        flags, ids = _options(["-sig" if word == "-s" else word for word in argv])
        number = flags.get("-sig")
        out, err = "", ""
        for one in ids:
            jobs = self._meant(one)
            alive = [job for job in jobs if job.state != "ended"]
            for job in alive:
                if number is None:
                    self.engine.cancel(job)
                else:
                    self.engine.signal(job, signal.Signals[f"SIG{number[-1]}"])
            if alive:
                out += f"Job <{one}> is being {'signaled' if number else 'terminated'}\n"
            else:
                err += f"Job <{one}>: {'Job has already finished' if jobs else 'No matching job found'}\n"
        return said(out, err, 255 if err else 0)

    def bmod(self, argv: list[str], _question: dict[str, Any], _faults: Faults) -> dict[str, Any]:
        flags, ids = _options(argv)
        for job in self._meant(ids[0]):
            if "-W" in flags:
                job.limit_s = _minutes(flags["-W"][-1]) * 60.0
        return said(f"Parameters of job <{ids[0]}> are being changed\n")

    def brequeue(self, argv: list[str], _question: dict[str, Any], _faults: Faults) -> dict[str, Any]:
        for job in self._meant(argv[-1]):
            self.engine.requeue(job)
        return said(f"Job <{argv[-1]}> is being requeued \n")

    def blaunch(self, argv: list[str], question: dict[str, Any], _faults: Faults) -> dict[str, Any]:
        environ = question["env"]
        job = [environ["LSB_JOBID"], "" if environ["LSB_JOBINDEX"] == "0" else environ["LSB_JOBINDEX"]]
        plain = {name: value for name, value in environ.items() if not name.startswith("HPCML_")}
        # as rsh and ssh: what follows the host is a line for a shell, unless -no-shell stands before it
        task = argv[2:] if argv[1] == "-no-shell" else ["/bin/sh", "-c", " ".join(argv[1:])]
        return {**said(), "task": {"argv": task, "env": plain, "cwd": question["cwd"], "job": job}}

    def _meant(self, text: str) -> list[Job]:
        match = _ID.fullmatch(text)
        return self.engine.meant(int(match[1]), int(match[2]) if match[2] else None) if match else []


def _options(argv: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the options, and what is left."""
    flags: dict[str, list[str]] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word in _VALUED or word == "-sig":
            flags.setdefault(word, []).append(next(words))
        elif word.startswith("-"):
            flags.setdefault(word, []).append("")
        else:
            rest.append(word)
    return flags, rest


def _size(wanted: dict[str, list[str]]) -> tuple[int, int]:
    """Return nodes, and cores of each."""
    if "-nnodes" in wanted:
        return int(wanted["-nnodes"][-1]), 8
    slots = int(wanted.get("-n", ["1"])[-1])
    tile = next((int(match[1]) for text in wanted.get("-R", []) if (match := re.search(r"ptile=(\d+)", text))), slots)
    return slots // tile, tile


def _minutes(text: str) -> int:
    hours, _, minutes = text.rpartition(":")
    return int(hours or 0) * 60 + int(minutes)


def _name(job: Job) -> str:
    return job.name if job.index is None else f"{job.name}[{job.index}]"


def _stat(job: Job) -> str:
    if job.state == "ended":
        return "DONE" if job.why is None and job.code == 0 else "EXIT"
    return "PSUSP" if job.held else {"waiting": "PEND", "running": "RUN"}[job.state]


def _code(job: Job) -> str:
    if job.why == "timeout":
        return "140"
    if job.why == "cancelled":
        return "130" if job.began_at else ""
    code = job.code or 0
    return "" if code == 0 and job.why is None else str(128 - code if code < 0 else code)


def _reason(job: Job) -> str:
    return {
        "timeout": "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
        "cancelled": "TERM_OWNER: job killed by owner.",
    }.get(job.why or "", "")


def _value(job: Job, field: str, faults: Faults) -> str:
    job_id = str(job.number)
    pending = "Job dependency condition not satisfied;" if job.waits else "New job is waiting for scheduling;"
    values = {
        "jobid": job_id,
        "jobindex": str(job.index or 0),
        "stat": faults.states.get(job_id, _stat(job)),
        "job_name": _name(job),
        "output_file": job.output,
        "exit_code": _code(job) if job.state == "ended" else "",
        "exit_reason": _reason(job).rstrip(".") if job.state == "ended" else "",
        "pend_reason": pending if job.state == "waiting" else "",
        "run_time": "0 second(s)"
        if job.began_at is None
        else f"{(job.ended_at or job.began_at) - job.began_at:.0f} second(s)",
        "max_mem": "12 Mbytes" if job.state == "ended" else "",
        "runtimelimit": "" if job.limit_s is None else f"{job.limit_s / 60:.1f}/gpu1",
    }
    return values.get(field, "")
