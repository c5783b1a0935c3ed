"""What of a journal survives a crash of its node: what was synced, and whose it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.runs.journal import Event, Metrics, read_journal
from hpcml_client.client import Client
from hpcml_client.journal import JournalWriter
from tests.parts import require


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes the file had, each time that it was put on the disk."""
    sizes: list[int] = []
    really = os.fdatasync

    def note(fd: int) -> None:
        sizes.append(os.fstat(fd).st_size)
        really(fd)

    monkeypatch.setattr(os, "fdatasync", note)
    return sizes


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def journal(tmp_path: Path, clock: list[float]) -> Iterator[JournalWriter]:
    with JournalWriter(str(tmp_path), run="r", attempt=0, writer="rank0", now=lambda: clock[0]) as journal:
        yield journal


def lines_of(journal: JournalWriter) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(journal.path or "").read_text().splitlines()]


def test_records_are_on_the_disk_after_20_seconds_and_not_before(
    journal: JournalWriter, clock: list[float], synced: list[int]
) -> None:
    for at in range(19):
        clock[0] = float(at)
        journal.metrics(at, {"loss": 1.0})
    before = list(synced)

    clock[0] = 20.0
    journal.metrics(20, {"loss": 1.0})

    assert before == []
    assert synced == [Path(journal.path or "").stat().st_size]


@pytest.mark.parametrize("name", ["checkpoint", "signal", "warned"])
def test_what_is_told_before_an_end_is_on_the_disk_at_once(
    journal: JournalWriter, synced: list[int], name: str
) -> None:
    journal.event("note")
    before = list(synced)

    journal.event(name)

    assert before == []
    assert len(synced) == 1


def test_a_checkpoint_is_on_the_disk_with_all_that_led_to_it(tmp_path: Path, synced: list[int]) -> None:
    journal = JournalWriter.open(str(tmp_path / "journal"), run="r", writer="rank0")
    with Client(journal=journal, run_dir=str(tmp_path)) as client:
        checkpoints = client.checkpoints()
        client.metric("loss", 1.0)
        before = len(synced)  # of the checkpoint's own files, too

        checkpoints.save(1, lambda path: Path(path).write_text("weights"))

        assert synced[before:][-1] == Path(journal.path or "").stat().st_size


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_that_asks_to_leave_puts_the_journal_on_the_disk(
    tmp_path: Path, synced: list[int], number: signal.Signals
) -> None:
    journal = JournalWriter.open(str(tmp_path / "journal"), run="r", writer="rank0")
    with Client(journal=journal, run_dir=str(tmp_path)) as client:
        checkpoints = client.checkpoints()
        client.metric("loss", 1.0)
        before = list(synced)

        signal.raise_signal(number)

        assert checkpoints.asked
        assert before == []
        assert len(synced) == 1


def test_the_header_is_repeated_at_the_first_sync_and_with_each_mebibyte(journal: JournalWriter) -> None:
    journal.metrics(0, {"loss": 1.0})
    journal.sync()
    journal.metrics(1, {"loss": 1.0})
    journal.sync()
    after_two_syncs = [("hpcml" in line) for line in lines_of(journal)]
    for step in range(2, 3000):
        journal.metrics(step, {"x" * 1000: 1.0})

    headers = [line for line in lines_of(journal) if "hpcml" in line]

    assert after_two_syncs == [True, False, True, False]
    assert len(headers) == 2 + Path(journal.path or "").stat().st_size // (1 << 20)
    assert all(header == headers[0] for header in headers)


def test_a_journal_in_which_nothing_was_said_has_one_header(tmp_path: Path) -> None:
    with JournalWriter.open(str(tmp_path), run="r") as journal:
        journal.sync()

    assert len(lines_of(journal)) == 1


def test_a_journal_whose_beginning_was_lost_still_says_whose_it_is(tmp_path: Path) -> None:
    with JournalWriter.open(str(tmp_path), run="r", attempt=2, writer="rank3") as journal:
        for step in range(100):
            journal.metrics(step, {"loss": step / 10})
    path = Path(journal.path or "")
    before = read_journal(path)
    content = path.read_bytes()
    path.write_bytes(b"\0" * 512 + content[512:])

    after = read_journal(path)

    assert after.header == before.header
    assert after.bad_lines == 1
    assert after.records == before.records[-len(after.records) :]
    assert len(after.records) > 90


_ON_A_SMALL_DISK = """
import sys
from pathlib import Path
from hpcml_client.journal import JournalWriter

disk = Path(sys.argv[1])
journal = JournalWriter.open(str(disk / "journal"), run="r", writer="rank0")
journal.metrics(0, {"loss": 0.0})
ballast = disk / "ballast"
with ballast.open("wb", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 4096)
    except OSError:
        pass
for step in range(1, 2001):
    journal.metrics(step, {"loss": float(step)})
lost = journal.dropped
ballast.unlink()
journal.metrics(2001, {"loss": 2001.0})
journal.close()
print(lost)
"""


def test_on_a_full_disk_the_program_goes_on_and_the_gap_is_in_the_journal(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    # in a mount namespace of its own: nothing is left behind, whatever happens
    mounted = 'mount -t tmpfs -o size=1m hpcml-test "$1" && "$0" -c "$2" "$1" && cp "$1"/journal/*.jsonl "$1/.."'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mounted, sys.executable, str(disk), _ON_A_SMALL_DISK],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        require("a mounted file system", done.stderr)

    assert done.returncode == 0, done.stderr
    assert "records are being lost" in done.stderr
    (path,) = tmp_path.glob("*.jsonl")
    chunk = read_journal(path)
    steps = [record.step for record in chunk.records if isinstance(record, Metrics)]
    (gap,) = [record for record in chunk.records if isinstance(record, Event)]
    lost = int(done.stdout)
    assert lost > 1000
    assert gap.details == {"dropped": lost}
    assert steps == [*range(2001 - lost), 2001]
    assert chunk.records[-1].seq + 1 - len(chunk.records) == lost
