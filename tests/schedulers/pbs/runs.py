"""Run directories as `hpcml run` leaves them, for tests that hand them to PBS themselves."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from hpcml.schedulers.contract import Batch, Job, Known, Submitter, Ticket
from hpcml.schedulers.driver import Driver
from tests.schedulers.jobs import write_job as write_run

CONF = Path(__file__).parent / "conf"


def write_job(
    submitter: Submitter, folder: Path, words: Sequence[str], *overrides: str, index: int = 0, cluster: str = "testpbs"
) -> Job:
    """Leave a complete run directory in *folder* of a run that executes *words*."""
    workload = f"workload.command={shlex.join(words)}"
    job = write_run(submitter, CONF, folder, f"cluster={cluster}", workload, *overrides, index=index)
    job.run_dir.logs.mkdir()
    return job


def batch_of(jobs: Sequence[Job], *, in_packs_of: int = 1) -> Batch:
    """Return the batch of *jobs*; several have a token as a submission gives it."""
    packs = [jobs[first : first + in_packs_of] for first in range(0, len(jobs), in_packs_of)]
    token = jobs[0].run_dir.uid if len(jobs) == 1 else f"{jobs[0].run_dir.uid}-0"
    return Batch(token=token, packs=packs)


def submit(submitter: Driver, *jobs: Job) -> list[Ticket]:
    return submitter.submit(batch_of(jobs))


def events(job: Job, name: str) -> list[dict[str, object]]:
    """Return the details of the events called *name* in all journals of the run."""
    found = [json.loads(line) for path in job.run_dir.journal_files() for line in path.read_text().splitlines()]
    return [said["d"] for said in found if said.get("n") == name]


def output(job: Job, attempt: int = 0, rank: int = 0) -> str:
    """Return what the run's program printed."""
    return job.run_dir.stdout(attempt, rank).read_text()


def until_final(submitter: Driver, tickets: Collection[Ticket], *, timeout_s: float = 300) -> dict[Ticket, Known]:
    """Ask until every job has ended."""
    until = time.monotonic() + timeout_s
    while True:
        known = submitter.query(tickets).known
        if len(known) == len(tickets) and all(said.state.is_final for said in known.values()):
            return known
        assert time.monotonic() < until, known
        time.sleep(0.2)


def wait_for_start(job: Job, *, agents: int = 1, timeout_s: float = 300) -> None:
    """Wait until so many agents have started the run's program."""
    until = time.monotonic() + timeout_s
    while len(list(job.run_dir.logs.glob("*-rank*.out"))) < agents:
        assert time.monotonic() < until, list(job.run_dir.logs.iterdir())
        time.sleep(0.05)
