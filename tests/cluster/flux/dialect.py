"""The Flux double's words, as a real flux-core 0.88.0 was recorded: two brokers, queues batch (1 h) and debug (2 min).

Texts, exit statuses and the shape of the JSON are the recorded ones; each is a command of the program ``flux``.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import time
from pathlib import Path
from typing import Any

from tests.cluster.double.engine import NODES, Engine, Job
from tests.cluster.double.faults import Faults

_ALPHABET = "123456789abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ"
_LIMITS_S = {"batch": 3600, "debug": 120}
_EXIT_TIMEOUT_S = 30.0


def said(out: str = "", err: str = "", rc: int = 0) -> dict[str, Any]:
    return {"rc": rc, "out": out, "err": err}


def f58(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, 58)
        text = _ALPHABET[digit] + text
    return f"\u0192{text or '1'}"


def parse_f58(text: str) -> int | None:
    if not re.fullmatch(r"[f\u0192][1-9A-HJ-NP-Za-km-z]+", text):
        return int(text) if text.isdigit() else None
    number = 0
    for letter in text[1:]:
        number = number * 58 + _ALPHABET.index(letter)
    return number


class Dialect:
    """Flux's commands over the engine."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.engine = Engine(state, next_number=161732362240, step=16777217)

    def kind_of(self, _program: str, argv: list[str]) -> str:
        return {"submit": "submit", "cancel": "cancel", "update": "change", "job": "change"}.get(argv[0], "ask")

    def unheard(self, kind: str, *, is_down: bool) -> dict[str, Any]:  # noqa: ARG002 - Flux says the same
        command = {"submit": "submit", "cancel": "cancel"}.get(kind, "jobs")
        words = "Unable to connect to Flux: broker socket /tmp/nosuch/local-0 was not found"
        return said(err=f"flux-{command}: ERROR: {words}\n", rc=1)

    def run(self, question: dict[str, Any], faults: Faults) -> dict[str, Any]:
        command, *words = question["argv"]
        if command == "--version":
            return said("commands:    \t\t0.88.0\nlibflux-core:\t\t0.88.0\nbroker:  \t\t0.88.0\n")
        return getattr(self, command)(words, question, faults)

    def variables(self, job: Job, rank: int) -> dict[str, str]:
        said = {
            "FLUX_JOB_ID": f58(job.number), "FLUX_JOB_SIZE": str(job.nodes), "FLUX_JOB_NNODES": str(job.nodes),
            "FLUX_TASK_RANK": str(rank), "FLUX_TASK_LOCAL_ID": "0", "FLUX_URI": "local:///tmp/flux-orvMZf/local-0",
        }  # fmt: skip
        return said if job.index is None else {**said, "FLUX_JOB_CC": str(job.index)}

    def submit(self, argv: list[str], question: dict[str, Any], faults: Faults) -> dict[str, Any]:
        options = _submit_parser().parse_args(argv)
        limit_s = _seconds(options.time_limit)
        if limit_s is None:
            return said(err="flux-submit: ERROR: invalid Flux standard duration\n", rc=1)
        queue = options.queue or "batch"
        if faults.refusal:
            return said(err=f"[Errno 1] {faults.refusal}\n", rc=1)
        if queue not in _LIMITS_S:
            return said(err=f"[Errno 1] Invalid queue '{queue}' specified\n", rc=1)
        if limit_s == 0 or limit_s > _LIMITS_S[queue]:
            asked = "unlimited" if limit_s == 0 else options.time_limit
            most = {"batch": "1h", "debug": "2m"}[queue]
            err = f"[Errno 22] requested duration ({asked}) exceeds policy limit of {most} for queue {queue}\n"
            return said(err=err, rc=1)
        waits = []
        for text in options.dependency:
            word, _, job = text.partition(":")
            number = parse_f58(job)
            if number is None or not self.engine.meant(number):
                return said(err=f"[Errno 22] dependency: {word}: id {job}: job not found\n", rc=1)
            waits.append((word, number, None))
        ids = [self._add(options, number, limit_s, queue, waits, question) for number in _numbers(options.cc)]
        return said("" if faults.mute else "".join(f"{f58(one)}\n" for one in ids))

    def _add(self, options: argparse.Namespace, cc: int | None, limit_s: float, queue: str,
             waits: list[tuple[str, int, int | None]], question: dict[str, Any]) -> int:  # fmt: skip
        number = self.engine.new_number()
        fill = {"{cc}": "" if cc is None else str(cc), "{{id}}": f58(number)}
        name, output = options.job_name, options.output
        for word, value in fill.items():
            name, output = name.replace(word, value), output.replace(word, value)
        timeouts = [_seconds(text.partition("=")[2]) for text in options.setopt if text.startswith("exit-timeout")]
        asked_s = next(iter(timeouts), None) or _EXIT_TIMEOUT_S
        self.engine.exit_timeout_s = asked_s / 10  # the double's clock goes faster
        job = Job(
            number=number, name=name, argv=options.command, environ=question["env"], cwd=options.cwd or question["cwd"],
            output=output, index=cc, nodes=options.nodes, cores=options.cores_per_task, gpus=options.gpus_per_task,
            limit_s=limit_s, queue=queue, waits=waits, per_node=True, held=options.urgency == "hold",
        )  # fmt: skip
        if job.nodes > len(NODES) or job.gpus > max(gpus for _, gpus in NODES.values()):
            job.state, job.why, job.ended_at = "ended", "unsatisfiable", time.time()
        self.engine.jobs.append(job)
        return number

    def jobs(self, argv: list[str], _question: dict[str, Any], faults: Faults) -> dict[str, Any]:
        parser = argparse.ArgumentParser()
        for flag in ("-a", "-n", "--json"):
            parser.add_argument(flag, action="store_true")
        parser.add_argument("-o")
        parser.add_argument("--name")
        parser.add_argument("--count")
        parser.add_argument("ids", nargs="*")
        options = parser.parse_args(argv)
        numbers = [parse_f58(text) for text in options.ids]
        if None in numbers:
            bad = options.ids[numbers.index(None)]
            return said(err=f"flux-jobs: error: argument JOBID: invalid JobID value: '{bad}'\n", rc=2)
        known = {job.number: job for job in self.engine.jobs if f"f{f58(job.number)[1:]}" not in faults.forgotten}
        if options.ids:
            shown = [known[number] for number in numbers if number in known]
        else:
            shown = [
                job
                for job in known.values()
                if (options.a or job.state != "ended") and options.name in (None, job.name)
            ]
        err = "".join(
            f"JobID {text} unknown\n" for text, number in zip(options.ids, numbers, strict=True) if number not in known
        )
        if options.o:
            return said("".join(f"{_nodelist(job)}\n" for job in shown), err)
        if options.ids and not shown:
            return said(err=err, rc=1)
        records = [self._record(job, faults) for job in shown]
        is_one = len(options.ids) == 1
        return said(json.dumps(records[0] if is_one else {"jobs": records}) + "\n", err)

    def cancel(self, argv: list[str], _question: dict[str, Any], _faults: Faults) -> dict[str, Any]:
        err = ""
        for text in argv:
            number = parse_f58(text)
            if number is None:
                usage = "usage: flux cancel [OPTIONS] [JOBID...]\n"
                return said(err=f"{usage}flux-cancel: error: argument JOBID...: invalid JobID value: '{text}'\n", rc=2)
            jobs = self.engine.meant(number)
            if not jobs:
                err += f"flux-cancel: ERROR: {f58(number)}: unknown job id\n"
            for job in jobs:
                if job.state == "ended":
                    err += f"flux-cancel: ERROR: {f58(number)}: job is inactive\n"
                self.engine.cancel(job)
        return said(err=err, rc=1 if err else 0)

    def job(self, argv: list[str], _question: dict[str, Any], _faults: Faults) -> dict[str, Any]:
        command, *words = argv
        number = parse_f58(words[-1] if command == "kill" else words[0])
        for job in self.engine.meant(number or 0):
            if command == "kill":
                if job.state == "ended":
                    return said(err=f"flux-job: kill {words[-1]}: job is inactive\n", rc=1)
                self.engine.signal(job, signal.Signals[f"SIG{words[1].removeprefix('SIG')}"])
            elif command == "urgency":
                job.held = words[1] == "hold"
            elif command == "raise":
                self.engine.cancel(job, "preempted")
        return said()

    def update(self, argv: list[str], _question: dict[str, Any], _faults: Faults) -> dict[str, Any]:
        job_id, change = argv
        for job in self.engine.meant(parse_f58(job_id) or 0):
            value = change.partition("=")[2]
            more = _seconds(value.lstrip("+-")) or 0.0
            job.limit_s = (job.limit_s or 0.0) + more if value.startswith("+") else more
        return said()

    def resource(self, _argv: list[str], _question: dict[str, Any], _faults: Faults) -> dict[str, Any]:
        return said("STATE NNODES NCORES NGPUS NODELIST PROPERTIES\nall 2 16 8 gpu[1-2] batch,debug\n")

    def queue(self, _argv: list[str], _question: dict[str, Any], _faults: Faults) -> dict[str, Any]:
        lines = (f"{name}: Job submission is enabled\n{name}: Scheduling is started\n" for name in _LIMITS_S)
        return said("".join(lines))

    def _record(self, job: Job, faults: Faults) -> dict[str, Any]:
        job_id = f58(job.number)
        record: dict[str, Any] = {
            "t_submit": job.made_at, "name": job.name, "cwd": job.cwd, "queue": job.queue, "ntasks": job.nodes,
            "ncores": job.cores * job.nodes, "nnodes": job.nodes, "priority": 16, "urgency": 0 if job.held else 16,
            "id": job.number, "jobid": job_id, "duration": job.limit_s or 0.0, "username": "root", "userid": 0,
            "state": {"waiting": "SCHED", "running": "RUN", "ended": "INACTIVE"}[job.state], "annotations": {},
            "dependencies": [], "exception": {"occurred": False},
        }  # fmt: skip
        alive = [(word, n) for word, n, _ in job.waits if any(one.state != "ended" for one in self.engine.meant(n))]
        if job.state == "waiting" and alive:
            names = {"afterok": "after-success", "afternotok": "after-failure", "afterany": "after-finish"}
            record |= {"state": "DEPEND", "dependencies": [f"{names.get(word, word)}={f58(n)}" for word, n in alive]}
        if job.began_at is not None:
            record |= {"t_run": job.began_at, "nodelist": _nodelist(job)}
            record["runtime"] = (job.ended_at or time.time()) - job.began_at
        if job.state == "ended":
            record |= self._ended(job)
        if (state := faults.states.get(f"f{job_id[1:]}")) is not None:
            record["state"] = state
        return record

    def _ended(self, job: Job) -> dict[str, Any]:
        code = job.code or 0
        code = 128 - code if code < 0 else code
        exception = {"cancelled": ("cancel", ""), "timeout": ("timeout", "resource allocation expired"),
                     "preempted": ("preempt", "site preempts"),
                     "unsatisfiable": ("alloc", f"unsatisfiable request: need {job.nodes} slot(s)"),
                     }.get(job.why or "")  # fmt: skip
        if job.why == "dependency":
            word, number, _ = job.waits[0]
            name = {"afterok": "after-success", "afternotok": "after-failure"}.get(word, word)
            exception = ("dependency", f"dependency {name}={f58(number)} can never be satisfied")
        results = {"cancelled": "CANCELED", "timeout": "TIMEOUT", None: "FAILED" if code else "COMPLETED"}
        result = results.get(job.why, "FAILED")
        if job.why is not None and job.began_at is None:
            code = -128 if job.why == "cancelled" else 1
        elif job.why in ("cancelled", "timeout", "preempted"):
            code = 142 if job.why == "timeout" else 143
        if exception is None and job.is_doomed:
            exception = ("exec", f"bash: task rank 1 on host gpu2 exited (Exit {code}) and exit-timeout has expired")
        told = {"result": result, "status": result, "returncode": code, "success": result == "COMPLETED"}
        if exception is not None:
            kind, note = exception
            told["exception"] = {"occurred": True, "severity": 0, "type": kind, "note": note}
        return told


def _submit_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    for flag, default in (("nodes", 1), ("ntasks", 1), ("cores-per-task", 1), ("gpus-per-task", 0)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    for flag in ("time-limit", "queue", "job-name", "output", "cwd", "requires", "signal", "cc", "urgency"):
        parser.add_argument(f"--{flag}")
    for flag in ("setattr", "setopt", "dependency"):
        parser.add_argument(f"--{flag}", action="append", default=[])
    parser.add_argument("--exclusive", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser


def _seconds(text: str | None) -> float | None:
    """Return a Flux standard duration in seconds: without a unit it is seconds there, minutes in -t; 0 is none."""
    if text is None:
        return 0.0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|d)?", text)
    return None if match is None else float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400, None: 60}[match[2]]


def _numbers(text: str | None) -> list[int | None]:
    if text is None:
        return [None]
    found: list[int | None] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _nodelist(job: Job) -> str:
    return "gpu[1-2]" if len(job.hosts) == 2 else "".join(job.hosts)
