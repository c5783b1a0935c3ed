"""What runs become while they are looked at: answers of a scheduler that are older than the run's own words."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hpcml.commands.collect import collect, opened
from hpcml.commands.selection import Selection
from hpcml.commands.status import SchedulersAsked, look, standing_of, standings
from hpcml.commands.submit.backends import Backends
from hpcml.commands.sync import synchronise
from hpcml.commands.wait import TimeIsUpError, wait
from hpcml.model.records import Known, RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.cancellation import mark_cancelled
from hpcml.runs.layout import RunDir
from hpcml.runs.liveness import FORGOTTEN_SILENCE_S, ProcessIdentity
from hpcml.runs.private import make_home
from hpcml.store.query import find_runs
from hpcml.store.scheduler_polls import keep_words
from tests.store.building import Journal, make_run_dir

FORMER = {"scheduler": "pbs", "job_id": "4.pbs01", "job_name": "x"}
WAITS = Known(state=State.PENDING, raw="PENDING", reason="Resources", is_live=True)
NEXT = {"why": "left at a checkpoint", "by": "agent"}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(home=tmp_path / "home", store_url=str(tmp_path / "home" / "store.db"))


def left_at_a_checkpoint(places: Places, agent: Mapping[str, Any]) -> tuple[RunDir, Journal]:
    """Write a run that *agent* is putting back into the queue; return it with the journal of its next attempt."""
    make_home(places.home)
    run_dir = make_run_dir(places.runs)
    Journal(run_dir, writer="launch", attempt=0).event("submitted", **FORMER)
    journal = Journal(run_dir, writer="agent", attempt=0)
    journal.event("attempt_started", 1.0, job_id="4.pbs01", **agent)
    journal.event("attempt_ended", 2.0, state="TIMEOUT", exit_code=75, checkpointed=True)
    following = Journal(run_dir, writer="agent", attempt=1)
    following.event("submitted", 3.0, **NEXT)
    return run_dir, following


def ended(tell: Callable[[], None] = lambda: None) -> Callable[[Sequence[RunRecord]], Mapping[str, Known | None]]:
    """Ask PBS, which knows that the former job has ended; meanwhile the agent can *tell* something."""

    def ask(records: Sequence[RunRecord]) -> Mapping[str, Known | None]:
        assert [record.job_id for record in records] == ["4.pbs01"]
        tell()
        return {record.uid: Known(state=State.FAILED, raw="F", exit_code="75", is_live=True) for record in records}

    return ask


def test_that_many_runs_are_read_first_is_said(places: Places, caplog: pytest.LogCaptureFixture) -> None:
    make_home(places.home)
    for number in range(1000):
        (folder := places.runs / "default" / f"20260528-202640-{number:08}").mkdir(parents=True)
        (folder / "run.json").touch()  # which says nothing: that is faster than a run

    with opened(places) as store:
        collect(store, places)

    assert caplog.messages[0] == "1000 run directories have news, which are read first: that takes a while"


def test_the_end_of_a_job_is_not_that_of_the_one_that_goes_on_meanwhile(places: Places) -> None:
    _, following = left_at_a_checkpoint(places, ProcessIdentity.of_this_process().as_details())

    with opened(places) as store:
        (run,) = collect(store, places, ended(lambda: following.event("submitted", 4.0, **NEXT, job_id="5.pbs01"))).runs

        assert run.state is State.PENDING
        (run,) = collect(store, places).runs
    assert (run.state, run.attempt, run.job_id) == (State.PENDING, 1, "5.pbs01")


def test_a_run_that_its_agent_is_putting_back_is_not_judged(places: Places) -> None:
    run_dir, _ = left_at_a_checkpoint(places, ProcessIdentity.of_this_process().as_details())

    with opened(places) as store:
        assert collect(store, places, ended()).runs[0].state is State.PENDING

        long_ago = time.time() - FORGOTTEN_SILENCE_S
        for journal in run_dir.journal_files():
            os.utime(journal, (long_ago, long_ago))
        assert collect(store, places, ended()).runs[0].state is State.FAILED


def test_a_run_whose_agent_died_while_it_put_it_back_is_judged_at_once(places: Places) -> None:
    here = ProcessIdentity.of_this_process().as_details()
    left_at_a_checkpoint(places, {**here, "pid": 2**22 + 1})

    with opened(places) as store:
        (run,) = collect(store, places, ended()).runs

    assert run.state is State.FAILED


def running(places: Places, agent: Mapping[str, Any] | None = None) -> tuple[RunDir, Journal]:
    """Write a run that *agent* carries out, in a job of PBS or, where it is given, on this machine; and its journal."""
    make_home(places.home)
    run_dir = make_run_dir(places.runs)
    job = FORMER if agent is None else {"scheduler": "local", "job_id": "local-1"}
    Journal(run_dir, writer="launch", attempt=0).event("submitted", **job)
    journal = Journal(run_dir, writer="agent", attempt=0)
    journal.event("attempt_started", 1.0, job_id=job["job_id"], **(agent or {}))
    return run_dir, journal


def test_an_end_that_its_agent_told_while_its_scheduler_was_asked_goes_first(places: Places) -> None:
    run_dir, journal = running(places)

    with opened(places) as store:
        collect(store, places, ended(lambda: journal.event("attempt_ended", 2.0, state="COMPLETED", exit_code=0)))
        collect(store, places)
        (run,) = find_runs(store)

    assert run.state is State.COMPLETED
    assert not list(run_dir.journals.glob("*-collect*"))


def test_an_end_that_an_agent_told_before_it_was_found_dead_goes_first(places: Places) -> None:
    here = ProcessIdentity.of_this_process().as_details()
    run_dir, journal = running(places, {**here, "pid": 2**22 + 1})

    def told_meanwhile(_: Sequence[RunRecord]) -> Mapping[str, Known | None]:
        journal.event("attempt_ended", 2.0, state="COMPLETED", exit_code=0)
        return {}

    with opened(places) as store:
        collect(store, places, told_meanwhile)
        collect(store, places)
        (run,) = find_runs(store)

    assert run.state is State.COMPLETED
    assert not list(run_dir.journals.glob("*-collect*"))


@pytest.mark.parametrize("name", ["1-node7-agent.jsonl", "0-node7-rank0.jsonl"])
def test_a_journal_that_nobody_can_read_keeps_no_end_from_being_recorded(places: Places, name: str) -> None:
    run_dir, _ = running(places)
    (run_dir.journals / name).write_text("no header\n", encoding="utf-8")

    with opened(places) as store:
        (run,) = collect(store, places, ended()).runs

    assert run.state is State.FAILED


def test_a_run_that_only_a_rank_says_has_begun_is_judged_too(places: Places) -> None:
    make_home(places.home)
    run_dir = make_run_dir(places.runs)
    Journal(run_dir, writer="launch", attempt=0).event("submitted", **FORMER)
    Journal(run_dir, writer="rank0", attempt=0).event("attempt_started", 1.0, job_id="4.pbs01")

    with opened(places) as store:
        assert collect(store, places).runs[0].state is State.RUNNING
        (run,) = collect(store, places, ended()).runs

    assert run.state is State.FAILED


def test_what_was_said_of_a_job_that_is_forgotten_counts_no_more(places: Places) -> None:
    make_home(places.home)
    run_dir = make_run_dir(places.runs)
    Journal(run_dir, writer="launch", attempt=0).event("submitted", scheduler="slurm", job_id="7", job_name="x")

    with opened(places) as store:
        collect(store, places)
        keep_words(places.home, {run_dir.uid: WAITS}, at=time.time())
        long_ago = time.time() - FORGOTTEN_SILENCE_S
        for journal in run_dir.journal_files():
            os.utime(journal, (long_ago, long_ago))
        (run,) = collect(store, places, lambda _: {run_dir.uid: None}).runs  # its id is another job's

        assert run.state is State.LOST
        (standing,) = standing_of(places.home, [run])
    assert standing.known is None


def packed(places: Places, uid: str, state: str | None) -> str:
    """Write a run that job 7 carries out beside others, and that has ended as *state*; None: it goes on."""
    run_dir = make_run_dir(places.runs, uid)
    job = {"scheduler": "slurm", "job_id": "7", "job_name": "x", "pack": "p"}
    Journal(run_dir, writer="launch", attempt=0).event("submitted", **job)
    journal = Journal(run_dir, writer="agent", attempt=0)
    journal.event("attempt_started", 1.0, job_id="7", pack="p")
    if state is not None:
        journal.event("attempt_ended", 2.0, state=state, exit_code=1)
    return run_dir.uid


def test_a_job_that_carries_out_others_is_not_that_of_a_run_that_it_has_done(places: Places) -> None:
    make_home(places.home)
    done = packed(places, "20261121-083015-222aaaaa", "FAILED")
    goes_on = packed(places, "20261121-083015-222bbbbb", None)
    runs_ = Known(state=State.RUNNING, raw="RUNNING", is_live=True)

    with opened(places) as store:
        collect(store, places)
        keep_words(places.home, {done: runs_, goes_on: runs_}, at=time.time())
        found = {one.record.uid: one.known for one in standing_of(places.home, find_runs(store))}

    assert (found[done], found[goes_on] is not None) == (None, True)


def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Put programs of Slurm on PATH, by the lines of their shell scripts."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


def say_in_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: Sequence[str]) -> None:
    """Have squeue tell of jobs called x, by their ids, states and reasons."""
    rest = "\\037N/A\\0371:00:00\\0371:00:00\\037x\\n"  # as squeue is asked
    fields = [row.replace("|", "\\037") + rest for row in rows]
    say(tmp_path, monkeypatch, squeue=f"printf '{''.join(fields)}'")


def test_that_the_controller_is_down_and_the_accounting_answers_alone_is_said(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_home(places.home)
    run_dir = make_run_dir(places.runs)
    Journal(run_dir, writer="launch", attempt=0).event("submitted", scheduler="slurm", job_id="7", job_name="x")
    fields = ["7", "RUNNING", "0:0", "9", "00:00:01", "", "x"]  # as sacct is asked
    away = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    told = "\\037".join(fields)
    say(tmp_path, monkeypatch, squeue=away, sacct=f"printf '{told}\\n'")

    _, problems = standings(places, Selection(), Backends.here(places, {}), 0.0)

    assert "Unable to contact slurm controller" in problems[0]
    assert "only the accounting" in problems[0]


def test_a_run_submitted_after_the_last_question_is_asked_about_soon(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_home(places.home)
    say_in_queue(tmp_path, monkeypatch, [f"{job_id}|PENDING|Resources" for job_id in (7, 8)])
    submitted_s, seen = datetime.fromisoformat("2026-05-28T20:26:40+00:00").timestamp(), []

    def submit(job_id: str) -> None:
        run_dir = make_run_dir(places.runs, f"20261121-083015-222aaaa{job_id}")
        Journal(run_dir, writer="launch", attempt=0).event("submitted", scheduler="slurm", job_id=job_id, job_name="x")

    with opened(places) as store:
        submit("7")
        for later_s in (0, 5, 11, 30, 69):
            at_s = submitted_s + later_s
            if later_s == 5:
                submit("8")
            asked = SchedulersAsked(backends=Backends.here(places, {}), interval_s=60.0, now=lambda at_s=at_s: at_s)
            found = look(store, places, Selection(), asked)
            seen.append([one.said_at and round(one.said_at - submitted_s) for one in found])

    assert seen == [[0], [0, None], [11, 11], [11, 11], [11, 11]]


def test_whoever_waits_for_jobs_that_do_not_start_by_themselves_is_told_why_once(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_home(places.home)
    for job_id in ("6", "7", "8"):
        run_dir = make_run_dir(places.runs, f"20261121-083015-222aaaa{job_id}")
        Journal(run_dir, writer="launch", attempt=0).event("submitted", scheduler="slurm", job_id=job_id, job_name="x")
    why = ["Resources", "JobHeldUser", "JobHeldUser"]
    say_in_queue(tmp_path, monkeypatch, [f"{n}|PENDING|{words}" for n, words in enumerate(why, 6)])
    told = []

    with opened(places) as store, suppress(TimeIsUpError):
        backends = Backends.here(places, {})
        for news in wait(store, backends, Selection(), interval_s=0.0, timeout_s=2.5):  # two looks or more
            told.append(news)  # noqa: PERF402 - until it raises

    which = "2 runs (20261121-083015-222aaaa7, ...)"
    assert told == [f"{which} wait: JobHeldUser: scontrol release lets it start"]


def test_a_job_that_goes_on_though_it_was_cancelled_is_cancelled_again_by_sync_alone(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_home(places.home)
    run_dir = make_run_dir(places.runs, "20261121-083015-222aaaa7")
    Journal(run_dir, writer="launch", attempt=0).event("submitted", scheduler="slurm", job_id="7", job_name="x")
    mark_cancelled(run_dir)
    os.utime(run_dir.cancel_mark, (0, time.time() - 60))
    say_in_queue(tmp_path, monkeypatch, ["7|RUNNING|None"])
    told = tmp_path / "told"
    (tmp_path / "bin" / "scancel").write_text(f'#!/bin/sh\necho "$@" >>{told}\n')
    (tmp_path / "bin" / "scancel").chmod(0o755)
    backends = Backends.here(places, {})

    _, lines = standings(places, Selection(), backends, 0.0)
    assert lines == ["a cancelled job goes on: hpcml sync tells the scheduler again"]
    assert not told.exists()

    done = synchronise(places, backends, 60.0)  # nobody is asked so soon, and what was said last counts
    assert "slurm was told again to cancel 20261121-083015-222aaaa7" in done.lines
    assert told.read_text().split()[-1] == "7"
    synchronise(places, backends, 0.0)
    assert len(told.read_text().splitlines()) == 1  # it has half a minute to obey
