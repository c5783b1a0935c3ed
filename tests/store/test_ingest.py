from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcml.errors import HpcmlError
from hpcml.model.choices import Numerics
from hpcml.model.run import Model, Workload
from hpcml.model.state import State
from hpcml.runs.layout import RunDir
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all, ingest_run
from hpcml.store.news import IngestReport
from hpcml.store.opening import open_store
from hpcml.store.query import events, find_runs, get_run
from hpcml.store.sql import ask
from hpcml.store.where import parse_condition
from tests.effort import times
from tests.store.building import T0, Journal, contents, curve, make_run_dir

UID = "20260528-202640-aaaaaa"


def a_finished_run(root: Path, uid: str = UID) -> RunDir:
    run_dir = make_run_dir(root, uid, tags=["first", "second"], name="baseline")
    launch = Journal(run_dir, writer="launch", t0=T0 + 1)
    launch.event("submitted", scheduler="local", job_id="123", array_index=None)
    agent = Journal(run_dir, writer="agent", t0=T0 + 60)
    agent.event("attempt_started", pid=1, create_time=T0, hostname="node7", walltime_s=None)
    agent.event("facts", hostname="node7", cores=8)
    rank0 = Journal(run_dir, t0=T0 + 62)
    rank0.event("framework", framework="torch", torch="2.13.0", threads=2)
    rank0.event("precision", requested="tf32", numerics="emulated", products={"matmul": "tf32"}, parameters="float32")
    for step in range(20):
        rank0.metrics(step, step / 10, loss=1 / (step + 1), val_accuracy=step / 20)
    rank0.event("note", 2.5, text="plateau: ä \ud800")
    agent.event("attempt_ended", 9.0, state="COMPLETED", exit_code=0, signal=None, reason=None, wall_s=8.5)
    return run_dir


