"""Jobs that want to carry out one run: one of them does, and a run that is done is not done again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from hpcml.agent.assignment import read_turn
from hpcml.agent.claim import Hold, Left, Pace, enter
from hpcml.agent.signals import Inbox
from hpcml.model.state import State
from hpcml.runs.cancellation import is_cancelled, mark_cancelled
from hpcml.runs.layout import RunDir
from hpcml.runs.state import EventName, read_fold
from hpcml_client.journal import JournalWriter
from tests.agent.node import MakeRun, agent, agents_of, start_agent, told, told_with_attempts, wait_for

ON_SLURM = ("cluster.scheduler=slurm", "cluster.name=testslurm")
ON_PBS = ("cluster.scheduler=pbs", "cluster.name=testpbs")
# One line when it begins and one when it ends: two programs at once would mix theirs.
WORKS = "import time; f = open('ran', 'a', 1); print('in', file=f); time.sleep({s}); print('out', file=f)"
ELSEWHERE = {"hostname": "another-node", "pid": 4, "boot_id": "b", "pid_namespace": "pid:[7]", "start_ticks": 1}
FAST = Pace(beat_s=0.05, silence_s=1.0, look_s=0.02)


def ran(tmp_path: Path) -> list[str]:
    return (tmp_path / "ran").read_text().split()


def say(run_dir: RunDir, name: str, attempt: int = 0, writer: str = "agent", **details: object) -> None:
    with JournalWriter.open(str(run_dir.journals), run=run_dir.uid, attempt=attempt, writer=writer) as journal:
        journal.event(name, details)


def decide(run_dir: RunDir, **environ: str) -> Hold | Left:
    inbox = Inbox()
    with inbox.listening():
        return enter(read_turn(run_dir.manifest, None, environ), environ, inbox, pace=FAST)


def test_a_run_that_has_completed_is_not_run_again_unless_that_is_asked_for(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run(WORKS.format(s=0), *ON_SLURM)
    agent(str(run_dir.path), SLURM_JOB_ID="1")

    again = agent(str(run_dir.path), SLURM_JOB_ID="2")

    assert again.returncode == 0
    assert "attempt 0 has COMPLETED" in again.stderr
    assert ran(tmp_path) == ["in", "out"]
    (left,) = told(run_dir, "attempt_left")
    assert (left["job_id"], left["reason"]) == ("2", "attempt 0 has COMPLETED")
    assert (read_fold(run_dir).state, read_fold(run_dir).attempt) == (State.COMPLETED, 0)
    assert agent(str(run_dir.path), SLURM_JOB_ID="3", HPCML_RUN_AGAIN="1").returncode == 0
    assert ran(tmp_path) == ["in", "out"] * 2
    assert read_fold(run_dir).attempt == 1


@pytest.mark.parametrize(("code", "state"), [("pass", "COMPLETED"), ("raise SystemExit(3)", "FAILED")])
def test_a_job_of_pbs_whose_end_was_not_heard_ends_the_same_way_again(make_run: MakeRun, code: str, state: str) -> None:
    run_dir = make_run(code, *ON_PBS)
    first = agent(str(run_dir.path), PBS_JOBID="7.pbs")

    again = agent(str(run_dir.path), PBS_JOBID="7.pbs", HPCML_RUN_AGAIN="1")

    assert again.returncode == first.returncode
    assert [number for number, _ in told_with_attempts(run_dir, "attempt_started")] == [0]
    assert read_fold(run_dir).state.value == state


def test_a_twin_of_a_failed_run_that_comes_late_does_not_run_it_again(make_run: MakeRun) -> None:
    run_dir = make_run("raise SystemExit(3)", *ON_PBS)
    agent(str(run_dir.path), PBS_JOBID="7.pbs")

    late = agent(str(run_dir.path), PBS_JOBID="8.pbs")

    assert late.returncode == 1
    assert "attempt 0 has FAILED (HPCML_RUN_AGAIN=1 runs it again)" in late.stderr
    assert (read_fold(run_dir).state, read_fold(run_dir).attempt) == (State.FAILED, 0)
    agent(str(run_dir.path), PBS_JOBID="9.pbs", HPCML_RUN_AGAIN="1")
    assert [number for number, _ in told_with_attempts(run_dir, "attempt_started")] == [0, 1]


def test_a_twin_of_a_cancelled_run_that_comes_late_does_not_start_it(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run(WORKS.format(s=60), *ON_PBS)
    mark_cancelled(run_dir)
    first = agent(str(run_dir.path), PBS_JOBID="7.pbs")
    assert first.returncode != 0
    assert is_cancelled(run_dir)  # kept once obeyed, until hpcml retry takes it away

    agent(str(run_dir.path), PBS_JOBID="8.pbs")

    assert read_fold(run_dir).state is State.CANCELLED
    assert not (tmp_path / "ran").exists()


def test_a_job_leaves_a_run_that_another_one_works_on(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run("import os; open('began', 'w'); " + WORKS.format(s=8), *ON_SLURM)
    first = start_agent(str(run_dir.path), SLURM_JOB_ID="1")
    wait_for((tmp_path / "began").exists, "the program starts")

    second = agent(str(run_dir.path), SLURM_JOB_ID="2")

    assert second.returncode == 1
    assert f"attempt 0 (job 1, process {first.pid} on " in second.stderr
    assert first.wait(timeout=300) == 0
    assert ran(tmp_path) == ["in", "out"]
    assert read_fold(run_dir).state is State.COMPLETED


def test_a_retry_that_comes_too_late_leaves_and_the_run_stays_what_it_was(make_run: MakeRun) -> None:
    run_dir = make_run("pass", *ON_SLURM)
    agent(str(run_dir.path), SLURM_JOB_ID="1")
    say(run_dir, EventName.SUBMITTED, 1, "retry", scheduler="slurm", job_id="2", why="retried after unknown")
    assert read_fold(run_dir).state is State.PENDING

    agent(str(run_dir.path), SLURM_JOB_ID="2")

    seen = read_fold(run_dir)
    assert (seen.state, seen.attempt) == (State.COMPLETED, 0)
    assert seen.job is not None
    assert seen.job.job_id == "1"


def test_of_jobs_that_start_in_the_same_moment_one_does_the_run(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run(WORKS.format(s=3), *ON_SLURM)

    agents = [start_agent(str(run_dir.path), SLURM_JOB_ID=str(number)) for number in range(5)]

    ends = Counter(one.wait(timeout=300) for one in agents)
    assert ran(tmp_path) == ["in", "out"]
    assert len(told(run_dir, "attempt_left")) == 4
    assert ends[0] >= 1
    assert read_fold(run_dir).state is State.COMPLETED


def test_a_job_that_is_restarted_waits_for_its_own_earlier_agent(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run("open('began', 'w'); " + WORKS.format(s=5), *ON_SLURM)
    first = start_agent(str(run_dir.path), SLURM_JOB_ID="1")
    wait_for((tmp_path / "began").exists, "the program starts")

    second = agent(str(run_dir.path), SLURM_JOB_ID="1", SLURM_RESTART_COUNT="1")

    assert first.wait(timeout=300) == 0
    assert second.returncode == 0
    assert "waiting for the end of attempt 0" in second.stderr
    assert ran(tmp_path) == ["in", "out"]


def test_an_agent_that_was_killed_does_not_hold_up_the_next(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run(
        "import os, time; open('ran', 'a').write('x '); time.sleep(300 if os.environ['HPCML_ATTEMPT'] == '0' else 0)"
    )
    first = start_agent(str(run_dir.path))
    wait_for(lambda: (tmp_path / "ran").exists() and ran(tmp_path), "the program starts")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()

    assert agent(str(run_dir.path)).returncode == 0
    assert ran(tmp_path) == ["x", "x"]
    assert read_fold(run_dir).attempt == 1


def test_whoever_cannot_be_seen_and_is_silent_is_dead(make_run: MakeRun) -> None:
    run_dir = make_run("pass", *ON_SLURM)
    say(run_dir, EventName.ATTEMPT_STARTED, job_id="1", array_index=None, node=0, **ELSEWHERE)

    entered = decide(run_dir, SLURM_JOB_ID="1", SLURM_RESTART_COUNT="1")

    assert isinstance(entered, Hold)
    assert entered.attempt == 1


def test_whoever_cannot_be_seen_but_gives_a_sign_of_life_is_alive(make_run: MakeRun) -> None:
    run_dir = make_run("pass", *ON_SLURM)
    say(run_dir, EventName.ATTEMPT_STARTED, job_id="1", array_index=None, node=0, **ELSEWHERE)
    run_dir.logs.mkdir(exist_ok=True)
    run_dir.agent_log(0, 0).touch()
    os.utime(run_dir.agent_log(0, 0), (5.0, 5.0))  # the clock of that node is years behind ours
    alive = Hold(run_dir, 0, 0, FAST)
    ended = threading.Event()

    def live() -> None:
        while not ended.wait(0.05):
            alive.beat()

    thread = threading.Thread(target=live)
    thread.start()
    entered = decide(run_dir, SLURM_JOB_ID="2")
    ended.set()
    thread.join()

    assert isinstance(entered, Left)
    assert entered.reason == "attempt 0 (job 1, process 4 on another-node) is at work on this run"


def test_a_program_that_was_taken_for_dead_is_ended_when_it_finds_out(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run("open('began', 'w'); import time; time.sleep(300)", *ON_SLURM)
    first = start_agent(str(run_dir.path), SLURM_JOB_ID="1")
    wait_for((tmp_path / "began").exists, "the program starts")

    run_dir.claim(1).write_text(json.dumps({"job_id": "1", "start": "1", **ELSEWHERE}))

    assert first.wait(timeout=300) == 1
    (end,) = told(run_dir, "attempt_interrupted")
    assert end["reason"] == "attempt 1 has taken the run over"


def test_all_nodes_of_a_job_are_in_the_same_attempt_however_late_they_come(make_run: MakeRun) -> None:
    run_dir = make_run("pass", *ON_SLURM, "strategy=ddp", "strategy.processes_per_node=1", "resources.nodes=3")
    job = {"SLURM_JOB_ID": "1"}
    second = start_agent(str(run_dir.path), SLURM_NODEID="1", **job)  # it comes first, and waits
    time.sleep(1)

    first = start_agent(str(run_dir.path), SLURM_NODEID="0", **job)
    wait_for(lambda: told(run_dir, "attempt_ended"), "the second node's end")
    agent(str(run_dir.path), SLURM_NODEID="2", **job)

    assert [one.wait(timeout=300) for one in (first, second)] == [0, 0]
    started = told_with_attempts(run_dir, "attempt_started")
    assert sorted((number, details["node"]) for number, details in started) == [(0, 0), (0, 1), (0, 2)]


def test_where_the_first_node_leaves_the_others_leave(make_run: MakeRun) -> None:
    run_dir = make_run("pass", *ON_SLURM, "strategy=ddp", "strategy.processes_per_node=1", "resources.nodes=2")
    agents_of(run_dir, 2, SLURM_JOB_ID="1")

    late = start_agent(str(run_dir.path), SLURM_NODEID="1", SLURM_JOB_ID="2")
    time.sleep(1)
    first = agent(str(run_dir.path), SLURM_NODEID="0", SLURM_JOB_ID="2")

    assert (first.returncode, late.wait(timeout=300)) == (0, 0)
    assert len(told(run_dir, "attempt_started")) == 2
    assert len(told(run_dir, "attempt_left")) == 1


def test_no_log_or_journal_holds_up_who_looks_for_a_sign_of_life(make_run: MakeRun) -> None:
    run_dir = make_run("pass", *ON_SLURM)
    say(run_dir, EventName.ATTEMPT_STARTED, job_id="1", array_index=None, node=0, **ELSEWHERE)
    run_dir.telemetry.mkdir(exist_ok=True)
    run_dir.logs.mkdir(exist_ok=True)
    for path in (run_dir.journals / "0-x-rank1.jsonl", run_dir.telemetry / "0-x-node0.jsonl", run_dir.agent_log(0)):
        os.mkfifo(path)

    entered = decide(run_dir, SLURM_JOB_ID="2")

    assert isinstance(entered, Hold)
    assert entered.attempt == 1


def test_a_signal_ends_the_wait(make_run: MakeRun) -> None:
    run_dir = make_run("pass", *ON_SLURM)
    say(run_dir, EventName.ATTEMPT_STARTED, job_id="1", array_index=None, node=0, **ELSEWHERE)
    late = start_agent(str(run_dir.path), SLURM_JOB_ID="1", SLURM_RESTART_COUNT="1")
    wait_for(lambda: _catches_term(late), "the agent listens")

    late.send_signal(signal.SIGTERM)

    assert late.wait(timeout=300) == 143
    assert told(run_dir, "attempt_left") == []


def _catches_term(process: subprocess.Popen[bytes]) -> bool:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
