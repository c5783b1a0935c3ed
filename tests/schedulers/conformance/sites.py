"""The sites: this machine, a real Slurm, and the doubles of PBS, LSF and Flux."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from hpcml.schedulers.contract import Answers, Batch, Job, Submitter, Ticket
from hpcml.schedulers.driver import Driver
from hpcml.schedulers.flux import FLUX
from hpcml.schedulers.local.runtime import Pool
from hpcml.schedulers.local.submitter import LocalSubmitter
from hpcml.schedulers.lsf import LSF
from hpcml.schedulers.pbs.scheduler import PBS
from tests.cluster.double.double import Double
from tests.cluster.pbs.double import PbsDouble
from tests.cluster.slurm.account import Account
from tests.schedulers.conformance.kit import Given, Site
from tests.schedulers.jobs import write_job
from tests.schedulers.pbs.runs import batch_of
from tests.schedulers.slurm import as_user

CONF = Path(__file__).parent / "conf"
LSF_AND_FLUX = [pytest.param(name, marks=pytest.mark.nightly("lsf")) for name in ("lsf", "flux")]
PBS_CONF = Path(__file__).parents[1] / "pbs" / "conf"
TWO_NODES = "resources.nodes=2 strategy=ddp strategy.processes_per_node=1"
NINE_NODES = TWO_NODES.replace("=2", "=9")
NO_QOS = "has queues and no quality of service"


@dataclass
class HereSite(Site):
    """A site whose user is the one who runs the tests."""

    submitter: Any = None
    conf: Path = CONF
    cluster: str = ""
    count: int = 0
    jobs: dict[Path, Job] = field(default_factory=dict)

    def job(self, command: str, *overrides: str) -> Job:
        words = [f"cluster={self.cluster}", f"workload.command={command}", *overrides]
        job = write_job(self.submitter, self.conf, self.folder, *words, index=self.count)
        job.run_dir.logs.mkdir()
        self.count += 1
        self.jobs[job.run_dir.path] = job
        return job

    def submit(self, commands: Sequence[str], *overrides: str) -> list[Given]:
        jobs = [self.job(command, *overrides) for command in commands]
        tickets = self.submitter.submit(batch_of(jobs))
        return [Given(ticket, job.run_dir.path) for ticket, job in zip(tickets, jobs, strict=True)]

    def submit_again(self, given: Given) -> Ticket:
        job = self.jobs[given.path]
        (ticket,) = self.submitter.submit(Batch(token=f"{job.run_dir.uid}-r9", packs=[[job]]))
        return replace(ticket, job_name=None)  # where the script has the name, it is that of the first

    def find_before_and_after(self, command: str) -> tuple[list[Ticket] | None, list[Ticket], list[Ticket] | None]:
        batch = batch_of([self.job(command)])
        before = self.submitter.find(batch)
        tickets = self.submitter.submit(batch)
        return before, tickets, self.submitter.find(batch)

    def patient(self, patience_s: float) -> Submitter:
        return replace(self.submitter, ask_timeout_s=patience_s)

    def query(self, tickets: Collection[Ticket], *, patience_s: float = 60.0) -> Answers:
        return self.patient(patience_s).query(tickets)

    def cancel(self, givens: Sequence[Given], *, patience_s: float = 60.0) -> None:
        self.patient(patience_s).cancel([given.ticket for given in givens])

    def preview(self, *overrides: str) -> str:
        return self.submitter.preview(batch_of([self.job("true", *overrides)])).script


@dataclass
class LocalSite(HereSite):
    """The queue of this machine."""

    def patient(self, patience_s: float) -> Submitter:  # noqa: ARG002 - it asks nobody
        return self.submitter

    def submit_again(self, given: Given) -> Ticket:
        subprocess.run(["bash", str(given.path / "job.sh")], check=False, capture_output=True)
        return given.ticket

    def cancel(self, givens: Sequence[Given], *, patience_s: float = 60.0) -> None:
        for given in givens:  # as `hpcml cancel` marks it
            (given.path / "cancel").touch()
        super().cancel(givens, patience_s=patience_s)


@dataclass
class DoubledSite(HereSite):
    """A site whose scheduler is a double."""

    double: Any = None

    @contextmanager
    def closed(self) -> Iterator[None]:
        self.double.set(closed=True)
        yield
        self.double.set()

    @contextmanager
    def troubled(self, what: str) -> Iterator[None]:
        before = self.submitter
        hasty = replace(before, submit_timeout_s=1.5)
        if what == "hung":  # whose answer nobody waits for
            hasty = replace(hasty, ask_timeout_s=1.5)
        self.submitter = before if what in ("banner", "down") else hasty
        self.double.set(**self.trouble(what))
        yield
        self.double.set()
        self.submitter = before

    def trouble(self, what: str) -> dict[str, Any]:
        every = ("submit", "ask", "cancel")
        return {
            "down": {"down": every},
            "hung": {"hung": every},
            "lost": {"hung_after": ["submit"]},
            "mute": {"mute": True},
            "banner": {"banner": "Welcome to 1.5 PFlop/s!\nCannot connect, please wait ...\n"},
        }[what]


class PbsSite(DoubledSite):
    """The PBS double."""

    def trouble(self, what: str) -> dict[str, Any]:
        every = ("qsub", "qstat", "qdel", "qselect")
        return {
            "down": {"down": every},
            "hung": {"hung": every},
            "lost": {"hung_after": ["qsub"]},
            "mute": {"mute": True},
            "banner": {"banner": "Welcome to 1.5 PFlop/s!\nYour project has 12.5 hours left.\n"},
        }[what]

    def tell(self, given: Given, signal: str) -> None:
        subprocess.run(["qsig", "-s", signal, given.ticket.spelled], check=True)

    def change_walltime(self, given: Given, minutes: int) -> None:
        self.double.set(operator=True)
        subprocess.run(["qalter", "-l", f"walltime=00:{minutes}:00", given.ticket.spelled], check=True)

    def submissions_made(self) -> int:
        return int(self.double.calls()["qsub"])


class LsfSite(DoubledSite):
    """The LSF double, made from documentation."""

    def tell(self, given: Given, signal: str) -> None:
        subprocess.run(["bkill", "-s", signal, given.ticket.spelled], check=True, capture_output=True)

    def change_walltime(self, given: Given, minutes: int) -> None:
        subprocess.run(["bmod", "-W", str(minutes), given.ticket.spelled], check=True, capture_output=True)

    def submissions_made(self) -> int:
        return int(self.double.calls()["bsub"])


class FluxSite(DoubledSite):
    """The Flux double, made from recordings."""

    def tell(self, given: Given, signal: str) -> None:
        subprocess.run(["flux", "job", "kill", "-s", signal, given.ticket.job_id], check=True)

    def change_walltime(self, given: Given, minutes: int) -> None:
        subprocess.run(["flux", "update", given.ticket.job_id, f"duration={minutes}m"], check=True)

    def submissions_made(self) -> int:
        return int(self.double.calls()["flux submit"])


@dataclass
class SlurmSite(Site):
    """A real Slurm, whose user is another."""

    account: Any = None
    environ: dict[str, str] = field(default_factory=dict)
    patience_s: float = 120.0

    def submit(self, commands: Sequence[str], *overrides: str) -> list[Given]:
        given = self.account.call_in(
            self.environ, as_user.submit, self.folder, commands, *overrides, patience_s=self.patience_s
        )
        return [Given(ticket, path) for ticket, path in given]

    def submit_again(self, given: Given) -> Ticket:
        done = self.account.run(["sbatch", "--parsable", str(given.path / "job.sh")], cwd=self.folder)
        return Ticket(scheduler="slurm", job_id=done.stdout.decode().strip())

    def find_before_and_after(self, command: str) -> tuple[list[Ticket] | None, list[Ticket], list[Ticket] | None]:
        return self.account.call(as_user.find_around, self.folder, command)  # type: ignore[no-any-return]

    def query(self, tickets: Collection[Ticket], *, patience_s: float = 120.0) -> Answers:
        return self.account.call_in(self.environ, as_user.query, list(tickets), patience_s=patience_s)  # type: ignore[no-any-return]

    def cancel(self, givens: Sequence[Given], *, patience_s: float = 120.0) -> None:
        tickets = [given.ticket for given in givens]
        self.account.call_in(self.environ, as_user.cancel_within, tickets, patience_s=patience_s)

    def preview(self, *overrides: str) -> str:
        return self.account.call(as_user.preview, self.folder, overrides)  # type: ignore[no-any-return]

    def tell(self, given: Given, signal: str) -> None:
        self.control("scancel", "--batch", f"--signal={signal}", given.ticket.spelled)

    def change_walltime(self, given: Given, minutes: int) -> None:
        limit = f"TimeLimit={minutes}"
        subprocess.run(  # to make it longer is for operators
            ["scontrol", "update", f"JobId={given.ticket.spelled}", limit],
            env={**os.environ, **self.account.cluster.environ},
            check=True,
        )

    def control(self, *words: str) -> None:
        done = self.account.run(words, cwd=self.folder)
        assert done.returncode == 0, done.stderr

    @contextmanager
    def closed(self) -> Iterator[None]:
        self.environ = self.wrapped("sbatch", 'exec /usr/bin/sbatch --begin=now+1hour "$@"')
        yield
        self.environ = {}

    @contextmanager
    def troubled(self, what: str) -> Iterator[None]:
        down = (
            "echo 'error: Unable to contact slurm controller (connect failure)' | sed \"s/^/${0##*/}: /\" >&2; exit 1"
        )
        body = {
            "down": down,
            "hung": "sleep 60",
            "lost": '/usr/bin/sbatch "$@" >/dev/null; sleep 60',
            "mute": '/usr/bin/sbatch "$@" >/dev/null; exit 0',
            "banner": 'echo "Welcome! Your job 5 used 3 hours"; echo "** motd **" >&2; exec /usr/bin/${0##*/} "$@"',
        }[what]
        every = ("sbatch", "squeue", "sacct", "scancel") if what in ("down", "hung") else ("sbatch",)
        for program in every:
            self.environ |= self.wrapped(program, body)
        self.patience_s = 120.0 if what in ("banner", "down") else 2.0
        yield
        self.environ, self.patience_s = {}, 120.0

    def wrapped(self, program: str, body: str) -> dict[str, str]:
        """Put a site's wrapper of a program in front of the real one; return the environment that finds it."""
        text = f"#!/bin/bash\n{body}\n"
        place = self.account.call(as_user.write_program, self.folder / "wrappers", program, text)
        return {"PATH": f"{place}:{self.account.environ['PATH']}"}


