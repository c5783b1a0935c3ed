"""A run has one state: whoever reads its journals, in whatever order, pieces and files they come."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcml.commands.follow import Watcher
from hpcml.commands.retry import is_going_on
from hpcml.commands.top import RunTop
from hpcml.model.records import StoredEvent
from hpcml.model.state import State
from hpcml.report.show import attempts_of
from hpcml.runs.journal import USER
from hpcml.runs.layout import RunDir
from hpcml.runs.state import DECISIVE, EventName, RunEvent, RunFold, read_fold
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store
from hpcml.store.query import events, get_run
from tests.store.building import T0, Journal, make_run_dir

UID = "20260528-202640-aaaaaa"


@dataclass(frozen=True)
class Seen:
    """What everybody who is asked says of a run."""

    store: tuple[State, bool, str | None, int]
    watcher: tuple[State, bool, str | None, int]
    top: tuple[State, bool, str | None, int]
    show: State

    def is_one(self) -> bool:
        return self.store == self.watcher == self.top and self.show is self.store[0]


def all_say(run_dir: RunDir, store: Database, *, watcher: Watcher | None = None, top: RunTop | None = None) -> Seen:
    ingest_all(store, run_dir.path.parent.parent)
    record = get_run(store, run_dir.uid)
    glimpse = (watcher or Watcher(run_dir)).look()
    now, _ = (top or RunTop(run_dir)).look(time.time())
    attempts = attempts_of(events(store, run_dir.uid))
    return Seen(
        store=(record.state, record.is_settled, record.reason, record.attempt),
        watcher=(glimpse.state, glimpse.is_settled, glimpse.reason, glimpse.attempt),
        top=(now.state, now.is_settled, now.reason, now.attempt),
        show=attempts[-1].state if attempts else State.PENDING,
    )


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return make_run_dir(tmp_path / "runs")


@pytest.fixture
def store(tmp_path: Path) -> Database:
    return open_store(str(tmp_path / "store.db"))


def test_a_node_that_fails_after_the_first_one_completed_fails_the_run_for_everybody(
    run_dir: RunDir, store: Database
) -> None:
    first, second = Journal(run_dir, writer="agent"), Journal(run_dir, writer="agent1")
    first.event("attempt_started", 1.0, node=0)
    second.event("attempt_started", 1.5, node=1)
    first.event("attempt_ended", 10.0, state="COMPLETED", exit_code=0)
    watcher, top = Watcher(run_dir), RunTop(run_dir)
    before = all_say(run_dir, store, watcher=watcher, top=top)

    second.event("attempt_ended", 11.0, state="FAILED", exit_code=1, reason="exit status 1")

    assert (before.is_one(), before.show) == (True, State.COMPLETED)
    for seen in (all_say(run_dir, store), all_say(run_dir, store, watcher=watcher, top=top)):
        assert seen.is_one()
        assert seen.store == (State.FAILED, True, "exit status 1", 1)


def test_the_first_failure_counts_whichever_file_is_read_first(run_dir: RunDir, store: Database) -> None:
    Journal(run_dir, writer="agent").event("attempt_ended", 12.0, state="FAILED", reason="killed by SIGTERM")
    Journal(run_dir, writer="agent1").event("attempt_ended", 11.0, state="OUT_OF_MEMORY", reason="oom")

    seen = all_say(run_dir, store)

    assert seen.is_one()
    assert seen.store[:3] == (State.OUT_OF_MEMORY, True, "oom")


def test_failures_in_the_same_millisecond_are_told_apart_by_what_they_say(run_dir: RunDir, store: Database) -> None:
    Journal(run_dir, writer="agent").event("attempt_ended", 12.0001, state="FAILED", reason="a")
    Journal(run_dir, writer="agent1").event("attempt_ended", 12.0, state="OUT_OF_MEMORY", reason="b")

    assert all_say(run_dir, store).is_one()


def test_a_run_that_waits_again_says_why_everywhere(run_dir: RunDir, store: Database) -> None:
    Journal(run_dir, writer="agent").event("attempt_ended", 1.0, state="TIMEOUT", checkpointed=True)
    Journal(run_dir, writer="agent", attempt=2).event("submitted", 2.0, why="left at a checkpoint", by="agent")

    seen = all_say(run_dir, store)

    assert seen.is_one()
    assert seen.store == (State.PENDING, True, "left at a checkpoint", 2)


def test_a_journal_of_another_run_changes_nothing(run_dir: RunDir, store: Database, tmp_path: Path) -> None:
    other = make_run_dir(tmp_path / "others", "20260528-202640-bbbbbb")
    Journal(run_dir, writer="agent").event("attempt_ended", 1.0, state="COMPLETED")
    foreign = Journal(other, writer="agent1", attempt=2)
    foreign.event("attempt_ended", 2.0, state="FAILED")
    (run_dir.journals / foreign.path.name).write_bytes(foreign.path.read_bytes())

    assert all_say(run_dir, store).store == (State.COMPLETED, True, None, 1)
    assert all_say(run_dir, store).is_one()


def test_a_journal_whose_first_line_was_damaged_is_read_once_its_writer_repeats_it(
    run_dir: RunDir, store: Database
) -> None:
    agent = Journal(run_dir, writer="agent")
    header = agent.path.read_text()
    agent.path.write_bytes(b"\0" * len(header) + b"\n")
    agent.event("attempt_started", 1.0)
    watcher, top = Watcher(run_dir), RunTop(run_dir)
    before = all_say(run_dir, store, watcher=watcher, top=top)

    agent.write(header)
    agent.event("attempt_ended", 2.0, state="FAILED", reason="r")

    assert (before.is_one(), before.store[0]) == (True, State.PENDING)
    seen = all_say(run_dir, store, watcher=watcher, top=top)
    assert seen.is_one()
    assert seen.store[0] is State.FAILED


def test_what_people_say_of_a_run_is_not_how_it_went(run_dir: RunDir, store: Database) -> None:
    Journal(run_dir, writer="agent", attempt=0).event("attempt_started", 1.0)
    Journal(run_dir, writer=USER, attempt=0).event("attempt_ended", 2.0, state="COMPLETED")

    seen = all_say(run_dir, store)

    assert seen.is_one()
    assert seen.store[0] is State.RUNNING


def test_the_end_of_a_journal_of_many_mebibytes_is_seen_at_the_first_look(run_dir: RunDir, store: Database) -> None:
    agent = Journal(run_dir, writer="agent")
    agent.event("attempt_started", 1.0)
    agent.write("".join(agent.metrics_line(step, 2.0, loss=0.5) for step in range(110_000)))
    agent.event("attempt_ended", 3.0, state="COMPLETED")

    assert agent.path.stat().st_size > 4 << 20
    assert all_say(run_dir, store).is_one()


def test_a_stretch_of_zeros_ends_no_watch(run_dir: RunDir, store: Database) -> None:
    agent = Journal(run_dir, writer="agent")
    agent.event("attempt_started", 1.0)
    watcher, top = Watcher(run_dir), RunTop(run_dir)
    all_say(run_dir, store, watcher=watcher, top=top)
    agent.write("\0" * (9 << 20))
    all_say(run_dir, store, watcher=watcher, top=top)
    agent.write("\n")
    agent.event("attempt_ended", 3.0, state="COMPLETED")

    assert all_say(run_dir, store, watcher=watcher, top=top).is_one()


def test_a_run_is_going_on_while_its_agent_may_queue_it_once_more(run_dir: RunDir, store: Database) -> None:
    Journal(run_dir, writer="agent").event("attempt_ended", 1.0, state="TIMEOUT", checkpointed=True)
    waits = Journal(run_dir, writer="agent", attempt=2)
    waits.event("submitted", 2.0, why="left at a checkpoint", by="agent")
    waits.event("submitted", 3.0, why="left at a checkpoint", by="agent", job_id="7")  # of one requeue two words
    waits.event("attempt_ended", 9.0, state="TIMEOUT", checkpointed=True)
    ingest_all(store, run_dir.path.parent.parent)
    record = get_run(store, UID)

    def with_limit(requeues: int) -> bool:
        params = {**record.params, "schedule.max_requeues": requeues}
        return is_going_on(store, replace(record, params=params), T0 + 10)

    assert with_limit(2)
    assert not with_limit(1)


# --- any events, in any order and any pieces

NUMBERS = itertools.count()
WRITERS = ("launch", "agent", "agent1", "agent2", "rank0", "collect")


@st.composite
def lives(draw: st.DrawFn) -> list[RunEvent]:
    """Anything that several writers might tell of up to three attempts, sensible or not, with many ties."""
    states = st.sampled_from([state.value for state in State if state.is_final])
    told = [
        RunEvent(attempt=number, writer="launch", at_ms=0, name="submitted", details={"why": "again"})
        for number in range(draw(st.integers(1, 3)))
    ]
    for _ in range(draw(st.integers(0, 10))):
        details: dict[str, Any] = {"state": draw(states), "reason": draw(st.sampled_from([None, "a", "b"]))}
        details |= {"checkpointed": draw(st.booleans()), "signal": draw(st.sampled_from([None, 9]))}
        details |= {"job_id": draw(st.sampled_from([None, "1", "2"])), "job_name": draw(st.sampled_from([None, "n"]))}
        told.append(
            RunEvent(
                attempt=draw(st.integers(0, len({one.attempt for one in told}) - 1)),
                writer=draw(st.sampled_from(WRITERS)),
                at_ms=draw(st.integers(0, 3)),
                name=draw(st.sampled_from([*map(str, DECISIVE), EventName.CHECKPOINT.value, "facts"])),
                details=details,
            )
        )
    return told


def everything(fold: RunFold) -> list[object]:
    attempts = [
        (one.number, one.state, one.decision, one.end_seen, one.began_ms, one.ended_ms, one.hosts, one.submissions,
         one.starts, one.jobs, one.checkpoint_steps, one.left_checkpoint, one.is_requeue, one.has_ended, one.may_go_on)
        for one in fold
    ]  # fmt: skip
    return [fold.state, fold.is_settled, fold.reason, fold.attempt, fold.job, fold.scheduler, fold.requeues, attempts]


@given(lives(), st.randoms())
def test_the_same_events_in_any_order_give_the_same_answers(told: list[RunEvent], rng: random.Random) -> None:
    assert everything(RunFold.of(rng.sample(told, len(told)))) == everything(RunFold.of(told))


@given(lives(), st.integers(0, 10))
def test_asking_in_between_changes_nothing(told: list[RunEvent], cut: int) -> None:
    fold = RunFold()
    for at, one in enumerate(told):
        fold.take(one)
        if at == cut:
            everything(fold)

    assert everything(fold) == everything(RunFold.of(told))


@given(lives(), st.randoms())
def test_a_failure_is_never_taken_back_by_another_nodes_success(told: list[RunEvent], rng: random.Random) -> None:
    last = max(one.attempt for one in told)
    failed = RunEvent(attempt=last, writer="agent1", at_ms=1, name="attempt_ended", details={"state": "FAILED"})
    done = RunEvent(attempt=last, writer="agent", at_ms=0, name="attempt_ended", details={"state": "COMPLETED"})

    told = [*told, failed, done]

    assert RunFold.of(rng.sample(told, len(told))).state not in (State.COMPLETED, State.RUNNING, State.PENDING)


def journals_of(told: Sequence[RunEvent], rng: random.Random) -> dict[str, list[tuple[float, RunEvent]]]:
    """Split *told* over any number of files, one writer and attempt each, that began at different moments."""
    files: dict[str, list[tuple[float, RunEvent]]] = {}
    for one in told:
        part = rng.randrange(2)
        t0_ms = part * 1.5
        files.setdefault(f"{one.attempt} {one.writer} {part}", []).append((t0_ms, one))
    for lines in files.values():
        rng.shuffle(lines)
    return files


@pytest.fixture(scope="module")
def common_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    store = open_store(str(tmp_path_factory.mktemp("store") / "store.db"))  # making one takes a second
    yield store
    store.close()


@settings(max_examples=25, deadline=None)
@given(told=lives(), rng=st.randoms(use_true_random=False))
def test_any_files_and_any_reads_give_one_state_to_all_users(
    common_store: Database, told: list[RunEvent], rng: random.Random
) -> None:
    store = common_store
    with TemporaryDirectory() as folder:
        run_dir = make_run_dir(Path(folder) / "runs", f"20260528-202640-{next(NUMBERS):06d}")
        watcher, top = Watcher(run_dir), RunTop(run_dir)
        waiting, written = journals_of(told, rng), dict[str, Journal]()
        while waiting:
            name = rng.choice(sorted(waiting))
            t0_ms, one = waiting[name].pop()
            if name not in written:
                written[name] = journal = Journal(run_dir, writer=one.writer, attempt=one.attempt, t0=T0 + t0_ms / 1000)
                path = journal.path.with_name(f"{rng.randrange(10**9)}-{len(written)}-{journal.path.name}")
                journal.path = journal.path.rename(path)
            written[name].event(one.name, (one.at_ms - t0_ms) / 1000, **one.details)
            if not waiting[name]:
                del waiting[name]
            if rng.random() < 0.2:
                all_say(run_dir, store, watcher=watcher, top=top)
        looked_on, anew = all_say(run_dir, store, watcher=watcher, top=top), all_say(run_dir, store)

    expected = RunFold.of(told)
    assert looked_on == anew
    assert looked_on.is_one()
    assert looked_on.store == (expected.state, expected.is_settled, expected.reason, expected.attempt)


def test_an_attempt_that_died_unseen_does_not_run_any_more_once_there_is_another() -> None:
    events = [
        StoredEvent(t_s=0.0, writer="agent", attempt=0, name="attempt_started", details={}),
        StoredEvent(t_s=90.0, writer="collect", attempt=1, name="submitted", details={"why": "requeued by pbs"}),
    ]

    before, after = attempts_of(events[:1]), attempts_of(events)

    assert [one.state for one in before] == [State.RUNNING]
    assert [(one.state, one.why) for one in after] == [
        (State.LOST, "its end was not recorded"),
        (State.PENDING, None),
    ]


def test_a_journal_without_its_header_says_nothing_but_its_attempt_is_taken(run_dir: RunDir) -> None:
    Journal(run_dir, writer="agent", attempt=0).event("attempt_started", 1.0)
    second = Journal(run_dir, writer="agent", attempt=1)
    second.path.write_bytes(b"\0" * second.path.stat().st_size + b"\n")
    second.event("attempt_ended", 2.0, state="COMPLETED")
    second.path.rename(second.path.with_name("1-node7-4711-agent.jsonl"))

    told = read_fold(run_dir)

    assert (told.state, told.attempt) == (State.RUNNING, 1)
