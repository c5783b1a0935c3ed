from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.commands import logs
from hpcml.commands.after_run import named_numbers
from hpcml.commands.logs import LogRequest, find_logs, follow, no_log, read
from hpcml.runs.layout import RunDir
from tests.commands.journals import tell
from tests.report.report_values import run as a_run


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "20261121-080000-22222222")
    made.logs.mkdir(parents=True)
    made.journals.mkdir()
    return made


@pytest.mark.parametrize("size", [0, 1, 70_000])
@pytest.mark.parametrize("ending", ["", "\n"])
def test_the_last_lines_are_those_that_tail_would_show(tmp_path: Path, size: int, ending: str) -> None:
    lines = [f"{number}{'x' * size}" for number in range(5)]
    path = tmp_path / "log"
    path.write_text("\n".join(lines) + ending)

    for count in range(7):
        wanted = "\n".join(lines[5 - min(count, 5) :]) + ending if count else ""
        assert b"".join(read(path, lines=count)).decode() == wanted


def test_the_last_attempt_is_the_highest_number_not_the_last_word(run_dir: RunDir) -> None:
    for attempt in (2, 9, 10):
        run_dir.stdout(attempt, 0).write_text(f"{attempt}\n")

    assert find_logs(run_dir, LogRequest()) == [run_dir.stdout(10, 0)]
    assert find_logs(run_dir, LogRequest(attempt=2)) == [run_dir.stdout(2, 0)]
    assert find_logs(run_dir, LogRequest(attempt=3)) == []
    assert "has no output of rank 0 in attempt 3: there is attempt 2, 9, 10" in str(
        no_log(run_dir, LogRequest(attempt=3))
    )


class Reading:
    """Somebody who follows the output of a run."""

    def __init__(self, run_dir: RunDir, wanted: LogRequest) -> None:
        self.said = b""
        self.notes: list[str] = []
        self.refreshed = 0
        self.why: str | None = None
        self._pieces = follow(run_dir, wanted, note=self.notes.append, refresh=self._refresh)
        self._thread = threading.Thread(target=self._read, args=(self._pieces,), daemon=True)
        self._thread.start()

    def _read(self, pieces: Iterator[bytes]) -> None:
        for piece in pieces:
            self.said += piece

    def _refresh(self) -> str | None:
        self.refreshed += 1
        return self.why

    def has(self, text: bytes) -> None:
        until = time.monotonic() + 300
        while text not in self.said:
            assert time.monotonic() < until, self.said
            time.sleep(0.02)

    def ends(self) -> bytes:
        self._thread.join(timeout=300)
        assert not self._thread.is_alive()
        return self.said


def test_following_waits_for_the_start_and_says_so(run_dir: RunDir) -> None:
    reading = Reading(run_dir, LogRequest())
    time.sleep(0.6)

    run_dir.stdout(0, 0).write_bytes(b"\xe2\x82")  # a character that is not whole yet
    reading.has(b"\xe2\x82")
    with run_dir.stdout(0, 0).open("ab") as file:
        file.write(b"\xac\n")
    tell(run_dir, "0-agent", ("attempt_ended", {"state": "COMPLETED"}))

    assert reading.ends() == "€\n".encode()
    assert reading.notes == [f"{run_dir.uid} is PENDING: waiting for it to start"]


