"""Runs that have ended and long been quiet: no answer looks at one of them, and none misses one that goes on."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import select

from hpcml.model.state import State
from hpcml.runs import rest
from hpcml.runs.layout import RunDir
from hpcml.store import news, rest_rows, rests
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all, read_news
from hpcml.store.missing import without_directory
from hpcml.store.news import IngestReport, find_news
from hpcml.store.query import get_run
from hpcml.store.schema import RUN
from tests.store.building import T0, Journal, contents, make_run_dir
from tests.store.test_ingest import fresh

MANY = 8
UIDS = [f"20260528-202640-{number:06d}" for number in range(MANY)]


@pytest.fixture
def ended(runs: Path) -> list[RunDir]:
    """Runs that have ended."""
    run_dirs = [make_run_dir(runs, uid) for uid in UIDS]
    for run_dir in run_dirs:
        agent = Journal(run_dir, writer="agent", t0=T0 + 60)
        agent.event("attempt_started", pid=1, create_time=T0, hostname="node7", walltime_s=None)
        agent.event("attempt_ended", 9.0, state="COMPLETED", exit_code=0, signal=None, reason=None, wall_s=8.5)
    return run_dirs


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is kept with any number of runs, and what was written a moment ago was so long since."""
    monkeypatch.setattr(rests, "LEAST", 1)
    monkeypatch.setattr(rest, "QUIET_S", -60.0)


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each path that the file system is asked about from now on."""
    paths: list[str] = []

    def spied(name: str) -> Callable[..., object]:
        really = getattr(os, name)

        def note(path: str | Path, *words: object, **options: object) -> object:
            paths.append(str(path))
            return really(path, *words, **options)

        return note

    for name in ("stat", "lstat", "scandir", "listdir", "open", "access"):
        monkeypatch.setattr(os, name, spied(name))
    return paths


def look(store: Database, runs: Path) -> IngestReport:
    """Do what every command does before it answers."""
    found = find_news(store, runs, is_brief=True)
    report = read_news(store, found, runs)
    if found.seen:
        rest_rows.keep(store, found.seen, found.now)
    return report


@pytest.mark.usefixtures("patience")
def test_runs_of_many_small_experiments_rest_as_those_of_a_large_one_do(
    store: Database, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rests, "LEAST", 3)
    for number in range(3):
        run_dir = make_run_dir(runs, UIDS[number], experiment=f"small{number}")
        agent = Journal(run_dir, writer="agent", t0=T0 + 60)
        agent.event("attempt_started", pid=1, create_time=T0, hostname="node7", walltime_s=None)
        agent.event("attempt_ended", 9.0, state="COMPLETED", exit_code=0, signal=None, reason=None, wall_s=8.5)
    look(store, runs)  # reads them

    found = find_news(store, runs, is_brief=True)

    assert [len(seen.resting) for seen in found.seen] == [1, 1, 1]


def resting(store: Database) -> set[str]:
    with store.reading() as reading:
        connection = reading.connection
        return set(connection.execute(select(RUN.c.uid).where(RUN.c.resting_in.is_not(None))).scalars())


def to_rest(store: Database, runs: Path) -> None:
    ingest_all(store, runs)
    look(store, runs)
    assert resting(store) >= set(UIDS)
    look(store, runs)


@pytest.mark.usefixtures("ended", "patience")
def test_not_one_question_is_asked_about_a_run_at_rest(
    store: Database, runs: Path, touched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    to_rest(store, runs)
    touched.clear()
    monkeypatch.setattr(store, "writing", lambda: pytest.fail("nothing is new, and yet it was to be written"))

    report = look(store, runs)
    gone = without_directory(store, [runs])

    assert (report, gone) == (IngestReport(runs=MANY), [])
    assert [path for path in touched if any(uid in path for uid in UIDS)] == []


def test_runs_that_ended_a_moment_ago_and_few_runs_are_looked_at(
    store: Database, runs: Path, ended: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rests, "LEAST", 1)
    ingest_all(store, runs)
    look(store, runs)
    assert resting(store) == set()

    for run_dir in ended:  # their times say long ago, as a copy's do, but they came just now
        for path in [*run_dir.journals.iterdir(), run_dir.journals, run_dir.manifest, run_dir.path]:
            os.utime(path, (T0, T0))
    look(store, runs)
    assert resting(store) == set()

    monkeypatch.undo()
    monkeypatch.setattr(rest, "QUIET_S", -60.0)
    look(store, runs)
    assert resting(store) == set()


@pytest.mark.usefixtures("patience")
def test_a_run_that_goes_on_is_seen_in_the_next_answer(store: Database, runs: Path, ended: list[RunDir]) -> None:
    to_rest(store, runs)
    rest.wake_if_over(ended[3])  # as its agent does before it writes
    agent = Journal(ended[3], writer="agent", attempt=2, t0=T0 + 900)
    agent.event("attempt_started", pid=1, create_time=T0, hostname="node7", walltime_s=None)

    assert look(store, runs).runs == MANY
    assert get_run(store, UIDS[3]).state is State.RUNNING
    assert UIDS[3] not in resting(store)

    rest.clear_marks(str(runs / "default"), time.time() + 30 * 86_400)
    agent.event("attempt_ended", 9.0, state="FAILED", exit_code=1, signal=None, reason=None, wall_s=8.5)
    look(store, runs)
    assert get_run(store, UIDS[3]).state is State.FAILED


@pytest.mark.usefixtures("patience")
def test_a_mark_holds_until_the_journal_that_it_announces_is_there(
    store: Database, runs: Path, ended: list[RunDir]
) -> None:
    to_rest(store, runs)
    rest.wake(ended[0])
    assert look(store, runs) == look(store, runs) == IngestReport(runs=MANY)

    Journal(ended[0], attempt=2, t0=T0 + 900).metrics(0, loss=1.0)

    assert look(store, runs).new_points == 1


@pytest.mark.usefixtures("patience")
def test_what_nobody_announced_is_seen_within_a_day(
    store: Database, runs: Path, ended: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    to_rest(store, runs)
    Journal(ended[5], attempt=2, t0=T0 + 900).metrics(0, loss=1.0)
    assert look(store, runs).new_points == 0
    tomorrow = time.time() + rest.LOOK_EVERY_S + 1
    monkeypatch.setattr(news.time, "time", lambda: tomorrow)

    assert look(store, runs).new_points == 1
    assert look(store, runs).runs == MANY


@pytest.mark.usefixtures("patience")
def test_a_look_that_is_asked_for_explicitly_looks_at_all(store: Database, runs: Path, ended: list[RunDir]) -> None:
    to_rest(store, runs)
    Journal(ended[5], attempt=2, t0=T0 + 900).metrics(0, loss=1.0)

    assert ingest_all(store, runs).new_points == 1


@pytest.mark.usefixtures("patience", "ended")
def test_new_and_removed_runs_beside_those_at_rest_are_seen(store: Database, runs: Path) -> None:
    to_rest(store, runs)
    shutil.rmtree(runs / "default" / UIDS[1])
    new = make_run_dir(runs, "20260528-202640-new")

    assert look(store, runs).runs == MANY
    assert without_directory(store, [runs]) == [UIDS[1]]
    assert get_run(store, new.uid).state is State.PENDING
    assert look(store, runs).runs == MANY


@pytest.mark.usefixtures("patience", "ended")
def test_a_run_that_cannot_be_read_is_named_in_every_answer(store: Database, runs: Path) -> None:
    broken = make_run_dir(runs, "20260528-202640-broken")
    broken.manifest.write_text("{")
    to_rest(store, runs)

    reports = [look(store, runs) for _ in range(2)]

    assert [(report.runs, len(report.problems)) for report in reports] == [(MANY, 1)] * 2


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("is_gone", [True, False])
def test_a_run_at_rest_that_can_no_longer_be_read_is_named_from_then_on(
    store: Database, runs: Path, ended: list[RunDir], monkeypatch: pytest.MonkeyPatch, *, is_gone: bool
) -> None:
    to_rest(store, runs)
    if is_gone:
        ended[2].manifest.unlink()
    else:
        ended[2].manifest.write_text("{")
    tomorrow = time.time() + rest.LOOK_EVERY_S + 1
    monkeypatch.setattr(news.time, "time", lambda: tomorrow)

    reports = [look(store, runs) for _ in range(3)]

    assert [(report.runs, len(report.problems)) for report in reports] == [(MANY - 1, 1)] * 3


@pytest.mark.usefixtures("patience")
def test_a_folder_that_becomes_a_run_later_is_seen(store: Database, runs: Path, ended: list[RunDir]) -> None:
    to_rest(store, runs)
    later = runs / "default" / "20260528-202640-later"
    later.mkdir()
    look(store, runs)
    look(store, runs)

    shutil.copytree(make_run_dir(runs / ".elsewhere", later.name).path, later, dirs_exist_ok=True)

    assert look(store, runs).runs == MANY + 1 == len(ended) + 1


@pytest.mark.usefixtures("patience")
def test_a_run_below_two_folders_that_were_given_rests_all_the_same(
    store: Database, runs: Path, ended: list[RunDir]
) -> None:
    to_rest(store, runs)
    roots = (runs, runs / "default", ended[2].path)

    found = [find_news(store, *roots, is_brief=True) for _ in range(2)]

    assert [(one.changed, one.report) for one in found] == [([], IngestReport(runs=MANY))] * 2
    rest.wake(ended[2])
    Journal(ended[2], attempt=2, t0=T0 + 900).metrics(0, loss=1.0)
    again = find_news(store, *roots, is_brief=True)
    assert ([one.uid for one in again.changed], again.report.runs) == ([UIDS[2]], MANY - 1)


@pytest.mark.usefixtures("patience")
def test_a_mark_of_any_name_is_no_trouble(store: Database, runs: Path, ended: list[RunDir]) -> None:
    to_rest(store, runs)
    rest.wake(RunDir(ended[0].path.with_name(os.fsdecode(b"r\xe9union"))))

    assert look(store, runs) == IngestReport(runs=MANY)


@pytest.mark.usefixtures("patience")
def test_a_folder_whose_name_no_store_can_keep_is_looked_at(store: Database, runs: Path, ended: list[RunDir]) -> None:
    folder = runs / os.fsdecode(b"r\xe9union")
    ended[0].path.parent.rename(folder)
    ingest_all(store, runs)
    look(store, runs)
    woken = RunDir(folder / UIDS[0])
    rest.wake(woken)
    Journal(woken, attempt=2, t0=T0 + 900).metrics(0, loss=1.0)

    assert look(store, runs).new_points == 1


@pytest.mark.usefixtures("patience", "ended")
def test_a_store_without_rests_gives_the_same(store: Database, runs: Path, tmp_path: Path) -> None:
    to_rest(store, runs)

    assert contents(store) == fresh(tmp_path, runs)


@pytest.mark.usefixtures("patience")
def test_an_unseen_end_rests_later(store: Database, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = make_run_dir(runs)
    Journal(run_dir, writer="collect").event("lost", reason="its queue ended before it started")
    ingest_all(store, runs)
    assert get_run(store, run_dir.uid).state is State.LOST
    look(store, runs)
    assert resting(store) == set()

    monkeypatch.setattr(rest, "QUIET_UNSEEN_S", -60.0)
    look(store, runs)
    assert resting(store) == {run_dir.uid}


def test_marks_are_removed_after_a_week(runs: Path, ended: list[RunDir]) -> None:
    folder = str(runs / "default")
    rest.wake(ended[0])
    now = datetime.now().timestamp()  # noqa: DTZ005 - a timestamp

    rest.clear_marks(folder, now)
    assert rest.woken_in(folder) == {UIDS[0]}
    rest.clear_marks(folder, now + 7 * 86_400 + 60)
    assert rest.woken_in(folder) == frozenset()


def test_only_a_run_that_has_ended_gets_a_mark(runs: Path, ended: list[RunDir]) -> None:
    waiting = make_run_dir(runs, "20260528-202640-waiting")
    rest.wake_if_over(waiting)
    rest.wake_if_over(ended[0])

    assert rest.woken_in(str(runs / "default")) == {UIDS[0]}
