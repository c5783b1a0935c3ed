"""What tests do as the ordinary user: these functions run in that user's Python (`Account.call`)."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.schedulers.contract import Answers, Batch, Job, Known, Ticket
from hpcml.schedulers.driver import Driver
from hpcml.schedulers.slurm import SLURM
from tests.schedulers.jobs import write_job as write_run

CONF = Path(__file__).parent / "conf"


def submitter(folder: Path, *, patience_s: float = 120.0, pause_s: float = 0.5) -> Driver:
    return Driver(
        scheduler=SLURM, submissions=folder / "submissions", pause_s=pause_s,
        submit_timeout_s=patience_s, ask_timeout_s=patience_s,
    )  # fmt: skip


def write_job(folder: Path, command: str, index: int, overrides: Sequence[str]) -> Job:
    """Leave a complete run directory in *folder*, as `hpcml run` would."""
    words = ["cluster=testslurm", f"workload.command={command!r}", *overrides]
    return write_run(submitter(folder), CONF, folder, *words, index=index, user="hpcuser")


def batch_of(jobs: Sequence[Job], *, in_packs_of: int = 1) -> Batch:
    """Return the batch of *jobs*; several have a token as a submission gives it."""
    packs = [jobs[first : first + in_packs_of] for first in range(0, len(jobs), in_packs_of)]
    token = jobs[0].run_dir.uid if len(jobs) == 1 else f"{jobs[0].run_dir.uid}-0"
    return Batch(token=token, packs=packs)


def submit(
    folder: Path, commands: Sequence[str], *overrides: str, patience_s: float = 120.0
) -> list[tuple[Ticket, Path]]:
    """Submit one run for each of *commands* together; return their tickets and directories."""
    jobs = [write_job(folder, command, index, overrides) for index, command in enumerate(commands)]
    tickets = submitter(folder, patience_s=patience_s).submit(batch_of(jobs))
    return [(ticket, job.run_dir.path) for ticket, job in zip(tickets, jobs, strict=True)]


def submit_copies(folder: Path, count: int) -> list[Ticket]:
    """Submit an array of one run, *count* times."""
    return submitter(folder).submit(batch_of([write_job(folder, "true", 0, [])] * count))


def submit_below(folder: Path, names: Sequence[str], commands: Sequence[str]) -> list[tuple[Ticket, Path]]:
    """Submit *commands* from each new folder in *folder*."""
    submitted: list[tuple[Ticket, Path]] = []
    for name in names:
        (folder / name).mkdir()
        submitted += submit(folder / name, commands)
    return submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """What the queue shows of a job."""

    uid: str
    name: str
    comment: str
    partition: str


def submit_held_as(folder: Path, names: Sequence[str]) -> list[Queued]:
    """Submit a run for each of *names* that does not begin; take it out again and return what the queue showed."""
    return [_submit_held_as(folder, name, index) for index, name in enumerate(names)]


def _submit_held_as(folder: Path, name: str, index: int) -> Queued:
    job = write_job(folder, "true", index, ["resources.extra_directives=['--hold']"])
    job = replace(job, manifest=replace(job.manifest, run=replace(job.manifest.run, name=name)))
    job.run_dir.script.write_text(submitter(folder).script_for(job), encoding="utf-8")
    (ticket,) = submitter(folder).submit(batch_of([job]))
    words = ["squeue", "--noheader", f"--jobs={ticket.job_id}", "--format=%j\x1f%k\x1f%P"]
    answer = subprocess.run(words, capture_output=True, text=True, check=True)
    cancel(ticket)
    queued, comment, partition = answer.stdout.rstrip("\n").split("\x1f")
    return Queued(uid=job.run_dir.uid, name=queued, comment=comment, partition=partition)


def write_program(folder: Path, name: str, text: str) -> Path:
    """Leave an executable in *folder* and return the folder."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    return folder


def query(tickets: Sequence[Ticket], *, patience_s: float = 120.0) -> Answers:
    return submitter(Path("/nowhere"), patience_s=patience_s).query(tickets)


def cancel(*tickets: Ticket) -> None:
    submitter(Path("/nowhere")).cancel(tickets)


def cancel_within(tickets: Sequence[Ticket], *, patience_s: float) -> None:
    submitter(Path("/nowhere"), patience_s=patience_s).cancel(tickets)


def find_around(folder: Path, command: str) -> tuple[list[Ticket] | None, list[Ticket], list[Ticket] | None]:
    """Look for a submission before and after it is made."""
    batch = batch_of([write_job(folder, command, 0, [])])
    before = submitter(folder).find(batch)
    tickets = submitter(folder).submit(batch)
    return before, tickets, submitter(folder).find(batch)


def preview(folder: Path, overrides: Sequence[str]) -> str:
    return submitter(folder).preview(batch_of([write_job(folder, "true", 0, overrides)])).script


def wait_until_final(tickets: Sequence[Ticket], *, timeout_s: float = 300) -> list[Known]:
    """Return what is known once all have ended."""
    deadline = time.monotonic() + timeout_s
    while True:
        known = query(tickets).known
        if len(known) == len(tickets) and all(item.state.is_final for item in known.values()):
            return [known[ticket] for ticket in tickets]
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout_s} s: {known}")
        time.sleep(0.3)


