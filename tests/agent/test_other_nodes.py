"""A run on several nodes is COMPLETED once all of them have said so, and nobody waits for one that is gone."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from hpcml.agent.assignment import Turn, read_turn
from hpcml.agent.claim import Hold, Pace
from hpcml.agent.other_nodes import ended_everywhere
from hpcml.agent.outcome import Outcome
from hpcml.agent.signals import Inbox
from hpcml.model.state import State
from hpcml.runs.layout import RunDir
from hpcml.runs.state import read_fold
from hpcml_client.journal import JournalWriter
from tests.agent.node import ON_SLURM, MakeRun, Requeue, agents_of, start_agent, told, wait_for

TWO_NODES = (*ON_SLURM, "strategy=ddp", "strategy.processes_per_node=1", "resources.nodes=2")
SUCCESS = Outcome(state=State.COMPLETED, exit_code=0, signal=None, reason=None, wall_s=1.0)
OTHER_FOLLOWS = """
import os, pathlib, sys, time
while os.environ["RANK"] == "1" and not pathlib.Path(os.environ["HPCML_RUN_DIR"], "go").exists(): time.sleep(0.02)
sys.exit({status} if os.environ["RANK"] == "1" else 0)
"""


def first_has_ended(run_dir: RunDir) -> bool:
    """Whether the agent of node 0 has journalled what its program did, and waits."""
    return bool([said for said in told(run_dir, "telemetry") if said["node"] == 0])


def start_both(run_dir: RunDir, **variables: str) -> tuple[int, list]:  # type: ignore[type-arg]
    both = [start_agent(str(run_dir.path), SLURM_NODEID=node, SLURM_JOB_ID="1", **variables) for node in ("0", "1")]
    wait_for(lambda: first_has_ended(run_dir) and len(told(run_dir, "workload_started")) == 2, "the first node's end")
    time.sleep(1.0)  # in which it would tell its end
    return both[0].pid, both


@pytest.mark.parametrize(("status", "state"), [(0, State.COMPLETED), (3, State.FAILED)])
def test_a_run_has_ended_once_all_its_nodes_have_said_so(make_run: MakeRun, status: int, state: State) -> None:
    run_dir = make_run(OTHER_FOLLOWS.format(status=status), *TWO_NODES)
    _, both = start_both(run_dir)

    before = read_fold(run_dir).state
    (run_dir.path / "go").touch()

    assert before is State.RUNNING
    assert [one.wait(timeout=60) for one in both] == [0, status]
    assert read_fold(run_dir).state is state
    assert sorted(end["state"] for end in told(run_dir, "attempt_ended")) == sorted(["COMPLETED", state.value])


def test_a_signal_to_a_node_that_waits_leaves_the_cause_to_the_scheduler(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run(OTHER_FOLLOWS.format(status=0), *TWO_NODES)
    pid, both = start_both(run_dir, HPCML_JOB_END=str(tmp_path / "end"))

    (tmp_path / "end").write_text("node 1 (cn2) ended first, with exit status 137\n")
    os.kill(pid, signal.SIGTERM)

    assert both[0].wait(timeout=60) != 0
    (end,) = told(run_dir, "attempt_interrupted")
    assert (end["state"], end["reason"]) == ("FAILED", "node 1 (cn2) ended first, with exit status 137")
    both[1].terminate()
    both[1].wait(timeout=60)


@pytest.fixture
def turn(make_run: MakeRun) -> Turn:
    run_dir = make_run("pass", *TWO_NODES)
    run_dir.logs.mkdir(exist_ok=True)
    return read_turn(run_dir.manifest, None, {"SLURM_NODEID": "0"})


def hold_of(turn: Turn) -> Hold:
    return Hold(turn.run_dir, 0, 0, Pace(beat_s=0.05, silence_s=0.6, look_s=0.02))


def judged(turn: Turn) -> Outcome:
    inbox = Inbox()
    with inbox.listening():
        return ended_everywhere(turn, hold_of(turn), SUCCESS, inbox, why_ended=lambda: None)


def test_an_agent_that_is_silent_for_long_has_failed(turn: Turn) -> None:
    turn.run_dir.agent_log(0, 1).touch()

    found = judged(turn)

    assert (found.state, found.interrupted) == (State.FAILED, False)
    assert found.reason == "the agent of node 1 told no end, and gave no sign of life for 0.6 s"


def test_an_agent_that_lives_is_waited_for_however_long_that_takes(turn: Turn) -> None:
    other = Hold(turn.run_dir, 0, 1, hold_of(turn).pace)
    turn.run_dir.agent_log(0, 1).touch()

    def live_and_end() -> None:
        until = time.monotonic() + 6.0
        while time.monotonic() < until:
            other.beat()
            time.sleep(0.05)
        with JournalWriter.open(str(turn.run_dir.journals), run=turn.uid, attempt=0, writer="agent1") as journal:
            journal.event("attempt_ended", {"state": "COMPLETED", "exit_code": 0})

    thread = threading.Thread(target=live_and_end)
    thread.start()
    began = time.monotonic()
    found = judged(turn)
    thread.join()

    assert found == SUCCESS
    assert time.monotonic() - began >= 6.0


def test_a_run_of_which_one_node_was_interrupted_is_not_completed(make_run: MakeRun) -> None:
    run_dir = make_run(OTHER_FOLLOWS.format(status=0), *TWO_NODES)
    _, both = start_both(run_dir)

    os.kill(both[1].pid, signal.SIGTERM)  # by the system that shuts its node down, say: the first is told nothing

    assert [one.wait(timeout=60) != 0 for one in both] == [True, True]
    fold = read_fold(run_dir)
    assert (fold.state, fold.is_settled) == (State.CANCELLED, False)
    assert fold.reason == "cancelled by SIGTERM"


def test_nobody_waits_for_nodes_of_a_run_that_was_removed(make_run: MakeRun) -> None:
    run_dir = make_run(OTHER_FOLLOWS.format(status=0), *TWO_NODES)
    _, both = start_both(run_dir)

    shutil.rmtree(run_dir.path)

    both[0].wait(timeout=60)
    both[1].terminate()
    both[1].wait(timeout=60)


def test_what_other_nodes_left_at_a_checkpoint_goes_on_though_the_first_was_done(
    make_run: MakeRun, requeue: Requeue
) -> None:
    run_dir = make_run(OTHER_FOLLOWS.format(status=75), *TWO_NODES)
    words = requeue("""echo '{"scheduler": "slurm", "job_id": "2"}'""")
    _, both = start_both(run_dir, HPCML_REQUEUE=words)

    (run_dir.path / "go").touch()

    assert [one.wait(timeout=60) for one in both] == [75, 0]
    fold = read_fold(run_dir)
    assert (fold.state, fold.attempt, fold.requeues) == (State.PENDING, 1, 1)
    assert [end["state"] for end in told(run_dir, "attempt_ended")] == ["TIMEOUT"] * 2


def test_a_run_is_put_back_once_the_slowest_node_has_left_its_checkpoint(make_run: MakeRun, requeue: Requeue) -> None:
    code = """
