"""The end of an attempt (`settle`): its cause is judged, the end is journalled, and the run goes on or is told of.

It is loaded while the program runs: nobody waits for it then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hpcml.agent import failure, history, requeue
from hpcml.agent.assignment import Turn
from hpcml.agent.claim import Hold
from hpcml.agent.other_nodes import await_ends, leave_with_first
from hpcml.agent.outcome import LEFT_AT_CHECKPOINT, Ended, Outcome, Unharmed, tell_end
from hpcml.agent.ranks import REQUEUE
from hpcml.agent.signals import ENDING, Inbox
from hpcml.errors import HpcmlError
from hpcml.model.failure_causes import Cause
from hpcml.model.run import Notify
from hpcml.model.state import State
from hpcml.runs.state import EventName, RunEvent, read_fold
from hpcml_client.journal import JournalWriter, file_name_of

_REQUEUE_KILLS_WITHIN_S = 60.0
_SCANT_BYTES = 64 << 10  # of a disk that is full: a program writes by blocks


def settle(
    turn: Turn, hold: Hold, outcome: Outcome, inbox: Inbox, environ: Mapping[str, str], journal: JournalWriter
) -> Ended:
    """Journal the end that this agent has seen with its cause, requeue the run or notify the webhook.

    Only node 0's agent requeues and notifies. The end is written before the queue is asked, since the scheduler may
    kill this process at any moment after that.
    """
    attempt = hold.attempt
    obstacle = requeue.obstacle(turn, attempt, outcome, environ) if outcome.checkpointed else None
    outcome = replace(outcome, reason=_whole_reason(turn, outcome, obstacle))
    cause = full = None
    with Unharmed(journal.event)("journals of the ranks"):
        if outcome.state is State.COMPLETED:
            host = file_name_of(os.uname().nodename)
            reason = history.cut_short(turn.run_dir, attempt, host)
            outcome = replace(outcome, reason="; ".join(filter(None, [outcome.reason, reason])) or None)
        if outcome.state in (State.COMPLETED, State.FAILED) and (full := _full_disk(turn.run_dir.logs)):
            outcome = replace(outcome, reason="; ".join(filter(None, [outcome.reason, full])))
    with Unharmed(journal.event)("cause"):
        cause = failure.cause_of(outcome, turn, attempt)
        if full and cause is Cause.PROGRAM:  # it may have had no room to say so
            cause = Cause.DISK
        outcome = failure.explained(outcome, turn, attempt)
    tell_end(lambda name, **details: journal.event(name, details), EventName.ATTEMPT_ENDED, outcome, cause=cause)
    if turn.node != 0:
        journal.close()
        # With another status srun would kill node 0's agent, which puts the run back into the queue.
        status = 0 if outcome.checkpointed else outcome.exit_status
        if status == 0 and not journal.dropped:
            leave_with_first(turn, hold, inbox)
        return Ended(status=status)
    requeued = None
    if outcome.checkpointed and obstacle is None:
        journal.close()
        await_ends(turn, hold, inbox)
        journal = turn.open_journal(attempt + 1)
        requeued = requeue.put_back(turn, environ[REQUEUE], inbox, journal)
    if requeued is None or requeued.problem is not None:
        if turn.run.schedule.notify is not Notify.never:
            journal.sync()  # closing does it too, but the webhook may take its time
            with Unharmed(journal.event)("notification"):
                from hpcml.agent import notify  # noqa: PLC0415 - HTTP and TLS, for those who ask for a message

                told = _of_all_nodes(turn, attempt) if requeued is None else None
                notify.tell_of_end(
                    turn,
                    told.state if told else outcome.state,
                    reason=requeued.problem if requeued else told.reason if told else outcome.reason,
                    cause=_cause_of(told) if told else cause,
                    wall_s=told.wall_s if told else outcome.wall_s,
                    tell=lambda name, **details: journal.event(name, details),
                )
        journal.close()
        return Ended(status=outcome.exit_status)
    journal.close()
    if requeued.is_same_job and not turn.is_local:
        _wait_to_be_killed(inbox)
    return Ended(status=LEFT_AT_CHECKPOINT, waits=True)


def _of_all_nodes(turn: Turn, attempt: int) -> RunEvent | None:
    """Return what decides the attempt, which may be a failure on another node; None where this node's end does."""
    if turn.run.resources.nodes == 1:
        return None
    decision = next((one.decision for one in read_fold(turn.run_dir) if one.number == attempt), None)
    return decision if decision is not None and decision.name == EventName.ATTEMPT_ENDED else None


def _cause_of(told: RunEvent) -> str | None:
    cause = told.details.get("cause")
    return None if cause is None else str(cause)


def _full_disk(logs: Path) -> str | None:
    """Return in one line that what was printed may be cut off, since *logs* is on a full disk; None where it is not.

    A program tells why it failed to its standard error, which has no room then, and one that takes no notice of that
    ends well.
    """
    status = os.statvfs(logs)
    blocks = status.f_bfree if os.geteuid() == 0 else status.f_bavail
    if blocks * status.f_frsize >= _SCANT_BYTES and (status.f_favail or not status.f_files):
        return None
    return f"no room is left on the disk of {logs}: what it printed last may be missing"


def _wait_to_be_killed(inbox: Inbox) -> None:
    """Wait for Slurm, which ends a job that it puts back; to end first would look like an end of its own."""
    until = time.monotonic() + _REQUEUE_KILLS_WITHIN_S
    while not inbox.asks_to_end() and (left_s := until - time.monotonic()) > 0:
        if any(number in ENDING for number in inbox.wait(left_s)):
            return


def _whole_reason(turn: Turn, outcome: Outcome, obstacle: str | None) -> str | None:
    """Return the reason of the end; for a timeout also what keeps the run from going on, or its last checkpoint."""
    if outcome.checkpointed and obstacle is not None and outcome.state is State.TIMEOUT:
        return f"{outcome.reason}; {obstacle}; hpcml retry goes on from there"
    if outcome.state is not State.TIMEOUT or outcome.checkpointed:
        return outcome.reason
    try:
        found = history.last_checkpoint(turn.run_dir)
    except (HpcmlError, OSError, ValueError):  # the end must be told, whatever the journals of the ranks are like
        return outcome.reason
    return f"{outcome.reason}; its last checkpoint is {found}" if found else outcome.reason
