"""Runs that share a job: each as itself, one after the other, in one agent."""

import json
import os
import re
import signal
import sys
from pathlib import Path

from hpcml.runs.layout import RunDir
from hpcml.runs.plan import Staging
from tests.agent.node import (
    COUNTS,
    LEAVES_ONCE,
    ON_SLURM,
    WAITS,
    MakeRun,
    Requeue,
    agent,
    began,
    start_agent,
    told,
    told_with_attempts,
    wait_for,
)

ROOT = Path(__file__).resolve().parents[2]


def batch(tmp_path: Path, *elements: list[RunDir]) -> str:
    folder = tmp_path / "20261121-083015-sub-1"
    folder.mkdir(exist_ok=True)
    jobs = [[str(run_dir.manifest) for run_dir in element] for element in elements]
    (folder / "batch.json").write_text(json.dumps({"format": 1, "jobs": jobs}))
    return str(folder / "batch.json")


def test_the_runs_of_a_pack_take_turns_each_as_itself(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(COUNTS, uid="a"), make_run("raise SystemExit(3)", uid="b"), make_run(COUNTS, uid="c")]

    done = agent("--batch", batch(tmp_path, runs))

    assert done.returncode == 3
    assert (tmp_path / "ran").read_text() == "a c "
    assert [told(run, "attempt_ended")[0]["state"] for run in runs] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert {told(run, "attempt_started")[0]["pack"] for run in runs} == {"20261121-083015-sub-1/0"}


def test_a_pack_started_again_passes_over_what_has_ended(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(COUNTS, *ON_SLURM, uid="a"), make_run(WAITS, *ON_SLURM, uid="b")]
    runs.append(make_run(COUNTS, *ON_SLURM, uid="c"))
    variables = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "1"}
    words = ("--batch", batch(tmp_path, [], runs))
    process = start_agent(*words, **variables)
    wait_for(lambda: began(runs[1]), "the second program")

    process.send_signal(signal.SIGTERM)  # a preemption
    process.wait(300)
    before = (tmp_path / "ran").read_text()
    begun = told(runs[2], "attempt_started")
    runs[1].cancel_mark.touch()
    done = agent(*words, **variables)

    assert (before, begun) == ("a ", [])
    assert (tmp_path / "ran").read_text() == "a c "
    assert told(runs[1], "attempt_interrupted") != []
    assert told(runs[1], "attempt_ended")[0]["reason"] == "cancelled before it started"
    assert done.returncode == 1
    assert told(runs[0], "attempt_started")[0]["pack"] == "20261121-083015-sub-1/1"
    assert len(told(runs[0], "attempt_started")) == 1


def test_one_run_of_a_pack_is_cancelled_and_the_next_begins(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(WAITS, uid="a"), make_run(COUNTS, uid="b"), make_run(COUNTS, uid="c")]
    process = start_agent("--batch", batch(tmp_path, runs))
    wait_for(lambda: began(runs[0]), "the first program")

    for run in runs[:2]:
        run.cancel_mark.touch()
    process.wait(300)

    assert (tmp_path / "ran").read_text() == "c "
    assert [told(run, "attempt_ended")[0]["state"] for run in runs] == ["CANCELLED", "CANCELLED", "COMPLETED"]


def test_a_run_that_a_pack_put_back_goes_on_in_a_job_of_its_own(
    make_run: MakeRun, requeue: Requeue, tmp_path: Path
) -> None:
    runs = [make_run(LEAVES_ONCE, *ON_SLURM, uid="a"), make_run(COUNTS, *ON_SLURM, uid="b")]
    command = requeue("""echo '{"scheduler": "slurm", "job_id": "9", "array_index": null, "job_name": "a.a"}'""")
    words = ("--batch", batch(tmp_path, runs))

    first = agent(*words, HPCML_REQUEUE=command, SLURM_JOB_ID="8")
    second = agent(*words, HPCML_REQUEUE=command, SLURM_JOB_ID="8")  # the whole job, after a preemption
    alone = agent(str(runs[0].path), HPCML_REQUEUE=command, SLURM_JOB_ID="9")

    assert (first.returncode, second.returncode, alone.returncode) == (0, 0, 0)
    assert [
        (attempt, started["pack"] is None) for attempt, started in told_with_attempts(runs[0], "attempt_started")
    ] == [
        (0, False),
        (1, True),
    ]


def test_the_queue_of_this_machine_brings_a_run_of_a_pack_back_in_the_same_pack(
    make_run: MakeRun, requeue: Requeue, tmp_path: Path
) -> None:
    runs = [make_run(LEAVES_ONCE, uid="a"), make_run(COUNTS, uid="b")]
    command = requeue("""echo '{"scheduler": "local", "job_id": "1-2", "array_index": 0, "job_name": null}'""")
    words = ("--batch", batch(tmp_path, runs))

    for _ in range(3):
        agent(*words, HPCML_REQUEUE=command)

    assert [end["state"] for end in told(runs[0], "attempt_ended")] == ["TIMEOUT", "COMPLETED"]
    assert (tmp_path / "ran").read_text() == "b "


