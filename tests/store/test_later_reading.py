"""A few new events in each of many runs that the store knows: read in together, and stored as one by one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from sqlalchemy import Engine, event

from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.model.precision import PrecisionName
from hpcml.model.run import Observe, Precision
from hpcml.model.state import State
from hpcml.runs.layout import RunDir
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all, ingest_run, ingest_runs
from hpcml.store.opening import open_store
from hpcml.store.query import find_runs
from tests.store.building import T0, Journal, contents, make_run_dir

MANY = 40


def many_runs(runs: Path) -> list[RunDir]:
    run_dirs = [make_run_dir(runs, f"20260528-202640-{number:06d}", seed=number % 3) for number in range(MANY)]
    for run_dir in run_dirs:
        agent = Journal(run_dir, writer="agent", t0=T0 + 60)
        agent.event("attempt_started", pid=1, create_time=T0, hostname="node7", walltime_s=None)
        agent.event("facts", gpu_model="H100")
        rank = Journal(run_dir, t0=T0 + 61)
        for step in range(3):
            rank.metrics(step, loss=1 / (step + 1))
    return run_dirs


def end(run_dir: RunDir) -> Journal:
    journal = Journal(run_dir, writer="collect", t0=T0 + 900)
    journal.event("ended_by_scheduler", state="TIMEOUT", raw="TIMEOUT", reason="time limit", cause="time-limit")
    journal.event("noted", text="ä", author="ada")
    journal.event("tagged", tag="late")
    return journal


def one_by_one(tmp_path: Path, run_dirs: list[RunDir]) -> dict[str, list[tuple[object, ...]]]:
    store = open_store(str(tmp_path / "fresh.db"))
    for run_dir in run_dirs:
        ingest_run(store, run_dir)
    found = contents(store)
    store.close()
    return found


def test_ends_of_many_runs_are_stored_as_if_each_was_read_alone(store: Database, runs: Path, tmp_path: Path) -> None:
    run_dirs = many_runs(runs)
    ingest_all(store, runs)
    for run_dir in run_dirs:
        end(run_dir)

    report = ingest_runs(store, run_dirs)

    assert (report.runs, report.new_points, report.bad_lines, report.problems) == (MANY, 0, 0, ())
    assert {run.state for run in find_runs(store)} == {State.TIMEOUT}
    assert contents(store) == one_by_one(tmp_path, run_dirs)
    assert ingest_all(store, runs).runs == MANY


def test_all_that_is_more_than_a_few_events_is_read_too(store: Database, runs: Path, tmp_path: Path) -> None:
    run_dirs = many_runs(runs)
    ingest_all(store, runs)
    for run_dir in run_dirs:
        end(run_dir)
    Journal(run_dirs[0], attempt=2, t0=T0 + 950).metrics(7, loss=0.1)  # a curve
    grown = next(run_dirs[1].journals.glob("*agent*"))
    with grown.open("a") as file:  # an older journal goes on
        file.write('{"k":"e","s":2,"t":9.0,"n":"facts","d":{"cores":8}}\n')
    (run_dirs[2].journals / "9-foreign.jsonl").write_text("nobody knows\n")
    Journal(run_dirs[3], writer="node0", folder="telemetry").event("closed")
    end(run_dirs[4]).write('{"torn\n')
    (run_dirs[5].journals / next(run_dirs[5].journals.glob("*rank0*")).name).unlink()
    run_dirs[6].manifest.write_text(run_dirs[6].manifest.read_text() + " ")
    shutil.copytree(run_dirs[7].path, run_dirs[7].path.with_name("copy"))
    run_dirs[8].manifest.write_text("{")

    report = ingest_all(store, runs)

    assert (report.runs, report.new_points, report.bad_lines) == (MANY - 1, 1, 1)
    assert len(report.problems) == 3
    shutil.rmtree(run_dirs[7].path.with_name("copy"))
    shutil.rmtree(run_dirs[8].path)
    kept = [run_dir for run_dir in run_dirs if run_dir is not run_dirs[8]]
    assert contents(store) == one_by_one(tmp_path, kept)


def test_what_run_json_says_is_taken_from_the_store(store: Database, runs: Path, tmp_path: Path) -> None:
    """It is not read again while it has its size and time; tags and the software of the run stay as they are."""
    cluster = Cluster(name="c", scheduler=SchedulerName.slurm, co2_g_per_kwh=400.0, co2_source="https://example.org")
    precision = Precision(name=PrecisionName.fp32, observe=Observe.always)
    run_dirs = [
        make_run_dir(runs, f"20260528-202640-{number:06d}", tags=("paper", "b"), cluster=cluster, precision=precision)
        for number in range(3)
    ]
    for run_dir in run_dirs:
        raw = json.loads(run_dir.manifest.read_text())
        raw["provenance"] |= {"code": "/copies/c0de", "packages": {"numpy": "2.4.0"}}
        run_dir.manifest.write_text(json.dumps(raw))
        agent = Journal(run_dir, writer="agent", t0=T0 + 60)
        agent.event("attempt_started", pid=1, create_time=T0, hostname="node7", walltime_s=None)
        agent.event("facts", gpu_model="H100", packages="others")
        gpu = {"uuid": "GPU-1", "scope": "gpu", "energy_j": 3.6e6, "energy_covered_s": 9.0}
        node = {"node": 0, "gpus": 1, "energy_j": 3.6e6, "mapping": "CUDA_VISIBLE_DEVICES", "wall_s": 9.0}
        agent.event("telemetry", **node, data_until_s=9.0, **{f"gpu0_{name}": value for name, value in gpu.items()})
        people = Journal(run_dir, writer="user", t0=T0 + 70)
        for name, tag in (("tagged", "x"), ("tagged", "a"), ("untagged", "x"), ("tagged", "x"), ("untagged", "b")):
            people.event(name, tag=tag)
        people.event("noted", text="n", author="ada")
    ingest_all(store, runs)
    kept = [run_dir.manifest.read_bytes() for run_dir in run_dirs]
    for run_dir in run_dirs:
        Journal(run_dir, writer="collect", t0=T0 + 900).event("lost", reason="killed", cause="agent-killed")
        status = run_dir.manifest.stat()
        run_dir.manifest.write_bytes(b" " * status.st_size)
        os.utime(run_dir.manifest, ns=(status.st_atime_ns, status.st_mtime_ns))

    report = ingest_runs(store, run_dirs)

    assert (report.runs, report.problems) == (3, ())
    for run_dir, content in zip(run_dirs, kept, strict=True):
        run_dir.manifest.write_bytes(content)
    assert contents(store) == one_by_one(tmp_path, run_dirs)
    (run, *_) = find_runs(store)
    assert (run.state, run.tags) == (State.LOST, ("paper", "a", "x"))
    assert run.facts["code"] == "c0de"
    assert run.usage is not None
    assert run.usage.co2_g == 400.0


def test_many_runs_take_as_many_statements_as_a_few(store: Database, runs: Path) -> None:
    run_dirs = many_runs(runs)
    ingest_all(store, runs)
    for run_dir in run_dirs:
        end(run_dir)
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)  # a store makes an engine for each time that it is written
    try:
        ingest_runs(store, run_dirs)
    finally:
        event.remove(Engine, "before_cursor_execute", note)

    assert 0 < len([one for one in statements if "advisory" not in one]) < MANY
    if not store.is_shared:  # SQLite before 3.35, as RHEL 8 and 9 have it, knows none
        assert [one for one in statements if "RETURNING" in one] == []
