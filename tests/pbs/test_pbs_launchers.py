"""Jobs on two nodes of the PBS double, with each of the programs that may reach the second."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcml.cluster import LAUNCHERS
from hpcml.schedulers.pbs import PbsSubmitter
from hpcml.schedulers.submitter import Job
from hpcml.states import State
from tests.cluster.pbs import remote
from tests.cluster.pbs.double import PbsDouble
from tests.pbs.runs import batch_of, events, output, until_final, wait_for_start, write_job

TWO_NODES = ("strategy=ddp", "strategy.processes_per_node=1", "resources.nodes=2")


@pytest.fixture
def reachable(pbs: PbsDouble) -> PbsDouble:
    """Nodes that have an ssh and an mpiexec too."""
    for name in ("ssh", "mpiexec"):
        words = shlex.join([sys.executable, "-S", "-E", remote.__file__, name])
        (pbs.bin / name).write_text(f'#!/bin/sh\necho {name} >>"{pbs.state}/launched"\nexec {words} "$@"\n')
        (pbs.bin / name).chmod(0o755)
    return pbs


def hide_other_pbs(job: Job) -> None:
    """Take out the line that looks where PBS is installed: this machine may have one."""
    lines = job.script.read_text().splitlines()
    kept = [line for line in lines if "/etc/pbs.conf" not in line]
    assert len(kept) == len(lines) - 1
    job.script.write_text("\n".join([*kept, ""]))


def job_on_two_nodes(submitter: PbsSubmitter, folder: Path, code: str, launcher: str | None = None) -> Job:
    words = [] if launcher is None else [f"cluster.launcher={launcher}"]
    return write_job(submitter, folder, [sys.executable, "-c", code], *TWO_NODES, *words)


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_starts_an_agent_on_each_node(submitter: PbsSubmitter, folder: Path, launcher: str) -> None:
    code = "import os; print(*[os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR')], os.environ['PBS_JOBID'])"
    job = job_on_two_nodes(submitter, folder, code, launcher)

    (ticket,) = submitter.submit(batch_of([job]))
    known = until_final(submitter, [ticket])[ticket]

    assert (known.state, known.exit_code) == (State.COMPLETED, "0")
    assert [output(job, rank=rank) for rank in (0, 1)] == [f"{rank} 2 pbs01 {ticket.job_id}\n" for rank in (0, 1)]
    assert not list(job.run_dir.path.glob(f"job.sh.{ticket.job_id}*"))


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize(("launcher", "code"), [("pbs_tmrsh", "5"), ("ssh", "5"), ("mpiexec", "5"), ("pbsdsh", "0")])
def test_the_exit_status_is_that_of_the_node_that_failed(
    submitter: PbsSubmitter, folder: Path, launcher: str, code: str
) -> None:
    job = job_on_two_nodes(submitter, folder, "import os, sys; sys.exit(5 * int(os.environ['RANK']))", launcher)

    (ticket,) = submitter.submit(batch_of([job]))

    assert until_final(submitter, [ticket])[ticket].exit_code == code
    assert 5 in [event["exit_code"] for event in events(job, "attempt_ended")]  # which pbsdsh does not tell


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_ends_the_job_ends_the_agents_of_all_nodes(
    submitter: PbsSubmitter, folder: Path, pbs: PbsDouble, launcher: str
) -> None:
    pbs.set(kill_delay_s=10.0)
    job = job_on_two_nodes(submitter, folder, "import time; time.sleep(60)", launcher)
    (ticket,) = submitter.submit(batch_of([job]))
    wait_for_start(job, agents=2)

    submitter.cancel([ticket])
    known = until_final(submitter, [ticket])[ticket]

    assert known.state is State.CANCELLED
    gone_by = time.monotonic() + 300
    while left := subprocess.run(["pgrep", "-f", str(job.run_dir.path)], capture_output=True, check=False).stdout:
        assert time.monotonic() < gone_by, left
        time.sleep(0.1)


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_signal_to_the_job_reaches_the_agents_of_all_nodes(
    submitter: PbsSubmitter, folder: Path, launcher: str
) -> None:
    """With a program in place of the agent, so that it is the script that is tried."""
    job = job_on_two_nodes(submitter, folder, "pass", launcher)
    agent = folder / "agent.sh"
    agent.write_text(
        f"cd {shlex.quote(str(folder))}\n"
        'trap "touch told-$HPCML_NODE_RANK; exit 7" USR1\n'
        "touch up-$HPCML_NODE_RANK\nfor _ in {1..300}; do sleep 0.1; done\n"
    )
    lines = job.script.read_text().splitlines()
    job.script.write_text("\n".join([*lines[:-1], f"exec /bin/bash {shlex.quote(str(agent))}", ""]))
    (ticket,) = submitter.submit(batch_of([job]))
    until = time.monotonic() + 300
    while not all((folder / f"up-{rank}").exists() for rank in (0, 1)):
        assert time.monotonic() < until
        time.sleep(0.05)

    subprocess.run(["qsig", "-s", "SIGUSR1", ticket.job_id], check=True)
    known = until_final(submitter, [ticket])[ticket]

    assert all((folder / f"told-{rank}").exists() for rank in (0, 1))
    assert known.exit_code == "7"


def test_the_first_launcher_that_is_there_is_taken(submitter: PbsSubmitter, folder: Path, reachable: PbsDouble) -> None:
    job = job_on_two_nodes(submitter, folder, "pass")
    hide_other_pbs(job)
    for name in ("pbs_tmrsh", "pbsdsh"):
        (reachable.bin / name).unlink()

    (ticket,) = submitter.submit(batch_of([job]))

    assert until_final(submitter, [ticket])[ticket].state is State.COMPLETED
    assert (reachable.state / "launched").read_text() == "ssh\n"


def test_a_node_without_a_launcher_says_so_in_one_line(submitter: PbsSubmitter, folder: Path, pbs: PbsDouble) -> None:
    (pbs.bin / "pbsdsh").unlink()
    job = job_on_two_nodes(submitter, folder, "pass", "pbsdsh")
    hide_other_pbs(job)

    (ticket,) = submitter.submit(batch_of([job]))

    assert until_final(submitter, [ticket])[ticket].exit_code == "127"
    said = (job.run_dir.logs / f"{ticket.job_id}.OU").read_text()
    assert said == "no pbsdsh on this node to reach the others: see cluster.launcher\n"
