"""The end of a journal: told by its last record, or by its absence; what had no room is written once there is some."""

from __future__ import annotations

import multiprocessing
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpcml.runs.journal import CLOSED, Event, is_cut_short, read_journal
from hpcml_client.client import connect
from hpcml_client.journal import JournalWriter

_UNLIMITED = resource.RLIM_INFINITY


def names(path: str | None) -> list[str]:
    return [record.name for record in read_journal(Path(path or "")).records if isinstance(record, Event)]


def without_room(beyond: int) -> None:
    """Let no file of this process grow beyond so many bytes, which fails as a full disk does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (beyond, _UNLIMITED))


@pytest.fixture
def journal(tmp_path: Path) -> JournalWriter:
    return JournalWriter.open(str(tmp_path), run="r", writer="rank0", closes=True, patience_s=60.0)


def test_a_journal_that_was_closed_has_its_end_and_one_that_was_not_lacks_it(journal: JournalWriter) -> None:
    path = Path(journal.path or "")
    before = is_cut_short(path)
    journal.close()

    assert (before, is_cut_short(path)) == (True, False)
    assert names(journal.path) == [CLOSED]


def test_a_journal_that_promised_nothing_lacks_nothing(tmp_path: Path) -> None:
    agents = JournalWriter.open(str(tmp_path), run="r", writer="agent")
    agents.event("note")

    assert not is_cut_short(Path(agents.path or ""))


def test_events_that_had_no_room_are_written_in_their_order_once_there_is_some(journal: JournalWriter) -> None:
    size = Path(journal.path or "").stat().st_size
    try:
        without_room(size + 30)
        journal.event("first")
        journal.metrics(1, {"loss": 1.0})
        journal.event("second")
    finally:
        without_room(_UNLIMITED)
    journal.event("third")
    journal.close()

    assert names(journal.path) == ["first", "second", "third", "journal_gap", CLOSED]
    assert journal.dropped == 0


def test_closing_waits_for_room(journal: JournalWriter) -> None:
    size = Path(journal.path or "").stat().st_size

    def make_room() -> None:
        time.sleep(0.5)
        without_room(_UNLIMITED)

    later = threading.Thread(target=make_room)
    try:
        without_room(size)
        journal.event("the end of the attempt")
        later.start()
        journal.close()
    finally:
        without_room(_UNLIMITED)
        later.join()

    assert names(journal.path) == ["the end of the attempt", CLOSED]


def test_without_room_closing_gives_up_and_raises_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = JournalWriter.open(str(tmp_path), run="r", writer="rank0", closes=True, patience_s=0.3)
    path = Path(journal.path or "")
    try:
        without_room(path.stat().st_size)
        journal.event("never written")
        journal.close()
    finally:
        without_room(_UNLIMITED)

    assert (is_cut_short(path), journal.dropped) == (True, 1)
    assert capsys.readouterr().err.count("\n") == 1


def _report(run_dir: str) -> None:
    connect({"HPCML_RUN_DIR": run_dir}).metric("loss", 1.0)


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_children_of_multiprocessing_promise_no_end(tmp_path: Path, start: str) -> None:
    child = multiprocessing.get_context(start).Process(target=_report, args=(str(tmp_path),))
    child.start()
    child.join(300)

    assert child.exitcode == 0
    (path,) = (tmp_path / "journal").iterdir()
    assert not is_cut_short(path)


def test_a_program_that_leaves_at_once_leaves_its_journal_without_end(tmp_path: Path) -> None:
    code = f"import os; from hpcml_client import connect; connect({{'HPCML_RUN_DIR': {str(tmp_path)!r}}}); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)

    (path,) = (tmp_path / "journal").iterdir()
    assert is_cut_short(path)
