import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcml.agent.supervise import Inbox, Outcome, Rank, supervise
from hpcml.states import State

Told = list[tuple[str, dict[str, Any]]]
Supervise = Callable[..., Outcome]


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def run_ranks(tmp_path: Path, told: Told) -> Supervise:
    """Supervise Python programs, one a rank, in a workload of their own."""

    def run(*programs: str, walltime_s: float | None = None, grace_s: float = 5.0) -> Outcome:
        ranks = [
            Rank(
                argv=[sys.executable, "-c", program],
                environ=os.environ,
                cwd=tmp_path,
                stdout=tmp_path / "logs" / f"{number}.out",
                stderr=tmp_path / "logs" / f"{number}.err",
            )
            for number, program in enumerate(programs)
        ]
        inbox = Inbox()
        with inbox.listening():
            return supervise(
                ranks,
                inbox,
                walltime_s=walltime_s,
                grace_s=grace_s,
                tell=lambda name, **details: told.append((name, details)),
            )

    return run


def wait_for(file: Path, timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while not file.exists():
        assert time.monotonic() < end, f"{file} did not appear"
        time.sleep(0.01)


READY = "open('ready', 'w').close()\n"
SLEEP = "import time\ntime.sleep(60)\n"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


def signal_when_ready(tmp_path: Path, *numbers: signal.Signals) -> threading.Thread:
    def send() -> None:
        wait_for(tmp_path / "ready")
        for number in numbers:
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_workload_that_ends_well_is_completed(run_ranks: Supervise) -> None:
    outcome = run_ranks("print('hello')")

    assert (outcome.state, outcome.exit_code, outcome.signal, outcome.reason) == (State.COMPLETED, 0, None, None)
    assert outcome.exit_status == 0


def test_an_exit_status_is_kept(run_ranks: Supervise) -> None:
    outcome = run_ranks("raise SystemExit(3)")

    assert (outcome.state, outcome.exit_code, outcome.exit_status) == (State.FAILED, 3, 3)
    assert outcome.reason == "exit status 3"


def test_a_workload_killed_by_a_signal_says_which(run_ranks: Supervise) -> None:
    outcome = run_ranks("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")

    assert (outcome.state, outcome.exit_code, outcome.signal) == (State.FAILED, None, signal.SIGKILL)
    assert outcome.reason == "killed by SIGKILL"
    assert outcome.exit_status == 137


def test_a_program_that_is_not_there_is_a_failure_with_its_name(tmp_path: Path, told: Told) -> None:
    rank = Rank(
        argv=["/nowhere/train"],
        environ=os.environ,
        cwd=tmp_path,
        stdout=tmp_path / "logs" / "out",
        stderr=tmp_path / "logs" / "err",
    )

    inbox = Inbox()
    with inbox.listening():
        outcome = supervise(
            [rank], inbox, walltime_s=None, grace_s=1, tell=lambda name, **details: told.append((name, details))
        )

    assert (outcome.state, outcome.exit_code) == (State.FAILED, 127)
    assert "/nowhere/train" in str(outcome.reason)
    assert told == []


def test_the_walltime_ends_a_workload_that_hangs(run_ranks: Supervise) -> None:
    outcome = run_ranks(SLEEP, walltime_s=0.5)

    assert outcome.state is State.TIMEOUT
    assert outcome.reason == "walltime of 0.5 s reached"
    assert outcome.wall_s < 10


def test_a_workload_that_ignores_the_end_of_its_walltime_is_killed(run_ranks: Supervise, told: Told) -> None:
    outcome = run_ranks(DEAF + SLEEP, walltime_s=0.5, grace_s=0.5)

    assert (outcome.state, outcome.signal) == (State.TIMEOUT, signal.SIGKILL)
    assert ("signal", {"signal": "SIGKILL", "reason": "still running 0.5 s after SIGTERM"}) in told


def test_ending_cleanly_at_the_walltime_is_still_a_timeout(run_ranks: Supervise) -> None:
    program = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\ntime.sleep(60)\n"

    outcome = run_ranks(program, walltime_s=1.0)

    assert (outcome.state, outcome.exit_code) == (State.TIMEOUT, 0)
    assert outcome.exit_status != 0


def test_a_request_to_end_is_passed_on_and_recorded_as_cancelled(
    run_ranks: Supervise, told: Told, tmp_path: Path
) -> None:
    sender = signal_when_ready(tmp_path, signal.SIGTERM)

    outcome = run_ranks(READY + SLEEP)
    sender.join()

    assert (outcome.state, outcome.signal) == (State.CANCELLED, signal.SIGTERM)
    assert ("signal", {"signal": "SIGTERM", "reason": "received and passed on"}) in told


def test_a_user_signal_reaches_the_workload_and_ends_nothing(run_ranks: Supervise, tmp_path: Path) -> None:
    program = (
        "import signal, time\ngot = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: got.append(1))\n"
        f"{READY}\nend = time.monotonic() + 20\n"
        "while not got and time.monotonic() < end: time.sleep(0.01)\n"
        "raise SystemExit(0 if got else 9)\n"
    )
    sender = signal_when_ready(tmp_path, signal.SIGUSR1)

    outcome = run_ranks(program)
    sender.join()

    assert outcome.state is State.COMPLETED


def test_signals_reach_the_grandchildren_too(run_ranks: Supervise, tmp_path: Path) -> None:
    grandchild = "import os, time; open('ready', 'w').close(); time.sleep(60)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    sender = signal_when_ready(tmp_path, signal.SIGTERM)

    outcome = run_ranks(program)
    sender.join()

    assert outcome.state is State.CANCELLED
    assert outcome.wall_s < 20


def test_what_a_workload_leaves_behind_is_ended(run_ranks: Supervise, tmp_path: Path) -> None:
    left = "import os, time; open('pid', 'w').write(str(os.getpid())); open('ready', 'w').close(); time.sleep(60)"
    program = (
        f"import os, subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {left!r}])\n"
        "while not os.path.exists('ready'): time.sleep(0.01)\n"
    )

    outcome = run_ranks(program)

    assert outcome.state is State.COMPLETED
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < end, "the process that was left behind still runs"
        time.sleep(0.01)


def test_one_rank_that_fails_ends_the_others_and_is_named(run_ranks: Supervise) -> None:
    outcome = run_ranks(SLEEP, "raise SystemExit(4)", SLEEP)

    assert (outcome.state, outcome.exit_code, outcome.reason) == (State.FAILED, 4, "rank 1: exit status 4")
    assert outcome.wall_s < 20


def test_a_hundred_megabytes_of_output_are_no_burden(run_ranks: Supervise, tmp_path: Path) -> None:
    outcome = run_ranks("import sys\nfor _ in range(100): sys.stdout.write('x' * 1023 * 1024 + '\\n')")

    assert outcome.state is State.COMPLETED
    assert (tmp_path / "logs" / "0.out").stat().st_size > 100_000_000


def test_output_stands_where_it_was_said_to(run_ranks: Supervise, tmp_path: Path) -> None:
    run_ranks("import sys; print('out'); print('err', file=sys.stderr)")

    assert (tmp_path / "logs" / "0.out").read_text() == "out\n"
    assert (tmp_path / "logs" / "0.err").read_text() == "err\n"


def test_handlers_are_as_before_afterwards(run_ranks: Supervise) -> None:
    before = signal.getsignal(signal.SIGTERM)

    run_ranks("pass")

    assert signal.getsignal(signal.SIGTERM) is before