def local_site(folder: Path) -> LocalSite:
    pool = Pool(cores=2, gpus=[])
    submitter = LocalSubmitter(
        submissions=folder / "submissions", lock_dir=folder / "locks", pool=lambda: pool, max_parallel=None
    )
    return LocalSite(
        name="local", folder=folder, python=sys.executable, submitter=submitter, conf=PBS_CONF, cluster="local",
        refuses={TWO_NODES: "is this one machine"}, remembers=False,
    )  # fmt: skip


def pbs_site(folder: Path, double: PbsDouble) -> PbsSite:
    refuses = {
        "resources.qos=high": NO_QOS,
        "resources.exclude=pbs02": "cannot be told which nodes to avoid",
        "resources.constraint=fast": "PBS knows no features",
    }
    return PbsSite(
        name="pbs", folder=folder, python=sys.executable, cluster="testpbs", conf=PBS_CONF, double=double,
        submitter=Driver(scheduler=PBS, submissions=folder / "submissions"), refuses=refuses,
        refuses_when_asked={"resources.partition=nosuch": "Unknown queue"},
    )  # fmt: skip


def lsf_site(folder: Path, double: Double) -> LsfSite:
    refuses = {
        "resources.qos=high": NO_QOS,
        "resources.mail_type=FAIL": "LSF has NONE, BEGIN, END",
        "resources.nodelist=gpu[1-2]": "names of hosts",
        "resources.dependency=singleton": "LSF has afterok",
        "resources.account='a\"b'": "cannot be written as a #BSUB line",
    }
    return LsfSite(
        name="lsf", folder=folder, python=sys.executable, cluster="testlsf", double=double, refuses=refuses,
        submitter=Driver(scheduler=LSF, submissions=folder / "submissions"),
        refuses_when_asked={
            "resources.partition=nosuch": "No such queue",
            f"{NINE_NODES} resources.cpus_per_task=8": "Too many processors requested",
        },
    )  # fmt: skip


def flux_site(folder: Path, double: Double) -> FluxSite:
    refuses = {
        "resources.mem=1G": "Flux shares out cores and GPUs, and no memory",
        "resources.qos=high": NO_QOS,
        "resources.reservation=x": "no reservations",
        "resources.mail_user=a@b.org": "sends no mail",
        "resources.dependency=before:f1111": "Flux has afterok",
    }
    return FluxSite(
        name="flux", folder=folder, python=sys.executable, cluster="testflux", double=double, refuses=refuses,
        submitter=Driver(scheduler=FLUX, submissions=folder / "submissions"),
        refuses_when_asked={
            "resources.partition=nosuch": "Invalid queue 'nosuch' specified",
            "resources.walltime=5h": "exceeds policy limit of 1h for queue batch",
            NINE_NODES: "unsatisfiable request",
        },
    )  # fmt: skip


def slurm_site(folder: Path, account: Account) -> SlurmSite:
    return SlurmSite(
        name="slurm", folder=folder, python=str(account.python), account=account,
        for_two_nodes=["resources.partition=qgpu"],
        refuses_when_asked={"resources.partition=nosuch": "nvalid partition", "resources.qos=nosuch": "Invalid qos"},
    )  # fmt: skip
