from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcml.model.records import Known
from hpcml.model.state import State
from hpcml.store.scheduler_polls import Poll, claim_poll, keep_words, last_poll, read_words, record_poll, wait_s
from tests import warm
from tests.warm import Process

T = 1_780_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A home, in which the answers of schedulers are kept."""
    return tmp_path


CLAIMANT = """
import sys
from pathlib import Path
from hpcml.store.scheduler_polls import claim_poll
store = Path(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    print(claim_poll(store, "slurm", now=float(line), interval_s=60), flush=True)
"""


def claim(store: Path, now: float, *, interval_s: float = 60, scheduler: str = "slurm") -> bool:
    return claim_poll(store, scheduler, now=now, interval_s=interval_s)


def record(store: Path, now: float, *, calls: int = 1, problem: str | None = None) -> None:
    record_poll(store, "slurm", now=now, calls=calls, answered=problem is None, interval_s=60, problem=problem)


def test_of_eight_processes_that_want_to_ask_exactly_one_may(store: Path) -> None:
    users = [warm.start(CLAIMANT, str(store), stderr=None) for _ in range(8)]
    try:
        assert [said_by(user) for user in users] == ["ready"] * 8
        for trial in range(10):
            now = T + 60 * trial
            for user in users:
                assert user.stdin is not None
                user.stdin.write(f"{now}\n")
                user.stdin.flush()
            assert sorted(said_by(user) for user in users) == ["False"] * 7 + ["True"]
            record(store, now)
    finally:
        for user in users:
            user.communicate(timeout=60)


def said_by(user: Process) -> str:
    assert user.stdout is not None
    return user.stdout.readline().strip()


def test_a_scheduler_that_was_never_asked_may_be_asked_once(store: Path) -> None:
    assert last_poll(store, "slurm") is None
    assert claim(store, T)
    assert not claim(store, T + 1)
    assert last_poll(store, "slurm") is None  # it is being asked


def test_a_poll_allows_the_next_one_as_many_minutes_later_as_it_made_calls(store: Path) -> None:
    for calls in (1, 2, 5):
        record(store, T, calls=calls)

        assert last_poll(store, "slurm") == Poll(asked_at=T, next_at=T + calls * 60, failures=0, problem=None)
        assert not claim(store, T + calls * 60 - 0.1)
        assert claim(store, T + calls * 60)


def test_schedulers_are_asked_apart_from_each_other(store: Path) -> None:
    assert claim(store, T)
    assert claim(store, T, scheduler="pbs")


def test_each_failure_in_a_row_doubles_the_wait_up_to_16_minutes(store: Path) -> None:
    waits = []
    for _ in range(7):
        record(store, T, problem="squeue gave no answer within 30 s")
        poll = last_poll(store, "slurm")
        assert poll is not None
        assert poll.problem == "squeue gave no answer within 30 s"
        waits.append((poll.next_at - T) / 60)

    assert waits == [2, 4, 8, 16, 16, 16, 16]
    record(store, T)
    assert last_poll(store, "slurm") == Poll(asked_at=T, next_at=T + 60, failures=0, problem=None)


def test_a_question_of_many_calls_is_not_asked_sooner_because_it_failed() -> None:
    assert wait_s(30, 3, 60) == 30 * 60


def test_whoever_is_in_a_hurry_or_in_none_waits_by_its_own_interval(store: Path) -> None:
    record(store, T, calls=2)

    assert not claim(store, T + 150, interval_s=100)
    assert claim(store, T + 0.1, interval_s=0)


def test_a_claim_whose_caller_died_lapses(store: Path) -> None:
    assert claim(store, T)

    assert not claim(store, T + 299)
    assert claim(store, T + 301)
    assert not claim(store, T + 302)


def test_a_claim_under_which_nothing_was_asked_is_given_back_and_changes_nothing(store: Path) -> None:
    record(store, T, problem="no answer")
    before = last_poll(store, "slurm")
    assert claim(store, T + 500)
    record(store, T + 501, calls=0)

    assert last_poll(store, "slurm") == before
    assert claim(store, T + 502)


def test_a_scheduler_that_could_not_even_be_called_is_left_alone_for_a_while_too(store: Path) -> None:
    record(store, T, calls=0, problem="squeue is not here")

    assert not claim(store, T + 119)


@settings(deadline=None)
@given(
    set_back_s=st.floats(0, 1e7),
    failures=st.integers(0, 5),
)
def test_a_clock_that_is_set_back_at_most_doubles_the_wait(
    tmp_path_factory: pytest.TempPathFactory, set_back_s: float, failures: int
) -> None:
    store = tmp_path_factory.mktemp("home")
    for _ in range(failures):
        record(store, T, problem="no answer")
    if not failures:
        record(store, T)
    wait = wait_s(1, failures, 60)
    set_back = T - set_back_s

    assert claim(store, set_back) or claim(store, set_back + 2 * wait + 1)  # for somebody who keeps on asking


def test_a_login_node_whose_clock_is_a_little_behind_asks_no_sooner(store: Path) -> None:
    record(store, T)

    assert not claim(store, T - 5)


def test_a_claim_from_before_the_clock_was_set_back_lapses(store: Path) -> None:
    assert claim(store, T)

    assert claim(store, T - 3600)


WORDS = {
    "a": Known(state=State.PENDING, raw="PD", reason="(Priority) ä \ud800", expected_start="2026-11-21T12:00:00"),
    "b": Known(state=State.OUT_OF_MEMORY, raw="OUT_OF_MEMORY", exit_code="0:125", is_live=False),
}


def test_words_are_kept_until_newer_ones_come(store: Path) -> None:
    keep_words(store, WORDS, at=T)
    keep_words(store, {"b": Known(state=State.RUNNING, raw="R")}, at=T + 60)
    keep_words(store, {}, at=T + 99)

    said = read_words(store, ["a", "b", "never heard of"])

    assert said == {
        "a": (
            Known(state=State.PENDING, raw="PD", reason="(Priority) ä \ud800", expected_start="2026-11-21T12:00:00"),
            T,
        ),
        "b": (Known(state=State.RUNNING, raw="R"), T + 60),
    }


def test_words_on_thousands_of_runs_are_kept_and_read(store: Path) -> None:
    words = {f"run-{number}": Known(state=State.RUNNING, raw="R") for number in range(3000)}
    keep_words(store, words, at=T)
    keep_words(store, words, at=T + 1)

    assert read_words(store, list(words)) == {uid: (known, T + 1) for uid, known in words.items()}


def test_a_word_that_nobody_asked_for_in_a_month_is_dropped(store: Path) -> None:
    keep_words(store, WORDS, at=T)
    keep_words(store, {"b": Known(state=State.RUNNING, raw="R")}, at=T + 31 * 86400)

    assert list(read_words(store, ["a", "b"])) == ["b"]
