import math
import os
import resource
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcml.agent.outcome import Outcome
from hpcml.agent.signals import Inbox
from hpcml.agent.supervise import JobHooks, Limits, Rank, supervise
from hpcml.agent.time_limit import AskedLimit, Deadlines
from hpcml.model.state import State

Told = list[tuple[str, dict[str, Any]]]
Supervise = Callable[..., Outcome]


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def run_ranks(tmp_path: Path, told: Told) -> Supervise:
    """Supervise Python programs, one a rank, in a workload of their own."""

    def run(
        *programs: str,
        walltime_s: float | None = None,
        warn_after_s: float | None = None,
        notice_s: float = 20.0,
        grace_s: float = 5.0,
        margin_s: float = 0.0,
        is_unwanted: Callable[[], bool] = lambda: False,
        time_limit: AskedLimit | None = None,
    ) -> Outcome:
        ranks = [
            Rank(
                argv=[sys.executable, "-c", program],
                environ={**os.environ, "HPCML_RUN_ID": str(tmp_path)},
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
                Limits(
                    stop_after_s=walltime_s,
                    margin_s=margin_s,
                    warn_after_s=warn_after_s,
                    notice_s=notice_s,
                    grace_s=grace_s,
                ),
                tell=lambda name, **details: told.append((name, details)),
                is_unwanted=is_unwanted,
                job=JobHooks(time_limit=time_limit, marks=[f"HPCML_RUN_ID={tmp_path}"]),
            )

    return run


def wait_for(file: Path, timeout_s: float = 300) -> None:
    end = time.monotonic() + timeout_s
    while not file.exists():
        assert time.monotonic() < end, f"{file} did not appear"
        time.sleep(0.01)


class OnceReady:
    """A time limit that begins when the program has said that it is ready, however long it took to start."""

    ask_ahead_s = 0.0

    def __init__(self, folder: Path, *, stop_after_s: int, warn_after_s: int = 0) -> None:
        self.ready = folder / "ready"
        self.stop_after_s, self.warn_after_s = stop_after_s, warn_after_s
        self.began = time.monotonic()
        self.took_s: int | None = None

    def ask(self, *, stood_still_s: float = 0.0) -> None:
        pass

    def is_awaited(self) -> bool:
        return False

    def deadlines(self) -> Deadlines | None:
        if self.took_s is None and self.ready.exists():
            self.took_s = math.ceil(time.monotonic() - self.began)
        if self.took_s is None:
            return None
        return Deadlines(
            stop_after_s=self.took_s + self.stop_after_s, margin_s=0, warn_after_s=self.took_s + self.warn_after_s
        )


READY = "open('ready', 'w').close()\n"
SLEEP = "import time\ntime.sleep(60)\n"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


def signal_when_ready(
    tmp_path: Path, number: signal.Signals, *, pauses_s: tuple[float, ...] = (0.0,)
) -> threading.Thread:
    """Send the signal to this process once after each of the pauses, the first of which begins when all is ready."""

    def send() -> None:
        wait_for(tmp_path / "ready")
        for pause_s in pauses_s:
            time.sleep(pause_s)
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


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
        outcome = supervise([rank], inbox, Limits(grace_s=1), tell=lambda name, **details: told.append((name, details)))

    assert (outcome.state, outcome.exit_code) == (State.FAILED, 127)
    assert "/nowhere/train" in str(outcome.reason)
    assert told == []


def test_the_walltime_ends_a_workload_that_hangs(run_ranks: Supervise) -> None:
    outcome = run_ranks(SLEEP, walltime_s=0.5)

    assert outcome.state is State.TIMEOUT
    assert outcome.reason == "walltime of 0.5 s reached"
    assert outcome.wall_s < 10


def test_a_workload_that_ignores_the_end_of_its_walltime_is_killed(
    run_ranks: Supervise, told: Told, tmp_path: Path
) -> None:
    outcome = run_ranks(DEAF + READY + SLEEP, time_limit=OnceReady(tmp_path, stop_after_s=0), grace_s=0.5)

    assert (outcome.state, outcome.signal) == (State.TIMEOUT, signal.SIGKILL)
    assert ("signal", {"signal": "SIGKILL", "reason": "still running 0.5 s after SIGTERM"}) in told


def test_a_request_to_end_is_passed_on_and_recorded_as_cancelled(
    run_ranks: Supervise, told: Told, tmp_path: Path
) -> None:
    sender = signal_when_ready(tmp_path, signal.SIGTERM)

    outcome = run_ranks(READY + SLEEP)
    sender.join()

    assert (outcome.state, outcome.signal) == (State.CANCELLED, signal.SIGTERM)
    assert ("signal", {"signal": "SIGTERM", "reason": "received and passed on"}) in told


def test_a_signal_that_finds_the_walltime_long_over_is_the_walltimes(run_ranks: Supervise, tmp_path: Path) -> None:
    """An agent that was stopped (SIGSTOP) hears of it by the scheduler's SIGCONT and SIGTERM."""
    sender = signal_when_ready(tmp_path, signal.SIGTERM, pauses_s=(3.0,))
    stopped = iter([4.0])

    outcome = run_ranks(READY + SLEEP, walltime_s=2.5, is_unwanted=lambda: time.sleep(next(stopped, 0.0)) is not None)
    sender.join()

    assert (outcome.state, outcome.reason) == (State.TIMEOUT, "walltime of 2.5 s reached")


def test_a_user_signal_reaches_the_workload_and_ends_nothing(run_ranks: Supervise, tmp_path: Path) -> None:
    program = (
        "import signal, time\ngot = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: got.append(1))\n"
        f"{READY}\nend = time.monotonic() + 300\n"
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


LEFT = (
    "import hpcml_client, os, time; open('pid', 'w').write(str(os.getpid())); open('ready', 'w').close(); "
    "time.sleep(300)"
)


@pytest.mark.parametrize(
    ("in_a_session_of_its_own", "words"),
    [(False, []), (True, []), (True, ["--home", "/scratch/me/hpcml"])],  # whose folder is none of our commands
)
def test_what_a_workload_leaves_behind_is_ended_and_told(
    run_ranks: Supervise, told: Told, tmp_path: Path, words: list[str], *, in_a_session_of_its_own: bool
) -> None:
    started = f"[sys.executable, '-c', {LEFT!r}, *{words}], start_new_session={in_a_session_of_its_own}"
    program = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen({started})\n"
        "while not os.path.exists('ready'): time.sleep(0.01)\n"
    )

    outcome = run_ranks(program)

    assert outcome.state is State.COMPLETED
    ((name, details),) = [each for each in told if each[0] == "left_behind"]
    assert (name, details["count"]) == ("left_behind", 1)
    assert details["processes"][0].startswith(f"{sys.executable} -c import hpcml_client")
    wait_for_the_end_of(int((tmp_path / "pid").read_text()))


def test_an_agent_that_a_program_has_started_keeps_its_guard(run_ranks: Supervise, told: Told, tmp_path: Path) -> None:
    agent = (
        "from hpcml.agent.supervise import Guard; import os, time; guard = Guard(); "
        "open('pid', 'w').write(str(os.getpid())); open('ready', 'w').close(); time.sleep(300)"
    )
    program = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {agent!r}], start_new_session=True)\n"
        "while not os.path.exists('ready'): time.sleep(0.01)\n"
    )

    outcome = run_ranks(program)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # it lives

    assert outcome.state is State.COMPLETED
    assert [name for name, _ in told if name == "left_behind"] == []


