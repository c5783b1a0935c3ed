"""Starts the processes of a workload, watches, warns and ends them; returns how that went as an `Outcome`.

`supervise` is the loop that each attempt spends its time in. Each rank leads its own session.

`Guard` is a shell that outlives the agent: if the agent is killed, it kills the workload. Otherwise the cores and GPUs
of the run would be free for the next one while its program still runs on them. PR_SET_PDEATHSIG, the kernel's own
means, would not do: it reaches only the rank itself, not what the rank started (a shell's program, say); a program with
set-user-id, as Apptainer's starter may be, clears it (prctl(2)); and it can be asked for only between fork and exec,
where Python must not run code if there are threads.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcml.agent.outcome import LEFT_AT_CHECKPOINT, Outcome, Stop, first_failure, how, judge
from hpcml.agent.processes import Member, Remnant, kill, left_behind, tell_catchers
from hpcml.agent.signals import ENDING, Inbox
from hpcml.agent.time_limit import AskedLimit, FollowedLimit
from hpcml.errors import USED_UP
from hpcml.model.secrets import masked
from hpcml.model.state import State
from hpcml.runs.private import make_folder, open_file
from hpcml.runs.state import EventName

_TICK_S = 0.5
_STOOD_STILL_S = 5.0  # between two ticks: the job was suspended, or whatever held us up may have been that
_LOOK_S = 2.0  # between looks at what lies elsewhere: a mark on a shared file system, all processes of a node
_CANNOT_START = 127  # what a shell answers for a command that is not there
_PATIENCE_S = 3.0  # for helpers that end by themselves once they see that the program has
_MOST_NAMED = 3
_HEAR_OUT_S = 1.0  # a scheduler signals the ranks and this process one after the other
_ENDED_ON_REQUEST = frozenset(code for number in ENDING for code in (-number, 128 + number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process to start, in *cwd* and with exactly *environ*; its output is appended to the two files."""

    argv: Sequence[str]
    environ: Mapping[str, str]
    cwd: Path
    stdout: Path
    stderr: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a workload may take, in seconds from its start; None means without limit."""

    stop_after_s: float | None = None
    margin_s: float = 0.0  # so much earlier than the walltime that is
    warn_after_s: float | None = None  # when it is told to leave a checkpoint; None: only if we are told so
    notice_s: float = 120.0  # what it gets after a warning that came to us as a signal
    grace_s: float  # between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHooks:
    """What is asked and told of a scheduler's job; a run on this machine has only `marks` of it.

    `ranks` returns the sessions of ranks that a launcher has started on this node: these are warned and asked to end,
    and the launcher, which is what was started here, follows. `codes` returns the exit codes of the ranks for those of
    what was started. `why_ended` is asked when a signal asks to end: for the failure elsewhere that made somebody send
    it, or None. `has_failed_elsewhere` is asked every two seconds, for the failure on another node that nobody else
    tells of. `on_end_asked` is told then what is known of the end, in case that this process is killed before its
    programs have ended. `time_limit` is asked at the start, and before the workload is warned or stopped.
    Processes that have left the ranks' sessions are ended with them where their environment has all `marks`
    ("HPCML_ATTEMPT=0").
    """

    ranks: Callable[[], set[int]] | None = None
    codes: Callable[[Sequence[int]], Sequence[int]] = lambda codes: codes
    why_ended: Callable[[], str | None] = lambda: None
    has_failed_elsewhere: Callable[[], str | None] = lambda: None
    on_end_asked: Callable[[Outcome], None] = lambda _: None
    time_limit: AskedLimit | FollowedLimit | None = None
    marks: Collection[str] = ()


def supervise(
    ranks: Sequence[Rank],
    inbox: Inbox,
    limits: Limits,
    *,
    tell: Callable[..., None],
    on_start: Callable[[], None] = lambda: None,
    on_tick: Callable[[], None] = lambda: None,
    is_unwanted: Callable[[], bool] = lambda: False,
    job: JobHooks | None = None,
) -> Outcome:
    """Start *ranks* and return when all have ended.

    All ranks are ended (SIGTERM, after the grace SIGKILL) when this process gets a signal that asks to end (that signal
    is passed on), at `stop_after_s`, when one rank fails, or when *is_unwanted* says so. At `warn_after_s`, or when
    this process gets SIGUSR1, every process of the ranks that has a handler for SIGUSR1 gets it, to write a checkpoint;
    the others would die of it. *tell* journals an event by name; *on_start*, which raises nothing, is called with the
    ids of the ranks once all run, *on_tick* about twice a second, *is_unwanted* about every two seconds. A rank that
    cannot be started gives the outcome FAILED with exit code 127.
    """
    started = time.monotonic()
    guard = Guard(job.marks if job is not None else ())
    try:
        try:
            processes = _start(ranks, guard)
        except OSError as error:
            reason = f"cannot start {error.filename or ranks[0].argv[0]}: {error.strerror}{_why(ranks[0], error)}"
            is_here = (error.errno or 0) in USED_UP
            code = None if is_here else _CANNOT_START
            return Outcome(
                state=State.FAILED, exit_code=code, signal=None, reason=reason, wall_s=0.0, was_refused=is_here
            )
        try:
            tell("workload_started", argv=masked(ranks[0].argv), pids=[process.pid for process in processes])
            on_start()
            watch = _Watch(processes, inbox, limits, tell, started, job or JobHooks())
            return watch.until_the_end(on_tick, is_unwanted)
        except BaseException:  # nobody would watch it any more
            _send(processes, signal.SIGKILL)
            kill({process.pid for process in processes}, () if job is None else job.marks)
            raise
    finally:
        guard.dismiss()


def _why(rank: Rank, error: OSError) -> str:
    """Return what there is no more of, or that a program may not be started where it lies, as on many a scratch."""
    if used_up := USED_UP.get(error.errno or 0):
        return f": {used_up}"
    if isinstance(error, PermissionError):
        with suppress(OSError):
            if os.statvfs(rank.cwd / (error.filename or rank.argv[0])).f_flag & os.ST_NOEXEC:
                return ": its file system is mounted noexec, so name what executes it in front (bash, python)"
    return ""


def _start(ranks: Sequence[Rank], guard: Guard) -> list[subprocess.Popen[bytes]]:
    """Start all ranks, each in a session of its own and known to *guard*, or none.

    Raises `OSError` where one cannot be started; those before it have been killed then.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in ranks:
            make_folder(rank.stdout.parent)
            with open_file(rank.stdout, "ab") as stdout, open_file(rank.stderr, "ab") as stderr:
                processes.append(
                    subprocess.Popen(
                        list(rank.argv),
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=stderr,
                        cwd=rank.cwd,
                        env=dict(rank.environ),
                        start_new_session=True,
                    )
                )
            guard.watch(processes[-1].pid)
    except OSError:
        _send(processes, signal.SIGKILL)
        for process in processes:
            process.wait()
        raise
    return processes