def wait_for_exit_code(ticket: Ticket, *, timeout_s: float = 300) -> Known:
    """Return what is known once the accounting, which is late, has told the exit code of an ended job."""
    deadline = time.monotonic() + timeout_s
    while True:
        (known,) = wait_until_final([ticket], timeout_s=timeout_s)
        if known.exit_code is not None or time.monotonic() > deadline:
            return known
        time.sleep(0.3)


def wait_until_running(ticket: Ticket, *, timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while (known := query([ticket]).known.get(ticket)) is None or known.raw != "RUNNING":
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout_s} s: {known}")
        time.sleep(0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """A submission that was looked up before and after it was made."""

    batch: Batch
    before: list[Ticket] | None
    tickets: list[Ticket]
    found: list[Ticket] | None


def submit_and_find(folder: Path, hold: str) -> list[Sought]:
    """Look for a job that waits, held by *hold*, and for the same once it was cancelled and has ended."""
    batch = batch_of([write_job(folder, "true", 0, [hold])])
    before = submitter(folder).find(batch)
    tickets = submitter(folder).submit(batch)
    waiting = Sought(batch=batch, before=before, tickets=tickets, found=submitter(folder).find(batch))
    cancel(*tickets)
    wait_until_final(tickets)
    return [waiting, replace(waiting, found=submitter(folder).find(batch))]


def submit_packs_and_find(folder: Path) -> tuple[list[Ticket] | None, list[Ticket], str]:
    """Submit five runs of two minutes in packs of two; return them as found, and their job's walltime."""
    words = ["resources.walltime=2m", "resources.extra_directives=['--hold']"]
    batch = batch_of([write_job(folder, "true", index, words) for index in range(5)], in_packs_of=2)
    tickets = submitter(folder).submit(batch)
    found = submitter(folder).find(batch)
    shown = subprocess.run(["scontrol", "show", "job", tickets[0].job_id], capture_output=True, text=True, check=True)
    cancel(*tickets)
    return found, tickets, shown.stdout.partition("TimeLimit=")[2].split()[0]


def find_again(folder: Path, batch: Batch) -> list[Ticket] | None:
    return submitter(folder).find(batch)


def find_new(folder: Path) -> list[Ticket] | None:
    return submitter(folder).find(batch_of([write_job(folder, "true", 0, [])]))


def submit_requeueing(folder: Path, option: str) -> tuple[Ticket, Path]:
    """Submit a job like that of a run, which requeues itself when it runs for the first time; with *option*."""
    job = write_job(folder, "true", 0, [])
    lines = [
        *job.script.read_text(encoding="utf-8").splitlines()[:-1],
        "echo ${SLURM_RESTART_COUNT:-0} >>restarts",
        f'[ "$SLURM_RESTART_COUNT" ] || {{ $HPCML_REQUEUE "{job.source}" >requeued; sleep 60; }}',
    ]
    return _submit_script(job, lines, option), job.run_dir.path


def submit_leaving_alone(folder: Path) -> tuple[Ticket, Path]:
    """Submit a job as that of a pack is, whose run leaves it; it depends on one that has ended and is forgotten."""
    job = write_job(
        folder,
        """bash -c 'echo [$HPCML_MASTER_ADDR] $SLURM_JOB_PARTITION'""",
        0,
        ["resources.dependency='afterany:1'"],
    )
    lines = [line for line in job.script.read_text(encoding="utf-8").splitlines()[:-1] if "--dependency" not in line]
    leave = ["export HPCML_MASTER_ADDR=old SLURM_NTASKS=7", f'$HPCML_REQUEUE --alone "{job.source}" >requeued']
    return _submit_script(job, [*lines, *leave], ""), job.run_dir.path


def _submit_script(job: Job, lines: Sequence[str], option: str) -> Ticket:
    script = job.run_dir.path / "other.sh"
    script.write_text("\n".join([*lines, ""]), encoding="utf-8")
    words = ["sbatch", "--parsable", *filter(None, [option]), str(script)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return Ticket(scheduler="slurm", job_id=done.stdout.strip())


def submit_listening(folder: Path, *overrides: str) -> tuple[Ticket, Path]:
    """Submit a job like that of a run, with a program in place of the agent that tells of USR1 and ends with 7."""
    job = write_job(folder, "true", 0, overrides)
    program = folder / "listen.py"
    program.write_text(
        "import glob, os, signal, time\n"
        "node, nodes = os.environ['SLURM_NODEID'], int(os.environ['SLURM_NNODES'])\n"
        # srun ends all nodes' programs when one of them fails, so none fails before all have been told
        "def told(*_):\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of srun, when the program of the other node has failed\n"
        "    open(f'told-{node}', 'w').close()\n"
        "    until = time.monotonic() + 60\n"
        "    while len(glob.glob('told-*')) < nodes and time.monotonic() < until: time.sleep(0.1)\n"
        "    os._exit(7)\n"
        f"os.chdir({str(folder)!r})\n"
        "signal.signal(signal.SIGUSR1, told)\n"
        "with open(f'up-{node}', 'w') as up: up.write(os.environ['SLURM_JOB_NAME'])\n"
        "time.sleep(60)\n",
        encoding="utf-8",
    )
    *lines, last = job.script.read_text(encoding="utf-8").splitlines()
    start = last.partition(sys.executable)[0]
    return _submit_script(job, [*lines, f"{start}{sys.executable} {program}"], ""), job.run_dir.path