def test_a_process_that_left_its_session_is_ended_with_a_workload_that_does_not_heed(
    run_ranks: Supervise, told: Told, tmp_path: Path
) -> None:
    program = (
        "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"subprocess.Popen([sys.executable, '-c', {LEFT!r}], start_new_session=True)\ntime.sleep(60)\n"
    )
    sender = signal_when_ready(tmp_path, signal.SIGTERM)

    outcome = run_ranks(program, grace_s=0.5)
    sender.join()

    assert outcome.state is State.CANCELLED
    assert [name for name, _ in told if name == "left_behind"] == []
    wait_for_the_end_of(int((tmp_path / "pid").read_text()))


def wait_for_the_end_of(pid: int) -> None:
    end = time.monotonic() + 100
    while Path(f"/proc/{pid}").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < end, "the process that was left behind still runs"
        time.sleep(0.01)


def test_one_rank_that_fails_ends_the_others_and_is_named(run_ranks: Supervise) -> None:
    outcome = run_ranks(SLEEP, "raise SystemExit(4)", SLEEP)

    assert (outcome.state, outcome.exit_code, outcome.reason) == (State.FAILED, 4, "rank 1: exit status 4")
    assert outcome.wall_s < 20


def test_handlers_are_as_before_afterwards(run_ranks: Supervise) -> None:
    before = signal.getsignal(signal.SIGTERM)

    run_ranks("pass")

    assert signal.getsignal(signal.SIGTERM) is before


CATCHES = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))\n"
    "open('ready', 'w').close()\ntime.sleep(60)\n"
)