def test_following_says_once_why_a_run_waits(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_REFRESH_S", 0.05)
    reading = Reading(run_dir, LogRequest())
    reading.why = "JobHeldUser: scontrol release lets it start"
    time.sleep(1.0)
    reading.why = "Priority"
    time.sleep(0.6)

    tell(run_dir, "0-collect", ("lost", {"reason": "x"}))

    assert reading.ends() == b""
    assert reading.notes == [
        f"{run_dir.uid} is PENDING: waiting for it to start",
        f"{run_dir.uid} waits: JobHeldUser: scontrol release lets it start",
    ]


def test_following_goes_on_into_the_next_attempt(run_dir: RunDir) -> None:
    run_dir.stdout(0, 0).write_text("old\nfirst\n")
    tell(run_dir, "0-agent", ("attempt_started", {}), ("attempt_ended", {"state": "TIMEOUT", "checkpointed": True}))
    tell(run_dir, "1-agent", ("submitted", {"by": "agent"}))
    reading = Reading(run_dir, LogRequest(lines=1))
    reading.has(b"first\n")

    time.sleep(0.6)
    run_dir.stdout(1, 0).write_text("second\nthird\n")
    reading.has(b"third\n")
    tell(run_dir, "1-agent", ("attempt_started", {}), ("attempt_ended", {"state": "COMPLETED"}))

    assert reading.ends() == b"first\nsecond\nthird\n"
    assert reading.notes == [f"{run_dir.uid} is PENDING: waiting for it to start attempt 1"]


def test_following_shows_both_streams_as_they_come(run_dir: RunDir) -> None:
    run_dir.stdout(0, 0).write_text("epoch 1\n")
    reading = Reading(run_dir, LogRequest())
    reading.has(b"epoch 1\n")
    run_dir.stderr(0, 0).write_text("a warning\n")
    reading.has(b"a warning\n")
    with run_dir.stdout(0, 0).open("a") as file:
        file.write("epoch 2\n")
    tell(run_dir, "0-agent", ("attempt_ended", {"state": "COMPLETED"}))

    assert reading.ends() == b"epoch 1\na warning\nepoch 2\n"


def test_following_ends_with_a_run_that_is_removed(run_dir: RunDir) -> None:
    run_dir.stdout(0, 0).write_text("begun\n")
    tell(run_dir, "0-agent", ("attempt_started", {}))
    reading = Reading(run_dir, LogRequest())
    reading.has(b"begun\n")

    shutil.rmtree(run_dir.path)

    assert reading.ends() == b"begun\n"


def test_a_run_whose_agent_may_be_dead_is_asked_about(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_REFRESH_S", 0.1)
    run_dir.stdout(0, 0).write_text("begun\n")
    tell(run_dir, "0-agent", ("attempt_started", {}), ("attempt_interrupted", {"state": "CANCELLED"}))
    reading = Reading(run_dir, LogRequest())
    reading.has(b"begun")
    time.sleep(1.5)
    assert reading.refreshed

    tell(run_dir, "0-collect", ("ended_by_scheduler", {"state": "NODE_FAIL"}))

    assert reading.ends() == b"begun\n"


@pytest.mark.parametrize("cut_bytes", [1, 7])
def test_what_is_looked_at_of_a_long_output_begins_with_a_whole_line(run_dir: RunDir, cut_bytes: int) -> None:
    lines = [f"step {number} loss {1 / number:.6f}" for number in range(1000, 3000)]
    run_dir.stdout(0, 0).write_text("\n".join(lines) + "\n" + "x" * cut_bytes)

    *printed, _ = logs.last_printed(run_dir).splitlines()

    assert printed == lines[-len(printed) :]
    assert list(named_numbers("\n".join(printed))) == ["loss"]


def test_a_bar_that_was_drawn_a_thousand_times_hides_no_line_before_it(run_dir: RunDir) -> None:
    drawn = "".join(f"\r{n}/2000 {'━' * 20} {n}ms/step" for n in range(2000))
    run_dir.stdout(0, 0).write_text(f"{drawn} - loss: 0.5000 - val_loss: 0.2500\n{drawn}\nshape (2000, 16)\n")

    assert list(named_numbers(logs.last_printed(run_dir))) == ["val_loss", "loss"]


def test_a_last_line_longer_than_what_is_looked_at_is_shown_from_where_it_is(run_dir: RunDir) -> None:
    run_dir.stdout(0, 0).write_text("first\n" + "x" * 40_000 + "\n")

    assert set(logs.last_printed(run_dir).splitlines()[-1]) == {"x"}


LMOD = """\
Lmod has detected the following error:  The following module(s) are unknown: "gcc/99"

Please check the spelling or version number. Also try "module spider ..."
Also make sure that all modulefiles written in TCL start with the string
#%Module
"""
EPILOGUE = "welcome to gadi\n===\n  Resource Usage:\n  Exit Status: 127\n  JobFS used: 0B\n===\n"


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("slurm_script: line 25: /v/bin/python: No such file or directory\n", "line 25: /v/bin/python: No such file"),
        (LMOD, 'The following module(s) are unknown: "gcc/99"'),
        ("Traceback (most recent call last):\n  File x\nImportError: no hpcml\n\nDone.\n", "ImportError: no hpcml"),
    ],
)
def test_why_a_job_never_started_is_what_its_shell_complained_of(run_dir: RunDir, printed: str, words: str) -> None:
    (run_dir.path / "slurm.log").write_text(printed)
    record = a_run(scheduler="slurm", path=str(run_dir.path))

    assert words in (logs.why_not_started(record, run_dir.path / "submissions") or "")


@pytest.mark.parametrize("printed", ["", EPILOGUE])
def test_a_log_without_a_complaint_does_not_say_why_a_job_never_started(run_dir: RunDir, printed: str) -> None:
    (run_dir.path / "slurm.log").write_text(printed)

    assert logs.why_not_started(a_run(scheduler="slurm", path=str(run_dir.path)), run_dir.path) is None


def test_what_an_attempt_before_complained_of_is_not_why_the_next_never_started(run_dir: RunDir) -> None:
    log = run_dir.path / "slurm.log"
    log.write_text("job.sh: line 25: python: No such file or directory\n")
    os.utime(log, (1, 1))
    tell(run_dir, "1-collect", ("submitted", {}))
    again = a_run(scheduler="slurm", path=str(run_dir.path), attempt=1)

    assert logs.why_not_started(again, run_dir.path) is None
    os.utime(log)
    assert logs.why_not_started(again, run_dir.path) is not None
