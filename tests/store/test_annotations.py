"""What people say of runs, folded and kept: in whatever order it was found, and whatever is in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcml.store.database import Database
from hpcml.store.facts import Happening, JournalStart, fold_notes, fold_tags
from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store
from hpcml.store.parse import storable
from hpcml.store.query import get_run
from tests.store.building import T0, Journal, contents, make_run_dir

UID = "20260528-202640-aaaaaaaa"


@pytest.fixture
def other_store(tmp_path: Path) -> Iterator[Database]:
    other = open_store(str(tmp_path / "other.db"))
    yield other
    other.close()


def said(name: str, at: float = T0, *, file: str = "0-a-1-user.jsonl", ordinal: int = 0, **details: Any) -> Happening:  # noqa: ANN401
    writer = file.rpartition("-")[2].partition(".")[0]
    journal = JournalStart(file=file, writer=writer, attempt=0, t0=T0)
    return Happening(journal=journal, ordinal=ordinal, at=at, name=name, details=details)


def test_the_last_word_on_a_tag_counts_in_whatever_order_it_was_found() -> None:
    words = [
        said("tagged", T0 + 1, tag="paper"),
        said("untagged", T0 + 2, tag="draft"),
        said("untagged", T0 + 3, tag="paper"),
        said("tagged", T0 + 4, tag="paper", file="0-b-2-user.jsonl"),
        said("tagged", T0 + 4, tag="last", file="0-b-2-user.jsonl", ordinal=1),
    ]

    for found in itertools.permutations(words):
        assert fold_tags(["draft", "first"], found) == ["first", "paper", "last"]


@given(st.permutations(range(8)), st.lists(st.sampled_from("ab"), min_size=8, max_size=8))
@settings(deadline=None)
def test_any_history_has_one_outcome(order: list[int], tags: list[str]) -> None:
    words = [said("tagged" if at % 3 else "untagged", T0 + at // 2, ordinal=at, tag=tag) for at, tag in enumerate(tags)]

    assert fold_tags(["a"], [words[at] for at in order]) == fold_tags(["a"], words)


@pytest.mark.parametrize("details", [{}, {"tag": 3}, {"tag": None}, {"tag": ["paper"]}, {"text": 3, "author": []}])
def test_what_says_nothing_is_passed_over(details: dict[str, Any]) -> None:
    assert fold_tags(["first"], [said(name, **details) for name in ("tagged", "untagged", "noted")]) == ["first"]
    assert fold_notes([said(name, **details) for name in ("tagged", "untagged", "noted")]) == []


def test_a_program_may_tag_its_run_and_note_things(store: Database, runs: Path) -> None:
    run_dir = make_run_dir(runs, UID, tags=["first"])
    rank0 = Journal(run_dir)
    rank0.event("tagged", 1.0, tag="diverged")
    rank0.event("noted", 2.0, text="loss is nan from step 7")

    ingest_all(store, runs)

    record = get_run(store, UID)
    assert record.tags == ("first", "diverged")
    assert [(note.at, note.author, note.text) for note in record.notes] == [
        (T0 + 2.0, "rank0", "loss is nan from step 7")
    ]


def test_what_comes_bit_by_bit_is_what_comes_at_once(store: Database, runs: Path, other_store: Database) -> None:
    run_dir = make_run_dir(runs, UID, tags=["first"])
    Journal(run_dir, writer="agent").event("attempt_started")
    for at, (name, details) in enumerate(
        [("tagged", {"tag": "a"}), ("noted", {"text": "one"}), ("untagged", {"tag": "first"}), ("noted", {"text": "2"})]
    ):
        ingest_all(store, runs)
        Journal(run_dir, writer="user", attempt=0, t0=T0 + at).event(name, 0.5, **details, author="ada")
    ingest_all(store, runs)
    ingest_all(other_store, runs)

    assert contents(store) == contents(other_store)
    assert get_run(store, UID).tags == ("a",)
    assert [note.text for note in get_run(store, UID).notes] == ["one", "2"]


HOSTILE = ["'); DROP TABLE run; --", "<script>", "\ud800 half", "a\0b", "x" * 10_000, "日本 \u202e", "\n\t"]


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_is_kept_as_text(store: Database, runs: Path, text: str) -> None:
    run_dir = make_run_dir(runs, UID)
    Journal(run_dir, writer="user", attempt=0).event("noted", text=text, author=text)
    Journal(run_dir, writer="user", attempt=0, t0=T0 + 1).event("tagged", tag=text)

    ingest_all(store, runs)

    kept = storable(text)
    record = get_run(store, UID)
    assert (record.tags, [(note.author, note.text) for note in record.notes]) == ((kept,), [(kept, kept)])


def test_what_is_said_moves_neither_the_clock_nor_the_attempt(store: Database, runs: Path) -> None:
    run_dir = make_run_dir(runs, UID)
    Journal(run_dir, writer="user", attempt=7, t0=T0 - 1000).event("tagged", tag="x")

    ingest_all(store, runs)

    record = get_run(store, UID)
    assert (record.attempt, record.state.value, record.t_start) == (0, "PENDING", None)
    with store.reading() as connection:
        assert connection.exec_driver_sql("SELECT clock_ms FROM run").scalar_one() == 0
