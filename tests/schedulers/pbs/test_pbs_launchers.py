"""Jobs on two nodes of the PBS double, with each of the programs that may reach the second."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcml.model.cluster import LAUNCHERS
from hpcml.model.state import State
from hpcml.schedulers.contract import Job
from hpcml.schedulers.driver import Driver
from tests.cluster.pbs import remote
from tests.cluster.pbs.double import PbsDouble
from tests.schedulers.pbs.runs import batch_of, events, output, until_final, wait_for_start, write_job

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


def job_on_two_nodes(submitter: Driver, folder: Path, code: str, launcher: str | None = None) -> Job:
    words = [] if launcher is None else [f"cluster.launcher={launcher}"]
    return write_job(submitter, folder, [sys.executable, "-c", code], *TWO_NODES, *words)


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_starts_an_agent_on_each_node(submitter: Driver, folder: Path, launcher: str) -> None:
    code = "import os; print(*[os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR')], os.environ['PBS_JOBID'])"
    job = job_on_two_nodes(submitter, folder, code, launcher)

    (ticket,) = submitter.submit(batch_of([job]))
    known = until_final(submitter, [ticket])[ticket]

    assert (known.state, known.exit_code) == (State.COMPLETED, "0")
    assert [output(job, rank=rank) for rank in (0, 1)] == [f"{rank} 2 pbs01 {ticket.job_id}\n" for rank in (0, 1)]
    assert not list(job.run_dir.path.glob(f"job.sh.{ticket.job_id}*"))


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_exit_status_is_that_of_the_node_that_failed(submitter: Driver, folder: Path, launcher: str) -> None:
    job = job_on_two_nodes(submitter, folder, "import os, sys; sys.exit(5 * int(os.environ['RANK']))", launcher)

    (ticket,) = submitter.submit(batch_of([job]))

    assert until_final(submitter, [ticket])[ticket].exit_code == "5"
    assert 5 in [event["exit_code"] for event in events(job, "attempt_ended")]


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_first_node_that_fails_ends_the_others(
    submitter: Driver, folder: Path, launcher: str, failing: int
) -> None:
    code = f"import os, sys, time; sys.exit(5) if os.environ['RANK'] == '{failing}' else time.sleep(3600)"
    job = job_on_two_nodes(submitter, folder, code, launcher)

    (ticket,) = submitter.submit(batch_of([job]))

    assert until_final(submitter, [ticket])[ticket].exit_code == "5"
    assert [event["exit_code"] for event in events(job, "attempt_ended")] == [5]
    (other,) = events(job, "attempt_interrupted")
    assert other["state"] == "FAILED"
    assert other["reason"] == f"node {failing} (pbs0{failing + 1}) ended first, with exit status 5"
    assert not list(job.run_dir.path.glob(f"job.sh.{ticket.job_id}*"))


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_agent_that_is_killed_ends_those_of_the_other_nodes(
    submitter: Driver, folder: Path, launcher: str, killed: int
) -> None:
    job = job_on_two_nodes(submitter, folder, "import time; time.sleep(3600)", launcher)
    (ticket,) = submitter.submit(batch_of([job]))
    wait_for_start(job, agents=2)
    starts = {event["node"]: event["pid"] for event in events(job, "attempt_started")}

    os.kill(int(str(starts[killed])), signal.SIGKILL)

    assert until_final(submitter, [ticket])[ticket].state is State.FAILED
    (other,) = events(job, "attempt_interrupted")
    assert other["state"] == "FAILED"
    assert str(other["reason"]).startswith(f"node {killed} (pbs0{killed + 1}) ended first, with exit status ")


def test_all_nodes_follow_the_walltime_that_the_first_was_told(submitter: Driver, folder: Path, pbs: PbsDouble) -> None:
    pbs.set(closed=True)
    code = "import time; time.sleep(45)"
    job = write_job(submitter, folder, [sys.executable, "-c", code], *TWO_NODES, "resources.walltime=80s")
    (ticket,) = submitter.submit(batch_of([job]))
    subprocess.run(["qalter", "-l", "walltime=00:10:00", ticket.job_id], check=True)

    pbs.set()

    assert until_final(submitter, [ticket])[ticket].state is State.COMPLETED
    assert [event["state"] for event in events(job, "attempt_ended")] == ["COMPLETED", "COMPLETED"]
    assert [event["limit_s"] for event in events(job, "time_limit")] == [600]  # asked by one of them


def test_an_agent_that_does_not_obey_is_killed(submitter: Driver, folder: Path) -> None:
    gate = folder / "gate"
    code = (
        "import os, sys, time\n"
        f"while os.environ['RANK'] == '1' or not os.path.exists({str(gate)!r}): time.sleep(0.1)\n"
        "sys.exit(5)"
    )
    job = write_job(submitter, folder, [sys.executable, "-c", code], *TWO_NODES, "workload.stop_grace=1s")
    (ticket,) = submitter.submit(batch_of([job]))
    wait_for_start(job, agents=2)
    (start,) = [event for event in events(job, "attempt_started") if event["node"] == 1]
    os.kill(int(str(start["pid"])), signal.SIGSTOP)

    gate.touch()

    assert until_final(submitter, [ticket])[ticket].exit_code == "5"
    assert not Path(f"/proc/{start['pid']}").exists()


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_ends_the_job_ends_the_agents_of_all_nodes(
    submitter: Driver, folder: Path, pbs: PbsDouble, launcher: str
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
def test_a_signal_to_the_job_reaches_the_agents_of_all_nodes(submitter: Driver, folder: Path, launcher: str) -> None:
    """With a program in place of the agent, so that it is the script that is tried."""
    job = job_on_two_nodes(submitter, folder, "pass", launcher)
    agent = folder / "agent.sh"
    agent.write_text(
        f"cd {shlex.quote(str(folder))}\n"
        'trap "touch told-$HPCML_NODE_RANK; exit 7" USR1\n'
        "touch up-$HPCML_NODE_RANK\nfor _ in {1..3000}; do sleep 0.1; done\n"
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
    assert known.exit_code == "7", [path.read_text() for path in job.run_dir.path.rglob("*.OU")]


def test_the_first_launcher_that_is_there_is_taken(submitter: Driver, folder: Path, reachable: PbsDouble) -> None:
    job = job_on_two_nodes(submitter, folder, "pass")
    hide_other_pbs(job)
    for name in ("pbs_tmrsh", "pbsdsh"):
        (reachable.bin / name).unlink()

    (ticket,) = submitter.submit(batch_of([job]))

    assert until_final(submitter, [ticket])[ticket].state is State.COMPLETED
    assert (reachable.state / "launched").read_text() == "ssh\n"


def test_a_node_without_a_launcher_says_so_in_one_line(submitter: Driver, folder: Path, pbs: PbsDouble) -> None:
    (pbs.bin / "pbsdsh").unlink()
    job = job_on_two_nodes(submitter, folder, "pass", "pbsdsh")
    hide_other_pbs(job)

    (ticket,) = submitter.submit(batch_of([job]))

    assert until_final(submitter, [ticket])[ticket].exit_code == "127"
    said = (job.run_dir.logs / f"{ticket.job_id}.OU").read_text()
    assert said == "no pbsdsh on this node to reach the others: see cluster.launcher\n"