def fresh(tmp_path: Path, root: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return what a store made from nothing holds."""
    store = open_store(str(tmp_path / "fresh.db"))
    ingest_all(store, root)
    found = contents(store)
    store.close()
    for path in tmp_path.glob("fresh.db*"):
        path.unlink()
    return found


@pytest.mark.on_postgres
def test_a_run_directory_becomes_a_record(store: Database, runs: Path) -> None:
    run_dir = a_finished_run(runs)

    report = ingest_all(store, runs)

    assert report == IngestReport(runs=1, new_points=40)
    run = get_run(store, UID)
    assert (run.experiment, run.name, run.path, run.tags) == (
        "default",
        "baseline",
        str(run_dir.path),
        ("first", "second"),
    )
    assert (run.state, run.exit_code, run.wall_s, run.attempt) == (State.COMPLETED, 0, 8.5, 1)
    assert (run.t_start, run.t_end) == (T0 + 60, T0 + 69)
    assert (run.scheduler, run.job_id, run.submitted_at) == ("local", "123", "2026-05-28T20:26:40+00:00")
    assert (run.precision, run.precision_effective, run.numerics) == ("tf32", "tf32", "emulated")
    assert (run.git_commit, run.git_dirty, run.seed) == ("c0ffee", False, 0)
    assert run.params["model.name"] == "digits_cnn"
    assert run.params["training.batch_size"] == 64
    assert run.params["workload.env"] == {}
    told = {"hostname": "node7", "cores": 8, "framework": "torch", "torch": "2.13.0", "threads": 2}
    assert run.facts == {**told, "precision_evidence": "probed", "precision_probed": "tf32"}
    accuracy = run.metrics["val_accuracy"]
    assert (accuracy.n, accuracy.first, accuracy.last, accuracy.last_step, accuracy.max_step) == (20, 0.0, 0.95, 19, 19)
    assert accuracy.mean == pytest.approx(0.475)


def test_a_job_of_an_array_keeps_its_index(store: Database, runs: Path) -> None:
    launch = Journal(make_run_dir(runs), writer="launch")
    launch.event("submitted", scheduler="slurm", job_id="77", array_index=3)
    ingest_all(store, runs)

    run = get_run(store, UID)

    assert (run.job_id, run.array_index) == ("77", 3)


OWN_PROGRAM: dict[str, Any] = {
    "model": Model(name="custom", recipe=None),
    "workload": Workload(command="python x.py"),
}


@pytest.mark.parametrize(
    ("planned", "changes", "numerics"),
    [
        (Numerics.emulated, OWN_PROGRAM, "unproven"),  # it may well have computed in FP32
        (Numerics.native, OWN_PROGRAM, "native"),
        (Numerics.emulated, {}, "emulated"),  # hpcml's recipes do as planned
    ],
)
def test_nobody_vouches_for_the_emulation_of_a_program_that_reports_none(
    store: Database, runs: Path, planned: Numerics, changes: dict[str, Any], numerics: str
) -> None:
    run_dir = make_run_dir(runs, planned=planned, **changes)
    ingest_all(store, runs)
    before = get_run(store, UID).numerics
    Journal(run_dir, writer="agent").event("attempt_started")
    ingest_all(store, runs)

    assert (before, get_run(store, UID).numerics) == (numerics, numerics)


@pytest.mark.parametrize("reported", ["emulated", "native"])
def test_the_numerics_that_a_users_program_reports_are_taken(store: Database, runs: Path, reported: str) -> None:
    run_dir = make_run_dir(runs, planned=Numerics.emulated, **OWN_PROGRAM)
    Journal(run_dir).event("precision", numerics=reported, products={"matmul": "tf32"}, parameters="float32")
    ingest_all(store, runs)

    assert get_run(store, UID).numerics == reported


def test_points_and_events_are_on_the_runs_own_clock(store: Database, runs: Path) -> None:
    a_finished_run(runs)
    ingest_all(store, runs)

    points, told = curve(store, UID, "loss"), events(store, UID)

    assert [point.t_s for point in points[:3]] == [2.0, 2.1, 2.2]
    assert [(event.t_s, event.name) for event in told[:2]] == [(-59.0, "submitted"), (0.0, "attempt_started")]
    assert [(event.t_s, event.writer) for event in told if event.name == "note"] == [(4.5, "rank0")]


@pytest.mark.on_postgres
def test_ingesting_again_changes_nothing(store: Database, runs: Path) -> None:
    a_finished_run(runs)
    ingest_all(store, runs)
    before = contents(store)

    assert ingest_all(store, runs) == IngestReport(runs=1)
    assert contents(store) == before


def test_an_unchanged_run_is_not_opened(store: Database, runs: Path) -> None:
    run_dir = a_finished_run(runs)
    ingest_all(store, runs)
    size, modified = run_dir.manifest.stat().st_size, run_dir.manifest.stat().st_mtime_ns
    run_dir.manifest.write_bytes(b"x" * size)
    os.utime(run_dir.manifest, ns=(modified, modified))

    assert ingest_all(store, runs) == IngestReport(runs=1)


def test_a_changed_run_json_is_read_again(store: Database, runs: Path, tmp_path: Path) -> None:
    run_dir = a_finished_run(runs)
    ingest_all(store, runs)
    raw = json.loads(run_dir.manifest.read_text())
    raw["run"]["tags"], raw["provenance"]["submitted_at"] = ["third"], "2026-05-28T20:00:00+00:00"
    run_dir.manifest.write_text(json.dumps(raw))

    ingest_all(store, runs)

    assert get_run(store, UID).tags == ("third",)
    assert contents(store) == fresh(tmp_path, runs)


def test_an_agent_that_is_heard_of_late_moves_the_clock_and_nothing_else(
    store: Database, runs: Path, tmp_path: Path
) -> None:
    run_dir = make_run_dir(runs)
    Journal(run_dir, writer="launch", t0=T0 + 0.1234567)
    Journal(run_dir, t0=T0 + 7.7654321).metrics(1, 0.0004321, loss=1.0)
    ingest_all(store, runs)
    # no agent: the workload's first word began the run
    assert curve(store, UID, "loss")[0].t_s == pytest.approx(0.0, abs=0.001)

    Journal(run_dir, writer="agent", t0=T0 + 5.5555555)
    ingest_all(store, runs)

    assert curve(store, UID, "loss")[0].t_s == pytest.approx(2.21, abs=0.001)
    assert contents(store) == fresh(tmp_path, runs)


@settings(max_examples=times(8, 30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_journals_cut_at_any_byte_and_completed_give_the_same_store(tmp_path: Path, cuts: list[float]) -> None:
    root, source = tmp_path / "cut", tmp_path / "whole"
    for path in (root, source):
        shutil.rmtree(path, ignore_errors=True)
    run_dir, whole = make_run_dir(root, tags=["first", "second"], name="baseline"), a_finished_run(source)
    store = open_store(str(tmp_path / "cut.db"))
    for cut in [*sorted(cuts), 1.0]:
        for path in whole.journal_files():
            content = path.read_bytes()
            (run_dir.journals / path.name).write_bytes(content[: round(cut * len(content))])
        ingest_all(store, root)

    assert contents(store) == fresh(tmp_path, root)
    store.close()
    for path in tmp_path.glob("cut.db*"):
        path.unlink()


def test_a_torn_tail_longer_than_a_batch_holds_up_no_other_journal(store: Database, runs: Path) -> None:
    run_dir = make_run_dir(runs)
    agent, rank0 = Journal(run_dir, writer="agent"), Journal(run_dir)
    agent.write('{"k": "e", "d": "' + "x" * 5000)
    rank0.metrics(1, loss=1.0)

    assert ingest_all(store, runs).new_points == 1
    agent.write("\n")
    rank0.metrics(2, loss=1.0)

    assert ingest_all(store, runs) == IngestReport(runs=1, new_points=1, bad_lines=1)


def test_bad_lines_are_counted_once_and_nothing_around_them_is_lost(store: Database, runs: Path) -> None:
    journal = Journal(make_run_dir(runs))
    journal.metrics(1, loss=1.0)
    journal.write("\0" * 100 + "\n" + '{"k": "m", "s": 1, "t": NaN, "i": 7, "v": {"loss": 1}}\n')
    journal.write(json.dumps({"k": "m", "s": 2, "t": 0.0, "i": 2**63, "v": {"loss": 1}}) + "\n")
    journal.write(json.dumps({"k": "m", "s": 2**63, "t": 0.0, "i": 3, "v": {"loss": 1}}) + "\n")
    journal.metrics(2, loss=2.0)

    assert ingest_all(store, runs) == IngestReport(runs=1, new_points=2, bad_lines=4)
    assert ingest_all(store, runs).bad_lines == 0
    assert [point.step for point in curve(store, UID, "loss")] == [1, 2]


@pytest.mark.on_postgres
def test_nan_and_infinities_come_back_as_they_were(store: Database, runs: Path) -> None:
    journal = Journal(make_run_dir(runs))
    for step, value in enumerate([1.0, math.nan, math.inf, -math.inf, 3.0, math.nan]):
        journal.metrics(step, loss=value)
    ingest_all(store, runs)

    assert repr([point.value for point in curve(store, UID, "loss")]) == "[1.0, nan, inf, -inf, 3.0, nan]"
    summary = get_run(store, UID).metrics["loss"]
    assert (summary.n, summary.n_nonfinite, summary.last, summary.last_step) == (6, 4, None, 5)
    assert (summary.first, summary.min, summary.max, summary.mean) == (1.0, 1.0, 3.0, 2.0)


def test_the_last_value_of_a_step_counts(store: Database, runs: Path, tmp_path: Path) -> None:
    journal = Journal(make_run_dir(runs))
    journal.metrics(1, loss=9.0)
    journal.metrics(1, loss=8.0)
    journal.metrics(2, loss=7.0)
    ingest_all(store, runs)
    journal.metrics(1, loss=1.0)
    ingest_all(store, runs)

    summary = get_run(store, UID).metrics["loss"]

    assert (summary.n, summary.first, summary.last, summary.min, summary.mean) == (2, 1.0, 7.0, 1.0, 4.0)
    assert contents(store) == fresh(tmp_path, runs)


def test_a_requeued_run_has_one_curve_of_which_the_later_attempt_has_the_last_word(
    store: Database, runs: Path, tmp_path: Path
) -> None:
    run_dir = make_run_dir(runs)
    first = Journal(run_dir, attempt=1)
    for step in range(6):
        first.metrics(step, loss=1.0)
    ingest_all(store, runs)
    second = Journal(run_dir, attempt=2, t0=T0 + 100)
    for step in range(4, 8):
        second.metrics(step, loss=2.0)
    Journal(run_dir, attempt=2, writer="agent", t0=T0 + 90).metrics(7, loss=99.0)
    ingest_all(store, runs)

    assert [point.value for point in curve(store, UID, "loss")] == [1.0] * 4 + [2.0] * 4
    summary = get_run(store, UID).metrics["loss"]
    assert (summary.n, summary.first, summary.last, summary.mean, summary.max) == (8, 1.0, 2.0, 1.5, 2.0)
    assert contents(store) == fresh(tmp_path, runs)


@pytest.mark.parametrize("is_first_late", [False, True])
def test_what_an_attempt_did_behind_the_step_from_which_a_later_one_went_on_does_not_count(
    store: Database, runs: Path, tmp_path: Path, *, is_first_late: bool
) -> None:
    """The later one began anew in silence, say, and stopped early: nothing is left of the steps behind its last."""
    run_dir = make_run_dir(runs)
    first = Journal(run_dir, attempt=1)
    for step in range(4):
        first.metrics(step, loss=1.0)
    first.metrics(5, other=3.0)
    ingest_all(store, runs)
    second = Journal(run_dir, attempt=2, t0=T0 + 100)
    if is_first_late:  # as a folder on NFS may show it
        second.metrics(2, loss=2.0)
        ingest_all(store, runs)
    for step in range(4, 9):
        first.metrics(step, loss=1.0)
    ingest_all(store, runs)
    if not is_first_late:
        second.metrics(2, loss=2.0)
    second.metrics(3, loss=2.0)
    ingest_all(store, runs)

    assert [(point.step, point.value) for point in curve(store, UID, "loss")] == [
        *((step, 1.0) for step in range(2)),
        *((step, 2.0) for step in (2, 3)),
    ]
    summary = get_run(store, UID).metrics["loss"]
    assert (summary.n, summary.last, summary.last_step, summary.max) == (4, 2.0, 3, 2.0)
    assert get_run(store, UID).metrics["other"].last_step == 5
    assert contents(store) == fresh(tmp_path, runs)
    points = ask(store, "SELECT step, value FROM points WHERE metric = 'loss' ORDER BY step", limit_s=300)
    assert [tuple(row) for row in points.rows] == [(0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0)]


@pytest.mark.parametrize("change", ["shorter", "another", "gone"])
def test_a_journal_that_is_no_continuation_is_read_anew(
    store: Database, runs: Path, tmp_path: Path, change: str
) -> None:
    run_dir = a_finished_run(runs)
    ingest_all(store, runs)
    path = run_dir.journals / "1-node7-rank0.jsonl"
    content = path.read_bytes()
    path.unlink()
    if change == "shorter":
        path.write_bytes(content[: len(content) // 2])
    if change == "another":
        other = Journal(run_dir, t0=T0 + 500)
        for step in range(99):
            other.metrics(step, loss=5.0)

    ingest_all(store, runs)

    assert contents(store) == fresh(tmp_path, runs)


@pytest.mark.on_postgres
def test_deleting_the_store_and_ingesting_again_gives_the_same_answers(
    store: Database, runs: Path, tmp_path: Path
) -> None:
    for name in "abc":
        a_finished_run(runs, UID[:-1] + name)
        ingest_all(store, runs)
    before = find_runs(store)

    for path in tmp_path.glob("store.db*"):
        path.unlink()
    again = open_store(str(tmp_path / "store.db"))
    ingest_all(again, runs)

    assert find_runs(again) == before


def test_an_unreadable_run_is_a_line_of_the_report_and_the_others_go_in(store: Database, runs: Path) -> None:
    a_finished_run(runs)
    for name, text in {"torn": '{"uid": "x', "list": "[]", "empty": "{}"}.items():
        folder = runs / "default" / name
        folder.mkdir()
        (folder / "run.json").write_text(text)

    report = ingest_all(store, runs)

    assert report.runs == 1
    assert len(report.problems) == 3
    assert not any("\n" in problem for problem in report.problems)
    with pytest.raises(HpcmlError, match="lacks 'run'"):
        ingest_run(store, RunDir(runs / "default" / "empty"))


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ('{"hpcml": 99, "journal": "j"}', "no header that this hpcml can read"),
        ("\0\0\0", "no header that this hpcml can read"),
        (
            '{"hpcml": 1, "journal": "j", "run": "other", "attempt": 1, "writer": "a", "host": "n", "pid": 1, "t0": 1}',
            "belongs to run other",
        ),
    ],
)
def test_a_foreign_journal_is_left_out_and_said(store: Database, runs: Path, header: str, problem: str) -> None:
    run_dir = a_finished_run(runs)
    (run_dir.journals / "9-foreign.jsonl").write_text(header + "\n" + "x" * 500)

    report = ingest_all(store, runs)

    assert (report.runs, report.new_points, len(report.problems)) == (1, 40, 1)
    assert problem in report.problems[0]


def test_a_moved_run_is_found_again_and_a_copied_one_refused(store: Database, runs: Path) -> None:
    run_dir = a_finished_run(runs)
    ingest_all(store, runs)
    shutil.move(runs / "default", runs / "moved")

    assert ingest_all(store, runs).problems == ()
    assert get_run(store, UID).path == str(runs / "moved" / UID)

    shutil.copytree(runs / "moved", runs / "zcopy")
    report = ingest_all(store, runs)

    assert len(report.problems) == 1
    assert "remove the copy" in report.problems[0]
    assert get_run(store, UID).path == str(runs / "moved" / UID)
    assert not run_dir.path.exists()


def test_an_empty_root_is_no_problem(store: Database, tmp_path: Path) -> None:
    assert ingest_all(store, tmp_path / "absent") == IngestReport()


@pytest.mark.parametrize(
    ("values", "last", "n_unmeasured"),
    [
        ([0.5, *[math.nan] * 4] * 3, (10, 0.5), 12),  # validated in every fifth epoch, the first among them
        ([*[math.nan] * 4, 0.5] * 2, (9, 0.5), 8),
        ([*[math.nan] * 4, 0.5, *[math.nan] * 4], (4, 0.5), 8),
        ([0.5, math.nan, math.nan, 0.4, math.nan, 0.3, math.nan], (5, 0.3), 4),
        ([0.5, 0.4, 0.3, math.nan], (3, None), 0),
        ([0.5, 0.4, math.nan, 0.3, 0.2, math.nan], (5, None), 0),  # steps that were skipped, and the end
        ([0.5, math.nan, 0.4, math.nan, math.nan], (4, None), 0),
        ([0.5, math.nan, math.inf, math.nan], (3, None), 0),
        ([math.nan] * 3, (2, None), 0),
    ],
)
def test_nan_between_the_steps_that_are_measured_is_no_last_value(
    store: Database, runs: Path, values: list[float], last: tuple[int, float | None], n_unmeasured: int
) -> None:
    journal = Journal(make_run_dir(runs))
    for step, value in enumerate(values):
        journal.metrics(step, val_loss=value)
    ingest_all(store, runs)

    summary = get_run(store, UID).metrics["val_loss"]
    assert (summary.last_step, summary.last) == last
    assert summary.n_unmeasured == n_unmeasured
    assert len(find_runs(store, filters=[parse_condition("val_loss>0")])) == (last[1] is not None)
