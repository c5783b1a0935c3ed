from __future__ import annotations

import json
import random
from pathlib import Path

from hpcml.model.state import State
from hpcml.runs.layout import RunDir
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store
from hpcml.store.query import find_runs, get_run
from tests.store.building import T0, Journal, contents, curve, make_run_dir
from tests.store.test_ingest import UID, a_finished_run, fresh


def a_run_of_three_attempts(root: Path, uid: str = UID) -> RunDir:
    """One that left at a checkpoint, was preempted while it went on, and runs again in a job of its own."""
    run_dir = make_run_dir(root, uid, submission="s-1")
    launch = Journal(run_dir, writer="launch", attempt=0)
    launch.event("submitted", scheduler="slurm", job_id="77", array_index=2, job_name="sweep.s-1-0", pack="s-1-0/2")
    for attempt, began in enumerate((T0 + 10, T0 + 1000, T0 + 2000)):
        agent = Journal(run_dir, writer="agent", attempt=attempt, t0=began)
        job = {"job_id": "77", "array_index": 2} if attempt == 0 else {"job_id": f"9{attempt}", "array_index": None}
        agent.event("attempt_started", **job, job_name=None, pack=None)
        rank0 = Journal(run_dir, attempt=attempt, t0=began + 1)
        for step in range(10 * attempt, 10 * attempt + 12):
            rank0.metrics(step, step / 10, loss=1 / (step + 1))
        rank0.event("checkpoint", 1.0, path="checkpoints/last.pt", step=10 * attempt, bytes=9, wall_s=0.1)
        if attempt == 0:
            agent.event("attempt_ended", 90.0, state="TIMEOUT", exit_code=75, wall_s=80, checkpointed=True)
            waits = Journal(run_dir, writer="agent-queued", attempt=1, t0=began + 91)
            waits.event("submitted", why="left at a checkpoint", by="agent")
            waits.event("submitted", scheduler="slurm", job_id="91", job_name="sweep.u-r1", array_index=None)
        if attempt == 1:
            agent.event("attempt_interrupted", 50.0, state="CANCELLED", exit_code=143, signal=15, wall_s=49.0)
            said = Journal(run_dir, writer="collect", attempt=1, t0=began + 300)
            said.event("ended_by_scheduler", state="PREEMPTED", raw="PREEMPTED", reason="slurm says PREEMPTED")
    return run_dir


def test_a_run_of_several_attempts_is_one_run_with_one_clock(store: Database, runs: Path, tmp_path: Path) -> None:
    run_dir = a_run_of_three_attempts(runs)
    ingest_all(store, runs)
    running = get_run(store, UID)
    with (run_dir.journals / "2-node7-agent.jsonl").open("a") as file:
        ended = {"state": "COMPLETED", "exit_code": 0, "wall_s": 30.5}
        file.write(json.dumps({"k": "e", "s": 9, "t": 33.0, "n": "attempt_ended", "d": ended}) + "\n")
    ingest_all(store, runs)
    done = get_run(store, UID)

    assert (running.state, running.attempt, running.job_id, running.job_name) == (State.RUNNING, 2, "92", None)
    assert (running.is_shared, running.submission, running.scheduler) == (False, "s-1", "slurm")
    assert (running.t_start, running.t_end, running.wall_s) == (T0 + 10, None, None)
    assert (done.state, done.t_start, done.t_end, done.wall_s) == (State.COMPLETED, T0 + 10, T0 + 2033, 159.5)
    assert curve(store, UID, "loss")[0].t_s == 1.0
    assert done.metrics["loss"].n == 32
    assert contents(store) == fresh(tmp_path, runs)


def test_a_store_made_anew_gives_the_answers_of_one_that_heard_the_news_in_any_order(
    store: Database, runs: Path, tmp_path: Path
) -> None:
    a_finished_run(runs, UID[:-1] + "b")
    run_dir = a_run_of_three_attempts(runs)
    for path in random.sample(run_dir.journal_files(), len(run_dir.journal_files())):
        content = path.read_bytes()
        path.unlink()
        ingest_all(store, runs)
        path.write_bytes(content)
        ingest_all(store, runs)
    before = find_runs(store)

    for path in tmp_path.glob("store.db*"):
        path.unlink()
    again = open_store(str(tmp_path / "store.db"))
    ingest_all(again, runs)

    assert find_runs(again) == before


def test_journals_of_several_attempts_that_arrive_line_by_line_give_the_same_store(
    store: Database, runs: Path, tmp_path: Path
) -> None:
    rng = random.Random(4)  # noqa: S311
    run_dir = a_run_of_three_attempts(runs)
    lines = {path: path.read_bytes().splitlines(keepends=True) for path in run_dir.journal_files()}
    for path in lines:
        path.unlink()
    while any(lines.values()):
        path = rng.choice([path for path, rest in lines.items() if rest])
        with path.open("ab") as file:
            file.write(lines[path].pop(0))
        if rng.random() < 0.3:
            ingest_all(store, runs)
    ingest_all(store, runs)

    assert contents(store) == fresh(tmp_path, runs)
