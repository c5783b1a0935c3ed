"""The claim to a run: of all jobs that want to carry it out one does, and what is done stays done.

A run may be in the hands of several jobs: a submission whose answer got lost was made twice, somebody submitted job.sh
by hand, the scheduler restarted a job because a node or a daemon died, a run that was given up goes on after all. So an
agent asks (`enter`) before it starts the program:

============================================  ==================================================================
what the journals tell                        what the agent does
============================================  ==================================================================
an attempt of the run has COMPLETED           it leaves, unless HPCML_RUN_AGAIN=1 asks for another one
the run was cancelled                         its attempt is CANCELLED too, unless that variable asks for another
an attempt of another job has FAILED          it leaves, too: a twin that came late. `hpcml retry` has a job of its own
this very job has ended the run, PBS or LSF   it leaves: they restart a job whose end they did not hear of
the agent of another job is alive             it leaves
an earlier agent of this job is alive, or of  it waits for that one's end, and looks again
the job that queued this one to go on
an agent somewhere else has told no end       it watches for a sign of life for 70 s
nobody is at work                             it claims the next attempt
============================================  ==================================================================

A claim is a file that is created exclusively, ``attempts/<n>.json``: of several agents one gets it, and those on the
other nodes of its job join it. Signs of life are the times of files that agents touch; they are compared with
themselves only, never with a clock, since those of two nodes differ. An agent that sees a later attempt claimed ends
its program: it was taken for dead.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from hpcml.agent.assignment import Turn, job_of, job_start_of
from hpcml.agent.signals import Inbox
from hpcml.model.state import State
from hpcml.runs.atomic import create_text
from hpcml.runs.cancellation import unmark
from hpcml.runs.files import open_regular, parse_json
from hpcml.runs.layout import RunDir, home_of
from hpcml.runs.liveness import AGENT_SILENCE_S, Liveness, ProcessIdentity, liveness_of
from hpcml.runs.private import FILE, make_folder, read
from hpcml.runs.state import RESTARTS_UNHEARD, EventName, RunEvent, RunFold, read_fold
from hpcml_client.journal import JournalWriter

RUN_AGAIN = "HPCML_RUN_AGAIN"  # =1 in the job's environment: a run that has ended is run again
_STAYED_OUT = 1  # exit status: this job did not do the run's work, and it is not known to be done
_INTERRUPTED = 128 + 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times in seconds: between heartbeats, of a silence that means death, and between looks."""

    beat_s: float = 20.0
    silence_s: float = AGENT_SILENCE_S
    look_s: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStart:
    """One start of one job, which the agents of all its nodes belong to; what nobody knows is None or empty."""

    job_id: str | None
    array_index: int | None
    pack: str | None  # several runs share the job
    start: str  # tells the starts of a job that is requeued under its id from each other

    @classmethod
    def of(cls, turn: Turn, environ: Mapping[str, str]) -> JobStart:
        """Return what the job's variables say of the start that this agent is a part of."""
        job = job_of(turn, environ)
        job_id, index = job["job_id"], job["array_index"]
        return cls(
            job_id=None if job_id is None else str(job_id),
            array_index=index if isinstance(index, int) else None,
            pack=turn.pack,
            start="" if job_id is None else job_start_of(environ),
        )

    def as_details(self) -> dict[str, object]:
        """Return it as JSON values, for an event or a claim."""
        return {"job_id": self.job_id, "array_index": self.array_index, "pack": self.pack, "start": self.start}

    def is_same_job(self, other: JobStart) -> bool:
        """Whether the scheduler knows both as one job, started twice perhaps; what has no id is no job."""
        return self.job_id is not None and (self.job_id, self.array_index) == (other.job_id, other.array_index)

    def __str__(self) -> str:
        if self.job_id is None:
            return "no job"
        return f"job {self.job_id}" + ("" if self.array_index is None else f"[{self.array_index}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Why the agent does not carry out the run; `status` is what it exits with."""

    reason: str
    status: int
    interrupted: bool = False  # by a signal, while it waited


@dataclass(frozen=True, slots=True)
class _Claim:
    """The content of a claim: which start of which job has the attempt, and the agent that claimed it."""

    job: JobStart
    agent: ProcessIdentity


@dataclass(frozen=True, slots=True)
class _Agent:
    """An agent that has told no end, as far as the journals and the claim name it."""

    attempt: int
    node: int
    job: JobStart
    process: ProcessIdentity | None

    @property
    def liveness(self) -> Liveness:
        return Liveness.UNKNOWN if self.process is None else liveness_of(self.process)

    def __str__(self) -> str:
        where = "" if self.process is None else f", process {self.process.pid} on {self.process.host}"
        return f"attempt {self.attempt} ({self.job}{where})"


@dataclass(slots=True)
class Hold:
    """The attempt that this agent carries out: it shows that we live, and tells whether the attempt is still ours."""

    run_dir: RunDir
    attempt: int
    node: int
    pace: Pace = field(default_factory=Pace)
    _next_at: float = 0.0  # of the monotonic clock
    superseded: bool = False  # a later attempt has been claimed

    def beat(self) -> None:
        """Touch this agent's log and look for a later claim, if it is time; to be called often."""
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + self.pace.beat_s
        with suppress(OSError):  # a file system that is away for a moment
            os.utime(self.run_dir.agent_log(self.attempt, self.node))
        self.look()

    def look(self) -> None:
        """Look for a later claim; where the file system does not tell now, it is looked for another time."""
        with suppress(OSError):
            self.superseded = self.superseded or self.run_dir.claim(self.attempt + 1).exists()


def enter(
    turn: Turn,
    environ: Mapping[str, str],
    inbox: Inbox,
    *,
    pace: Pace | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Hold | Left:
    """Claim an attempt of the run of *turn* for this job, or join the one that another node of it has claimed.

    Returns `Left` where the program must not be started; node 0 has journalled that as "attempt_left" then. May wait:
    for an earlier agent of this job, for a sign of life, or for node 0. Raises `OSError` where the run directory cannot
    be written.
    """
    gate = _Gate(turn, JobStart.of(turn, environ), inbox, pace or Pace(), sleep, environ.get(RUN_AGAIN) == "1")
    entered = gate.lead() if turn.node == 0 else gate.follow()
    if isinstance(entered, Left):
        if turn.node == 0 and not entered.interrupted:
            gate.tell_left(entered)
        return entered
    hold = Hold(turn.run_dir, entered, turn.node, gate.pace)
    make_folder(turn.run_dir.logs)
    turn.run_dir.agent_log(entered, turn.node).touch(mode=FILE)
    return hold


def is_awaited(turn: Turn, environ: Mapping[str, str]) -> bool:
    """Tell whether another node of this job has begun an attempt that this node has yet to take part in."""
    return _open_claim(turn, JobStart.of(turn, environ), _claims(turn.run_dir)) is not None


def _open_claim(turn: Turn, ours: JobStart, claims: Mapping[int, _Claim]) -> int | None:
    """Return the attempt that another node has claimed for *ours*, this start of this job, if we are not in it yet.

    It may have ended there by now: a short program does not wait for the other nodes.
    """
    attempt = max(claims, default=0)
    if ours.job_id is None or attempt not in claims or claims[attempt].job != ours:
        return None
    return None if turn.run_dir.agent_log(attempt, turn.node).exists() else attempt


def _signalled() -> Left:
    return Left(reason="a signal ended it before it began", status=_INTERRUPTED, interrupted=True)


@dataclass(slots=True)
class _Gate:
    """One agent that wants to carry out a run."""

    turn: Turn
    ours: JobStart
    inbox: Inbox
    pace: Pace
    sleep: Callable[[float], None]
    is_asked_again: bool  # a run that has ended is wanted once more
    _waits_for: str | None = None  # what has been said of whom we wait for
    _dead: set[tuple[int, int]] = field(default_factory=set)  # attempt and node of agents that gave no sign of life

    def lead(self) -> int | Left:
        """Decide for node 0, and so for all nodes of the job; return the attempt that was claimed."""
        while True:
            told = read_fold(self.turn.run_dir)
            if (done := self._is_done(told)) is not None:
                return done
            claims = _claims(self.turn.run_dir)
            joined = _open_claim(self.turn, self.ours, claims)
            if joined is not None:
                return joined
            others = [one for one in self._at_work(told, claims) if (one.attempt, one.node) not in self._dead]
            if not others:
                if self.is_asked_again:
                    unmark(self.turn.run_dir)
                if (attempt := self._claim(told, claims)) is not None:
                    return attempt
                continue  # another agent was quicker: it is looked at like any other
            if self.inbox.asks_to_end():
                return _signalled()
            if (living := self._living(others)) is not None:
                if not self._comes_after(living, told):
                    return Left(reason=f"{living} is at work on this run", status=_STAYED_OUT)
                self._wait_for(living)

    def follow(self) -> int | Left:
        """Wait, on another node than the first, for what node 0 decides; return the attempt to join."""
        while True:
            told = read_fold(self.turn.run_dir)
            joined = _open_claim(self.turn, self.ours, _claims(self.turn.run_dir))
            if joined is not None:
                return joined
            left = next((one for attempt in told for one in attempt.leaves if _job_of(one) == self.ours), None)
            if left is not None and not self.is_asked_again:
                return Left(reason=str(left.reason), status=int(left.details.get("status") or 0))
            if self.inbox.asks_to_end():
                return _signalled()
            self.sleep(self.pace.look_s)

    def tell_left(self, left: Left) -> None:
        """Journal that this job leaves the run, in the attempt that was to be its own."""
        told = read_fold(self.turn.run_dir)
        directory, uid = str(self.turn.run_dir.journals), self.turn.uid
        with JournalWriter.open(directory, run=uid, attempt=told.attempt, writer="left") as journal:
            journal.event(EventName.LEFT, {"reason": left.reason, "status": left.status, **self.ours.as_details()})

    def _is_done(self, told: RunFold) -> Left | None:
        """Return why there is nothing to do: the run has completed, or this very job has brought it to its end."""
        is_restarted = self.turn.run.cluster.scheduler.name in RESTARTS_UNHEARD
        for attempt in told:
            if not attempt.has_ended or attempt.decision is None:
                continue
            is_ours = any(self.ours.is_same_job(_job_of(start)) for start in attempt.starts)
            if attempt.state is State.COMPLETED and (is_ours or not self.is_asked_again):
                return Left(reason=f"attempt {attempt.number} has COMPLETED", status=0)
            is_twin = self.turn.source == self.turn.run_dir.manifest and self.ours.job_id is not None and not is_ours
            if attempt.state is State.FAILED and attempt.starts and is_twin and not self.is_asked_again:
                reason = f"attempt {attempt.number} has FAILED ({RUN_AGAIN}=1 runs it again)"
                return Left(reason=reason, status=_STAYED_OUT)
            if is_ours and is_restarted and not attempt.may_go_on:
                reason = f"this job ended attempt {attempt.number} as {attempt.state.value}, and was started once more"
                return Left(reason=reason, status=attempt.decision.exit_code or _STAYED_OUT)
        return None

    def _at_work(self, told: RunFold, claims: Mapping[int, _Claim]) -> Iterator[_Agent]:
        """Yield the agents of the latest attempt that have told no end: who claimed it proved those before dead."""
        begun = {one.number: one for one in told if one.starts}
        latest = max((*begun, *claims), default=None)
        if latest is None:
            return
        claim, attempt = claims.get(latest), begun.get(latest)
        if attempt is None:
            if claim is not None:
                yield _Agent(latest, 0, claim.job, claim.agent)
            return
        for start in attempt.unended:
            node = start.details.get("node")
            process = ProcessIdentity.from_details(start.details)
            yield _Agent(latest, node if isinstance(node, int) else 0, _job_of(start), process)

    def _claim(self, told: RunFold, claims: Mapping[int, _Claim]) -> int | None:
        """Claim the next attempt: the latest if it only waits, else the one after it; None where it was taken."""
        attempt = told.attempt
        if attempt in claims or any(one.number == attempt and (one.starts or one.is_judged) for one in told):
            attempt += 1
        attempt = max(attempt, max(claims, default=-1) + 1)
        content = {**self.ours.as_details(), **ProcessIdentity.of_this_process().as_details()}
        path = self.turn.run_dir.claim(attempt)
        make_folder(path.parent)
        try:
            create_text(path, json.dumps(content))
        except FileExistsError:
            return None
        return attempt

    def _living(self, others: list[_Agent]) -> _Agent | None:
        """Return one of *others* that is alive.

        None: all are dead, and will not be looked at again, or a signal asked us to end.
        """
        for one in others:
            if one.liveness is Liveness.ALIVE:
                return one
        self._dead |= {(one.attempt, one.node) for one in others if one.liveness is Liveness.DEAD}
        unseen = [one for one in others if one.liveness is Liveness.UNKNOWN]
        return self._watch(unseen) if unseen else None

    def _comes_after(self, living: _Agent, told: RunFold) -> bool:
        """Whether this job is that of *living*, started again, or was queued by it to go on from its checkpoint."""
        queued = (one.is_requeue for one in told if one.number > living.attempt and not one.is_void)
        return self.ours.is_same_job(living.job) or any(queued)

    def _wait_for(self, living: _Agent) -> None:
        """Wait a moment for an earlier agent to end; say once, in the job's log, whom we wait for."""
        words = f"waiting for the end of {living}, after which this job is to go on"
        if words != self._waits_for:
            self._waits_for = words
            sys.stderr.write(f"hpcml agent: {words}\n")
        self.sleep(self.pace.look_s)

    def _watch(self, unseen: list[_Agent]) -> _Agent | None:
        """Return the first of some agents that cannot be seen from here to give a sign of life.

        None: they were silent for long enough, and count as dead; or a signal asked us to end.
        """
        before = {(one.attempt, one.node): _signs(self.turn.run_dir, one) for one in unseen}
        waited_s = 0.0
        while waited_s < self.pace.silence_s:
            if self.inbox.asks_to_end():
                return None
            self.sleep(self.pace.look_s)
            waited_s += self.pace.look_s
            for one in unseen:
                if _signs(self.turn.run_dir, one) != before[one.attempt, one.node]:
                    return one
        self._dead |= set(before)
        return None


def _signs(run_dir: RunDir, agent: _Agent) -> tuple[object, ...]:
    """Return what changes while *agent* lives: times and sizes of its log and of all that its attempt journals.

    Files are opened for it: a network file system may answer a mere stat from its memory.
    """
    found: list[object] = []
    journals = (*run_dir.journals.glob(f"{agent.attempt}-*"), *run_dir.telemetry.glob(f"{agent.attempt}-*"))
    for path in (run_dir.agent_log(agent.attempt, agent.node), *sorted(journals)):
        with suppress(OSError), open_regular(path) as file:
            status = os.fstat(file.fileno())
            found.append((path.name, status.st_mtime_ns, status.st_size))
    return tuple(found)


def _claims(run_dir: RunDir) -> dict[int, _Claim]:
    """Return all claims by attempt; one whose content is damaged names nobody, but is a claim.

    Raises `NotPrivateError` for one that another user could have written.
    """
    found: dict[int, _Claim] = {}
    for number, path in run_dir.claims():
        details: Mapping[str, object] = {}
        with suppress(OSError, ValueError):
            raw = parse_json(read(path, top=home_of(run_dir.manifest)))
            details = raw if isinstance(raw, dict) else {}
        agent = ProcessIdentity.from_details(details) or ProcessIdentity(host="", pid=0)
        found[number] = _Claim(_job_in(details), agent)
    return found


def _job_of(told: RunEvent) -> JobStart:
    return _job_in(told.details)


def _job_in(details: Mapping[str, object]) -> JobStart:
    job_id, index, pack = details.get("job_id"), details.get("array_index"), details.get("pack")
    return JobStart(
        job_id=None if job_id is None else str(job_id),
        array_index=index if isinstance(index, int) else None,
        pack=None if pack is None else str(pack),
        start=str(details.get("start") or ""),
    )