import os, pathlib, sys, time
if os.environ["RANK"] == "1": time.sleep(14); pathlib.Path(os.environ["HPCML_RUN_DIR"], "saved").touch()
sys.exit(75)
"""
    run_dir = make_run(code, *TWO_NODES)
    saved = shlex.quote(str(run_dir.path / "saved"))
    words = requeue(f"""test -e {saved} || exit 9; echo '{{"scheduler": "slurm", "job_id": "2"}}'""")

    assert agents_of(run_dir, 2, SLURM_JOB_ID="1", HPCML_REQUEUE=words) == [75, 0]
    assert read_fold(run_dir).state is State.PENDING


def test_the_nodes_of_a_job_leave_together(make_run: MakeRun) -> None:
    """Flux ends a job some seconds after its first task has left, however that was."""
    code = OTHER_FOLLOWS.replace('"1"', '"0"').format(status=0)  # it is the first that follows
    run_dir = make_run(code, *TWO_NODES)
    both = [start_agent(str(run_dir.path), SLURM_NODEID=node, SLURM_JOB_ID="1") for node in ("0", "1")]
    wait_for(lambda: told(run_dir, "attempt_ended"), "the other node's end")
    time.sleep(2.0)

    before = [one.poll() for one in both]
    (run_dir.path / "go").touch()

    assert before == [None, None]
    assert [one.wait(timeout=60) for one in both] == [0, 0]
    assert read_fold(run_dir).state is State.COMPLETED


LEAVES_A_DAEMON = """
import os, pathlib, subprocess, sys, time
folder, rank = pathlib.Path(os.environ["HPCML_RUN_DIR"]), os.environ["RANK"]
daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
(folder / f"daemon{rank}.draft").write_text(str(daemon.pid))
(folder / f"daemon{rank}.draft").rename(folder / f"daemon{rank}")
while rank == "1" and not (folder / "go").exists(): time.sleep(0.02)
"""