def test_a_warned_program_that_leaves_at_a_checkpoint_is_a_timeout_with_one(
    run_ranks: Supervise, told: Told, tmp_path: Path
) -> None:
    limit = OnceReady(tmp_path, stop_after_s=40)

    outcome = run_ranks(CATCHES, time_limit=limit)

    assert (outcome.state, outcome.exit_code, outcome.checkpointed) == (State.TIMEOUT, 75, True)
    assert outcome.reason == "left at a checkpoint before the walltime"
    assert outcome.exit_status == 1  # 75 is for a run that was queued again
    assert ("warned", {"reason": "walltime in 40 s", "processes": 1}) in told


def test_a_program_that_does_not_catch_the_warning_survives_it(run_ranks: Supervise, told: Told) -> None:
    outcome = run_ranks("import time; time.sleep(2)", walltime_s=30, warn_after_s=0.5)

    assert outcome.state is State.COMPLETED
    assert [details["processes"] for name, details in told if name == "warned"] == [0]


def test_the_warning_reaches_a_program_behind_a_shell_that_would_die_of_it(run_ranks: Supervise) -> None:
    inner = f"{sys.executable} -c {shlex.quote(CATCHES)}; exit $?"
    program = f"import os; os.execvp('bash', ['bash', '-c', {inner!r}])"

    outcome = run_ranks(program, walltime_s=40, warn_after_s=1.5)

    assert (outcome.state, outcome.exit_code, outcome.checkpointed) == (State.TIMEOUT, 75, True)


def test_a_program_that_was_only_just_starting_is_warned_as_soon_as_it_listens(run_ranks: Supervise) -> None:
    outcome = run_ranks(f"import time; time.sleep(1.5)\n{CATCHES}", walltime_s=40, warn_after_s=0.3)

    assert (outcome.exit_code, outcome.checkpointed) == (75, True)


def test_a_warning_from_outside_is_passed_on_once_and_sets_a_time_to_leave(
    run_ranks: Supervise, told: Told, tmp_path: Path
) -> None:
    program = (
        "import signal, time\nsignal.signal(signal.SIGUSR1, lambda *_: print('warned', flush=True))\n"
        f"{READY}while True: time.sleep(1)\n"
    )
    sender = signal_when_ready(tmp_path, signal.SIGUSR1, pauses_s=(0, 0.5))

    outcome = run_ranks(program, notice_s=1.5)
    sender.join()

    assert (outcome.state, outcome.checkpointed) == (State.TIMEOUT, False)
    assert outcome.reason == "still running 1.5 s after SIGUSR1 said that its time is over"
    assert [details["reason"] for name, details in told if name == "warned"] == ["SIGUSR1 received"]
    assert (tmp_path / "logs" / "0.out").read_text() == "warned\n"


def test_two_ranks_that_both_leave_are_checkpointed(run_ranks: Supervise) -> None:
    outcome = run_ranks("raise SystemExit(75)", "import time; time.sleep(1); raise SystemExit(75)")

    assert (outcome.state, outcome.checkpointed, outcome.reason) == (State.TIMEOUT, True, "left at a checkpoint")


def test_a_rank_that_had_nothing_left_to_do_is_no_obstacle(run_ranks: Supervise) -> None:
    outcome = run_ranks("pass", "raise SystemExit(75)")

    assert (outcome.state, outcome.checkpointed) == (State.TIMEOUT, True)


def test_a_rank_that_does_not_follow_is_stopped_and_nothing_is_checkpointed(run_ranks: Supervise) -> None:
    outcome = run_ranks("raise SystemExit(75)", SLEEP, notice_s=1.0)

    assert (outcome.state, outcome.checkpointed) == (State.TIMEOUT, False)
    assert outcome.reason == "rank 0 left at a checkpoint; rank 1 did not follow within 1 s"
    assert outcome.exit_status != 75


def test_a_rank_that_fails_while_another_leaves_is_a_failure(run_ranks: Supervise) -> None:
    outcome = run_ranks("raise SystemExit(75)", "import time; time.sleep(0.5); raise SystemExit(3)")

    assert (outcome.state, outcome.checkpointed, outcome.reason) == (State.FAILED, False, "rank 1: exit status 3")


def test_leaving_when_told_to_end_is_kept_in_mind(run_ranks: Supervise, tmp_path: Path) -> None:
    program = CATCHES.replace("SIGUSR1", "SIGTERM")
    sender = signal_when_ready(tmp_path, signal.SIGTERM)

    outcome = run_ranks(program)
    sender.join()

    assert (outcome.state, outcome.interrupted, outcome.checkpointed) == (State.CANCELLED, True, True)


