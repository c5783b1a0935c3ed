"""One attempt of one run on one node, in order: claimed, told, carried out, judged, and put back into the queue."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from hpcml.agent import history, host, notify, postmortem, requeue
from hpcml.agent.inbox import ENDING, Inbox
from hpcml.agent.memory_kills import read_kills
from hpcml.agent.outcome import LEFT_AT_CHECKPOINT, Outcome
from hpcml.agent.ranks import REQUEUE, provide_client, ranks_of
from hpcml.agent.stdout_metrics import StdoutScanner
from hpcml.agent.supervise import Limits, supervise
from hpcml.agent.telemetry import PATIENCE_S, Telemetry
from hpcml.agent.turn import Turn, job_of
from hpcml.manifest import Plan
from hpcml.spec import Notify
from hpcml.states import UNSETTLED, State
from hpcml_client.journal import JournalWriter

_REQUEUE_KILLS_WITHIN_S = 60.0

Tell = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What the agent's process needs to know of an attempt that is over."""

    status: int  # what it exits with, if this was its only run
    waits: bool = False  # it has been put back into the queue
    interrupted: bool = False  # by a signal that was meant for the whole job


def carry_out(turn: Turn, inbox: Inbox, environ: Mapping[str, str]) -> Ended:
    """Run the next attempt of the run, to its end."""
    attempt = history.claim_attempt(turn.run_dir, turn.node)
    journal = _journal(turn, attempt)

    def tell(name: str, **details: object) -> None:
        journal.event(name, details)

    job = job_of(turn, environ)
    tell(
        "attempt_started",
        pid=os.getpid(),
        create_time=psutil.Process().create_time(),
        hostname=socket.gethostname(),
        walltime_s=turn.manifest.plan.walltime_s,
        node=turn.node,
        pack=turn.pack,
        **job,
    )
    mark = turn.run_dir.cancel_mark
    if mark.exists():
        outcome = _cancelled()
    else:
        outcome = _work(turn, attempt, inbox, environ, journal)
        if mark.exists() and (outcome.state is State.FAILED or outcome.checkpointed):
            # It was killed, or left, because somebody wanted that.
            outcome = replace(outcome, state=State.CANCELLED, reason="cancelled")
    if outcome.interrupted and not turn.is_local and not mark.exists():
        _tell_end(tell, UNSETTLED, outcome)
        journal.close()
        return Ended(status=outcome.exit_status, interrupted=True)
    ended = _settle(turn, attempt, outcome, inbox, environ, journal)
    if turn.node == 0:
        mark.unlink(missing_ok=True)  # obeyed: whoever submits job.sh again wants it to run
    return replace(ended, interrupted=outcome.interrupted)


def _journal(turn: Turn, attempt: int) -> JournalWriter:
    writer = "agent" if turn.node == 0 else f"agent{turn.node}"
    return JournalWriter.open(str(turn.run_dir.journals), run=turn.manifest.uid, attempt=attempt, writer=writer)


def _tell_end(tell: Tell, event: str, outcome: Outcome, **more: object) -> None:
    tell(
        event,
        state=outcome.state.value,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        reason=outcome.reason,
        wall_s=outcome.wall_s,
        checkpointed=outcome.checkpointed,
        **more,
    )


def _cancelled() -> Outcome:
    return Outcome(state=State.CANCELLED, exit_code=None, signal=None, reason="cancelled before it started", wall_s=0.0)


def _settle(
    turn: Turn, attempt: int, outcome: Outcome, inbox: Inbox, environ: Mapping[str, str], journal: JournalWriter
) -> Ended:
    """Tell the end that this agent has seen, and see to what comes after it."""
    obstacle = requeue.obstacle(turn, outcome, environ) if outcome.checkpointed else None
    outcome = replace(outcome, reason=_whole_reason(turn, outcome, obstacle))
    cause = None
    with _Unharmed(journal.event)("cause"):
        cause = postmortem.cause_of(outcome, turn, attempt)
        outcome = postmortem.explained(outcome, turn, attempt)
    _tell_end(lambda name, **details: journal.event(name, details), "attempt_ended", outcome, cause=cause)
    if turn.node != 0:
        journal.close()
        # With another status srun would kill node 0's agent, which puts the run back into the queue.
        return Ended(status=0 if outcome.checkpointed else outcome.exit_status)
    requeued = None
    if outcome.checkpointed and obstacle is None:
        journal.close()
        journal = _journal(turn, attempt + 1)
        requeued = requeue.put_back(turn, environ[REQUEUE], inbox, journal)
    if requeued is None or requeued.problem is not None:
        if turn.manifest.run.schedule.notify is not Notify.never:
            journal.sync()  # closing does it too, but the webhook may take its time
        with _Unharmed(journal.event)("notification"):
            notify.tell_of_end(
                turn,
                outcome.state,
                reason=requeued.problem if requeued else outcome.reason,
                cause=cause,
                wall_s=outcome.wall_s,
                tell=lambda name, **details: journal.event(name, details),
            )
        journal.close()
        return Ended(status=outcome.exit_status)
    journal.close()
    if requeued.is_same_job and not turn.is_local:
        _wait_to_be_killed(inbox)
    return Ended(status=LEFT_AT_CHECKPOINT, waits=True)