def test_a_run_of_a_shared_job_is_stopped_before_the_job_is_where_that_ends_earlier_than_planned(
    make_run: MakeRun, tmp_path: Path
) -> None:
    """The scheduler says now that the job has 20 s, of which some 16 are left for the second run."""
    lasts = "import time; time.sleep(3)"
    runs = [make_run(lasts, *ON_SLURM, "resources.walltime=10s", "workload.stop_grace=5", uid="a")]
    runs.append(make_run(WAITS, *ON_SLURM, "resources.walltime=10m", uid="b"))
    ask = f'{sys.executable} -c "print(\'{{\\"limit_s\\": 20}}\')"'

    done = agent("--batch", batch(tmp_path, runs), SLURM_JOB_ID="5", HPCML_TIME_LIMIT=ask)

    assert done.returncode == 143
    assert [told(run, "attempt_ended")[0]["state"] for run in runs] == ["COMPLETED", "TIMEOUT"]
    (limit,) = told(runs[1], "time_limit")
    left_s = limit["limit_s"]
    assert (3 <= left_s <= 17, limit["before_s"]) == (True, 600)
    stop_s = left_s - left_s // 2
    assert (
        told(runs[1], "attempt_ended")[0]["reason"]
        == f"walltime of {left_s} s reached but for the last {left_s - stop_s} s"
    )
    assert told(runs[0], "time_limit") == []


def test_where_one_node_fails_in_a_run_of_a_shared_job_the_others_end_it_and_the_next_begins(
    make_run: MakeRun, tmp_path: Path
) -> None:
    nodes = (*ON_SLURM, "strategy=ddp", "strategy.processes_per_node=1", "resources.nodes=2")
    fails = make_run("import os, sys, time; sys.exit(5) if os.environ['RANK'] == '0' else time.sleep(600)", *nodes)
    follows = make_run("pass", *nodes, uid="b")
    words = ("--batch", batch(tmp_path, [fails, follows]))

    agents = [start_agent(*words, SLURM_NODEID=node, SLURM_JOB_ID="7") for node in ("0", "1")]
    for process in agents:
        process.communicate(timeout=300)

    first, other = sorted(told(fails, "attempt_ended"), key=lambda end: end["wall_s"])
    assert (first["state"], first["exit_code"]) == ("FAILED", 5)
    assert other["state"] == "FAILED"
    assert re.fullmatch(r"node 0 \(.*\) ended first: .*", other["reason"])
    assert [end["state"] for end in told(follows, "attempt_ended")] == ["COMPLETED"] * 2


def test_where_the_first_node_of_a_shared_job_has_no_code_the_others_do_not_wait_for_it(
    make_run: MakeRun, tmp_path: Path
) -> None:
    nodes = (*ON_SLURM, "strategy=ddp", "strategy.processes_per_node=1", "resources.nodes=2")
    gone = Staging(code=str(tmp_path / "gone"), project="mine")
    fails, follows = make_run("pass", *nodes, staging=gone), make_run("pass", *nodes, uid="b")
    words = ("--batch", batch(tmp_path, [fails, follows]))

    agents = [start_agent(*words, SLURM_NODEID=node, SLURM_JOB_ID="7") for node in ("0", "1")]
    try:
        for process in agents:
            process.communicate(timeout=90)
    finally:
        agents[1].kill()

    reasons = sorted(end["reason"] for end in told(fails, "attempt_ended"))
    why = f"its working directory could not be made: {tmp_path}/gone: No such file or directory"
    assert reasons == [why, f"node 0 ({os.uname().nodename}) ended first: {why}"]
    assert [end["state"] for end in told(follows, "attempt_ended")] == ["COMPLETED"] * 2


def test_a_node_that_cannot_take_part_in_a_run_ends_the_job_whose_nodes_would_wait_for_it(
    make_run: MakeRun, tmp_path: Path
) -> None:
    two_nodes = (*ON_SLURM, "strategy=ddp", "strategy.processes_per_node=1", "resources.nodes=2")
    runs = [make_run(COUNTS, *two_nodes, uid=uid) for uid in ("a", "b")]
    job = {"SLURM_JOB_ID": "1", "HPCML_MASTER_ADDR": "cn1"}
    runs[0].manifest.write_text("")  # which this node alone cannot read

    done = agent("--batch", batch(tmp_path, runs), SLURM_NODEID="1", **job)

    assert done.returncode == 2
    assert told(runs[1], "attempt_started") == []