def test_a_rank_that_is_signalled_before_us_did_not_fail_by_itself(run_ranks: Supervise, tmp_path: Path) -> None:
    program = "import os, signal; open('ready', 'w').close(); os.kill(os.getpid(), signal.SIGTERM)"
    sender = signal_when_ready(tmp_path, signal.SIGTERM, pauses_s=(0.4,))

    outcome = run_ranks(program)
    sender.join()

    assert (outcome.state, outcome.interrupted) == (State.CANCELLED, True)


def test_a_signal_that_is_not_caught_does_no_harm(run_ranks: Supervise, told: Told, tmp_path: Path) -> None:
    sender = signal_when_ready(tmp_path, signal.SIGUSR2)

    outcome = run_ranks(f"{READY}import time; time.sleep(1)")
    sender.join()

    assert outcome.state is State.COMPLETED
    assert ("signal", {"signal": "SIGUSR2", "reason": "received and passed on to 0 that catch it"}) in told


def test_a_workload_that_nobody_wants_any_more_is_cancelled(run_ranks: Supervise, tmp_path: Path) -> None:
    outcome = run_ranks(f"open('unwanted', 'w')\n{SLEEP}", is_unwanted=(tmp_path / "unwanted").exists)

    assert (outcome.state, outcome.reason, outcome.interrupted) == (State.CANCELLED, "cancelled", False)
    assert outcome.wall_s < 10


class Changing:
    """A time limit that another answer is given of each time it is asked for; the last one stays."""

    ask_ahead_s = 0.5

    def __init__(self, *answers: Deadlines | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    def ask(self, *, stood_still_s: float = 0.0) -> None:  # noqa: ARG002
        self.asked += 1

    def is_awaited(self) -> bool:
        return False

    def deadlines(self) -> Deadlines | None:
        return self.answers[min(self.asked, len(self.answers)) - 1]


def test_a_limit_that_was_raised_is_heard_of_before_the_workload_is_stopped(run_ranks: Supervise) -> None:
    limit = Changing(None, Deadlines(stop_after_s=60, margin_s=0, warn_after_s=50))

    outcome = run_ranks("import time; time.sleep(4)", walltime_s=2.0, time_limit=limit)

    assert outcome.state is State.COMPLETED
    assert limit.asked == 2


def test_a_limit_that_was_lowered_is_heard_of_at_the_start(run_ranks: Supervise, told: Told) -> None:
    catches = "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)\nfor _ in range(600): time.sleep(0.1)"

    limit = Changing(Deadlines(stop_after_s=3, margin_s=57, warn_after_s=2))

    outcome = run_ranks("import time\n" + catches, walltime_s=600.0, margin_s=60.0, time_limit=limit)

    assert (outcome.state, outcome.reason) == (State.TIMEOUT, "walltime of 60 s reached but for the last 57 s")
    assert [name for name, _ in told].count("warned") == 1


def test_a_silent_scheduler_leaves_the_limit_as_planned(run_ranks: Supervise) -> None:
    limit = Changing(None)

    outcome = run_ranks(SLEEP, walltime_s=2.0, time_limit=limit)

    assert (outcome.state, outcome.reason) == (State.TIMEOUT, "walltime of 2 s reached")
    assert limit.asked == 2


def test_a_program_that_could_not_be_started_for_want_of_files_or_processes_has_not_failed_by_itself(
    tmp_path: Path,
) -> None:
    rank = Rank(argv=["true"], environ={}, cwd=tmp_path, stdout=tmp_path / "out", stderr=tmp_path / "err")
    inbox, before, opened = Inbox(), resource.getrlimit(resource.RLIMIT_NOFILE), os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 1, before[1]))  # room for none
    try:
        outcome = supervise([rank], inbox, Limits(grace_s=1), tell=lambda *_words, **_details: None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        os.close(opened)

    assert (outcome.state, outcome.was_refused, outcome.exit_code) == (State.FAILED, True, None)
    assert outcome.reason is not None
    assert outcome.reason.endswith(": Too many open files: no more files can be opened here (ulimit -n)")


def test_a_program_on_a_file_system_that_starts_none_is_told_so(tmp_path: Path) -> None:
    disk = tmp_path / "scratch"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "noexec,size=1m", "none", str(disk)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a file system")
    try:
        program = disk / "prog.sh"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        logs = tmp_path / "logs"
        rank = Rank(argv=["./prog.sh"], environ={}, cwd=disk, stdout=logs / "out", stderr=logs / "err")

        outcome = supervise([rank], Inbox(), Limits(grace_s=1), tell=lambda *_words, **_details: None)

        assert outcome.reason == (
            "cannot start ./prog.sh: Permission denied: its file system is mounted noexec, "
            "so name what executes it in front (bash, python)"
        )
    finally:
        subprocess.run(["umount", str(disk)], check=True)