def _wait_to_be_killed(inbox: Inbox) -> None:
    """Wait for Slurm, which ends a job that it puts back; to end first would look like an end of its own."""
    until = time.monotonic() + _REQUEUE_KILLS_WITHIN_S
    while not inbox.asks_to_end() and (left_s := until - time.monotonic()) > 0:
        if any(number in ENDING for number in inbox.wait(left_s)):
            return


def _whole_reason(turn: Turn, outcome: Outcome, obstacle: str | None) -> str | None:
    if outcome.checkpointed and obstacle is not None and outcome.state is State.TIMEOUT:
        return f"{outcome.reason}; {obstacle}; hpcml retry goes on from there"
    if outcome.state is not State.TIMEOUT or outcome.checkpointed:
        return outcome.reason
    try:
        found = history.last_checkpoint(turn.run_dir)
    except (OSError, ValueError):  # the end must be told, whatever the journals of the ranks are like
        return outcome.reason
    return f"{outcome.reason}; its last checkpoint is {found}" if found else outcome.reason


class _Unharmed:
    """Keeps our own trouble away from the workload: it is journalled, once for each kind, and life goes on."""

    def __init__(self, event: Callable[[str, Mapping[str, object]], None]) -> None:
        self._event = event
        self._told: set[str] = set()

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the workload must not die of it
            if what not in self._told:
                self._told.add(what)
                self._event("agent_trouble", {"what": what, "error": repr(error)})


def _image_facts(plan: Plan) -> dict[str, str]:
    if plan.image is None:
        return {}
    sha256 = plan.image.sha256
    if sha256 is None and plan.image.key is not None:  # a job before this one built it, and wrote its record beside it
        with suppress(OSError, ValueError, KeyError, TypeError):
            sha256 = str(json.loads(Path(plan.image.path).with_suffix(".json").read_text(encoding="utf-8"))["sha256"])
    found = {"image": plan.image.path, "image_key": plan.image.key, "image_sha256": sha256}
    return {name: value for name, value in found.items() if value is not None}


def _work(turn: Turn, attempt: int, inbox: Inbox, environ: Mapping[str, str], journal: JournalWriter) -> Outcome:
    telemetry = Telemetry.start(turn, attempt, environ)
    unharmed = _Unharmed(journal.event)
    try:
        provide_client(turn.run_dir)
        with unharmed("facts"):
            plan = turn.manifest.plan
            given = {name: value for name, value in {**environ, **plan.environment}.items() if value is not None}
            own = {**host.facts(), **host.telling_variables(given), **_image_facts(plan)}
            journal.event("facts", {**own, **telemetry.take_facts(PATIENCE_S)})
        telemetry.begin()
        outcome = _supervise(turn, attempt, inbox, environ, journal, telemetry)
        if telemetry.is_on:
            with unharmed("telemetry"):
                journal.event("telemetry", {"node": turn.node, **telemetry.end()})
                if facts := telemetry.take_facts():
                    journal.event("facts", facts)
        return outcome
    finally:
        with unharmed("telemetry"):
            telemetry.stop()


def _supervise(
    turn: Turn, attempt: int, inbox: Inbox, environ: Mapping[str, str], journal: JournalWriter, telemetry: Telemetry
) -> Outcome:
    manifest, plan = turn.manifest, turn.manifest.plan
    unharmed = _Unharmed(journal.event)
    ranks = ranks_of(turn, attempt, environ)
    scanner = StdoutScanner(path=ranks[0].stdout, rules=manifest.run.workload.metrics)

    def pick(*, to_the_end: bool = False) -> None:
        with unharmed("metrics from stdout"):
            for found in scanner.scan(to_the_end=to_the_end):
                journal.metrics(found.step, {found.name: found.value})

    def follow() -> None:
        pick()
        with unharmed("telemetry"):
            if facts := telemetry.take_facts():
                journal.event("facts", facts)
            if lost := telemetry.read():
                journal.event("telemetry_lost", {"node": turn.node, "reason": lost})

    job_id = job_of(turn, environ)["job_id"]
    kills_before = read_kills(job_id if isinstance(job_id, str) else None)
    outcome = supervise(
        ranks,
        inbox,
        Limits(
            stop_after_s=plan.stop_after_s,
            warn_after_s=plan.warn_after_s,
            notice_s=manifest.run.schedule.notice_s,
            grace_s=plan.stop_grace_s,
        ),
        tell=lambda name, **details: journal.event(name, details),
        on_tick=follow,
        is_unwanted=turn.run_dir.cancel_mark.exists,
    )
    if ranks[0].stdout.exists():
        pick(to_the_end=True)
    return postmortem.out_of_memory(outcome, kills_before, read_kills(job_id if isinstance(job_id, str) else None))