def _send(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):  # nobody is left in that session's group
            os.killpg(process.pid, number)


@dataclass(slots=True)
class _Watch:
    """What is known of a workload while it runs; all times are of the monotonic clock."""

    processes: Sequence[subprocess.Popen[bytes]]
    inbox: Inbox
    limits: Limits
    tell: Callable[..., None]
    started: float
    job: JobHooks
    asked_for: float = float("inf")  # the moment before which the limit was asked for again
    stop: Stop | None = None
    warned: bool = False
    told: set[Member] = field(default_factory=set)  # who got the warning
    deadline: float = field(init=False)
    ticked_at: float = field(init=False)
    late: str = field(init=False)  # what to say at the deadline
    look_at: float = field(init=False)
    stood_still_s: float = 0.0  # in all
    waits_for_limit: bool = False  # what is due by the limit waits for an answer
    follow_by: float = float("inf")  # when the others must have left, too
    most_held_mb: float | None = None

    def __post_init__(self) -> None:
        limit_s = self.limits.stop_after_s
        self._set_deadline(limit_s)
        self.ticked_at = self.started
        if self.job.time_limit is not None:
            self.job.time_limit.ask()
        self.look_at = self.started + _LOOK_S

    def _set_deadline(self, limit_s: float | None) -> None:
        self.deadline = float("inf") if limit_s is None else self.started + limit_s
        margin_s = self.limits.margin_s
        early = f" but for the last {margin_s:g} s" if margin_s else ""
        self.late = f"walltime of {limit_s + margin_s:g} s reached{early}" if limit_s is not None else ""

    def _note_standstill(self, now: float) -> bool:
        """Add the time since the last look where nothing was done for so long; return whether that was so."""
        stood_still_s = now - self.ticked_at
        self.ticked_at = now
        if stood_still_s <= _STOOD_STILL_S:
            return False
        self.stood_still_s += stood_still_s
        return True

    def _heed_limit(self, now: float) -> None:
        """Take a walltime that is another than before, and ask for it anew where that is due."""
        has_stood_still, limit = self._note_standstill(now), self.job.time_limit
        if self.stop is not None or limit is None:
            return
        next_at = min(self.deadline, self._warn_at())
        if has_stood_still:
            self.waits_for_limit = True
            limit.ask(stood_still_s=self.stood_still_s)
        elif next_at != self.asked_for and now >= next_at - limit.ask_ahead_s:
            self.asked_for = next_at
            limit.ask(stood_still_s=self.stood_still_s)
        told = limit.deadlines()
        self.waits_for_limit = self.waits_for_limit and limit.is_awaited()
        if told is None or told.stop_after_s == self.limits.stop_after_s:
            return
        self.limits = replace(
            self.limits, stop_after_s=told.stop_after_s, margin_s=told.margin_s, warn_after_s=told.warn_after_s
        )
        self._set_deadline(told.stop_after_s)
        self.warned = self.warned and now >= self.started + told.warn_after_s  # else once more, when that time comes
        self.told = self.told if self.warned else set()

    def _warn_at(self) -> float:
        """Return when the workload is to be warned; for ever later where it has been, or is not to be."""
        warn_after_s = None if self.warned else self.limits.warn_after_s
        return float("inf") if warn_after_s is None else self.started + warn_after_s

    def until_the_end(self, on_tick: Callable[[], None], is_unwanted: Callable[[], bool]) -> Outcome:
        """Return once every rank has ended; what they left behind is killed then."""
        while None in (codes := self._codes()):
            now = time.monotonic()
            self._heed_limit(now)
            self._end_if_needed(codes, now)
            self._look(is_unwanted, now)
            for number in self.inbox.wait(self._due() - now):
                self._receive(number)
            on_tick()
        self._note_standstill(time.monotonic())  # it may have ended as soon as both woke
        if self.stop is None and (failure := first_failure(codes)):
            self._hear_out(failure[1])
        ended = time.monotonic()
        self._end_what_is_left()
        ranks = self.job.codes([code for code in codes if code is not None])
        outcome = judge(ranks, self.stop, warned=self.warned, wall_s=ended - self.started)
        return replace(outcome, stood_still_s=self.stood_still_s, most_held_mb=self.most_held_mb)

    def _end_what_is_left(self) -> None:
        """Kill what the ranks have left behind; of a program that was not stopped, journal what was still at work."""
        patience = time.monotonic() + (_PATIENCE_S if self.stop is None else 0)
        while time.monotonic() < patience and left_behind(self._sessions(), self.job.marks):
            time.sleep(0.05)
        left = self._kill_all()
        if self.stop is None and left:
            self.tell(EventName.LEFT_BEHIND, count=len(left), processes=[each.words for each in left[:_MOST_NAMED]])

    def _kill_all(self) -> list[Remnant]:
        left = kill(self._sessions(), self.job.marks)
        _send(self.processes, signal.SIGKILL)  # Apptainer's own
        return left

    def _codes(self) -> list[int | None]:
        return [self._code_of(process) for process in self.processes]  # every one must be asked

    def _code_of(self, process: subprocess.Popen[bytes]) -> int | None:
        """Return what `poll` does, and note what memory the process, or one that it waited for, held at most."""
        if process.returncode is None:
            with suppress(ChildProcessError):  # somebody else has waited for it, which poll() knows to take
                pid, status, used = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    self.most_held_mb = max(self.most_held_mb or 0.0, used.ru_maxrss / 1024)  # KiB: getrusage(2)
        return process.poll()

    def _sessions(self) -> set[int]:
        return {process.pid for process in self.processes} | self._ranks()

    def _ranks(self) -> set[int]:
        """Return the sessions of what the program runs in: those of the ranks, whoever started them."""
        return {process.pid for process in self.processes} if self.job.ranks is None else self.job.ranks()

    def _tell_all(self, number: signal.Signals) -> None:
        """Send a signal to the ranks; to a launcher only while it has none: srun would kill them at once for it."""
        started_by_others = set() if self.job.ranks is None else self.job.ranks()
        for leader in started_by_others:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(leader, number)
        if not started_by_others:
            _send(self.processes, number)

    def _due(self) -> float:
        """Return when to look again, if nothing happens before."""
        now = time.monotonic()
        if self.stop is not None:
            return min(now + _TICK_S, self.stop.kill_at)
        if self.waits_for_limit:
            return now + _TICK_S
        return min(now + _TICK_S, self.deadline, self.follow_by, self._warn_at())

    def _end_if_needed(self, codes: Sequence[int | None], now: float) -> None:
        """End the workload where there is a reason to, or kill what is left of it once its grace is over."""
        if self.stop is None:
            self._judge_the_living(codes, now)
            if self.stop is None:
                self._warn_if_due(now)
        elif now >= self.stop.kill_at:
            self.tell("signal", signal="SIGKILL", reason=f"still running {self.limits.grace_s:g} s after SIGTERM")
            self._kill_all()
            self.stop.kill_at = float("inf")

    def _judge_the_living(self, codes: Sequence[int | None], now: float) -> None:
        """Begin to end the workload if a rank failed or the time is over.

        The time is also over when one rank left at a checkpoint and the others did not follow within the notice.
        """
        failure = first_failure(codes)
        if failure is not None:
            self._hear_out(failure[1])
            if self.stop is None:
                self._end(State.FAILED, f"rank {failure[0]}: {how(failure[1])}")
            return
        if LEFT_AT_CHECKPOINT in codes and self.follow_by == float("inf"):
            self.follow_by = now + self.limits.notice_s
        if now >= self.deadline and not self.waits_for_limit:
            self._end(State.TIMEOUT, self.late)
        elif now >= self.follow_by:
            behind = ", ".join(str(rank) for rank, code in enumerate(codes) if code is None)
            left = codes.index(LEFT_AT_CHECKPOINT)
            waited = f"within {self.limits.notice_s:g} s"
            self._end(State.TIMEOUT, f"rank {left} left at a checkpoint; rank {behind} did not follow {waited}")

    def _end(self, state: State, reason: str, *, from_outside: bool = False, is_elsewhere: bool = False) -> None:
        """Send SIGTERM to all ranks, and note why and when they are killed.

        *from_outside*: a signal to this process is the reason, and has been passed on to the ranks already.
        *is_elsewhere*: the reason is a failure on another node.
        """
        self.stop = Stop(state, reason, time.monotonic() + self.limits.grace_s, from_outside, is_elsewhere)
        if not from_outside:
            self._tell_all(signal.SIGTERM)

    def _warn_if_due(self, now: float) -> None:
        if now >= self._warn_at() and not self.waits_for_limit:
            self._warn(f"walltime in {self.deadline + self.limits.margin_s - now:.0f} s")

    def _warn(self, reason: str) -> None:
        self.warned = True
        self.told = tell_catchers(self._ranks(), signal.SIGUSR1)
        self.tell("warned", reason=reason, processes=len(self.told))

    def _look(self, is_unwanted: Callable[[], bool], now: float) -> None:
        """Ask, every two seconds, whether the run is cancelled; repeat a warning to processes that are new."""
        if self.stop is not None or now < self.look_at:
            return
        self.look_at = now + _LOOK_S
        if is_unwanted():
            self._end(State.CANCELLED, "cancelled")
        elif why := self.job.has_failed_elsewhere():
            self._end(State.FAILED, why, is_elsewhere=True)
        elif self.warned:  # a program that was only just starting catches the signal by now
            self.told |= tell_catchers(self._ranks(), signal.SIGUSR1, self.told)

    def _hear_out(self, code: int) -> None:
        """Take the signals that came with the end of a rank: perhaps it was ended by the same hand as we are."""
        until = time.monotonic() + (_HEAR_OUT_S if code in _ENDED_ON_REQUEST else 0.0)
        while True:
            for number in self.inbox.wait(until - time.monotonic()):
                self._receive(number)
            if self.stop is not None or time.monotonic() >= until:
                return

    def _receive(self, number: signal.Signals) -> None:
        """Obey a signal to the agent: pass it on to end the workload, or have that leave a checkpoint (SIGUSR1)."""
        if number in ENDING:
            self.tell("signal", signal=number.name, reason="received and passed on")
            self._tell_all(number)
            if self.stop is None:
                state, reason = self._judge_ending_signal(number)
                self._end(state, reason, from_outside=True)
                wall_s = time.monotonic() - self.started
                end = Outcome(state=state, exit_code=None, signal=None, reason=reason, wall_s=wall_s)
                self.job.on_end_asked(end)
        elif number is signal.SIGUSR1 and not self.warned and self.stop is None:
            until = time.monotonic() + self.limits.notice_s
            if until < self.deadline:
                self.deadline = until
                self.late = f"still running {self.limits.notice_s:g} s after SIGUSR1 said that its time is over"
            self._warn("SIGUSR1 received")
        elif number is signal.SIGUSR1:
            self.tell("signal", signal=number.name, reason="received; the workload has been warned before")
        else:
            count = len(tell_catchers(self._ranks(), number))
            self.tell("signal", signal=number.name, reason=f"received and passed on to {count} that catch it")

    def _judge_ending_signal(self, number: signal.Signals) -> tuple[State, str]:
        """Return what a signal to end means: whoever was stopped (SIGSTOP) until the time was over is late himself."""
        if failure := self.job.why_ended():
            return State.FAILED, failure
        if time.monotonic() >= self.deadline:
            return State.TIMEOUT, self.late
        return State.CANCELLED, f"cancelled by {number.name}"


# The lines are the ranks' ids as they start, or "done"; the end of the input is the agent's death. The ids name groups
# and sessions: the groups are killed at once, and then all else by `processes`, the script's arguments.
_SCRIPT = """
trap '' HUP INT TERM USR1 USR2
ranks=
while read -r line; do
    [ "$line" = done ] && exit 0
    ranks="$ranks $line"
done
for rank in $ranks; do kill -KILL "-$rank"; done
exec "$@" $ranks
"""


class Guard:
    """A shell process that kills the workload if the agent dies; started before the ranks, so that none is without it.

    Where no shell can be started there is no guard, and all methods do nothing.
    """

    def __init__(self, marks: Collection[str] = ()) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):  # no shell: the workload is as safe as it would be without hpcml
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "guard/hpcml", sys.executable, "-P", "-m", "hpcml.agent.processes", *marks],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # whoever kills the agent's group must not kill this
                bufsize=0,
            )

    def watch(self, pid: int) -> None:
        """Have the session that *pid* leads killed if this process dies; to be called right after it was started."""
        self._say(str(pid))

    def dismiss(self) -> None:
        """End the guard without killing anything: the workload has ended."""
        self._say("done")
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.close()
            self._process.wait()

    def _say(self, line: str) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):  # somebody has killed it
                self._process.stdin.write(f"{line}\n".encode("ascii"))
