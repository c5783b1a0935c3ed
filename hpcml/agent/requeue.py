"""Puts a run that stopped at a checkpoint back into the queue, so that it continues without the user.

The job script names the command for it in HPCML_REQUEUE. The event is journalled before the scheduler is asked, since
the scheduler may kill this process at any moment after that.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcml.agent import history
from hpcml.agent.assignment import Turn
from hpcml.agent.outcome import Outcome
from hpcml.agent.ranks import REQUEUE
from hpcml.agent.signals import Inbox
from hpcml.errors import HpcmlError
from hpcml.model.state import State
from hpcml.runs.state import EventName, read_fold
from hpcml_client.journal import JournalWriter

_PATIENCE_S = 300.0  # the scheduler's program has time limits of its own, and asks again before it gives up
_TICKET = ("scheduler", "job_id", "array_index", "job_name")
_LEFT = "left at a checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """What came of requeueing: *problem* is why it failed, or None.

    *is_same_job*: no new job was submitted; the scheduler will kill and restart this one.
    """

    problem: str | None
    is_same_job: bool


def obstacle(turn: Turn, attempt: int, outcome: Outcome, environ: Mapping[str, str]) -> str | None:
    """Return why the run is not to be requeued, or None where it is."""
    if outcome.state is not State.TIMEOUT:
        return f"it is {outcome.state.value}"
    if not environ.get(REQUEUE):
        return "nothing here puts it back into the queue"
    limit = turn.run.schedule.max_requeues
    try:
        if read_fold(turn.run_dir).requeues >= limit:
            return f"schedule.max_requeues={limit} is used up"
    except HpcmlError as error:
        return f"how often it was queued again cannot be read: {error}"
    try:
        left = [number for number in history.attempts_left_at_checkpoint(turn.run_dir) if number < attempt]
        return _standstill(history.saved_steps(turn.run_dir), [*left, attempt])
    except (OSError, ValueError, HpcmlError):  # it is queued again, whatever the journals of the ranks are like
        return None


def _standstill(saved: Mapping[int, int], left: Sequence[int]) -> str | None:
    """Return in words that the run gets no further: the last two attempts that *left* at a checkpoint had no new one.

    One attempt alone may have been slow. Where the program reports no checkpoints, nothing can be said.
    """
    if not saved or len(left) < 2:
        return None
    last = max(saved.values())
    first = min(number for number, step in saved.items() if step == last)
    if first >= left[-2]:
        return None
    return f"it comes no further: no checkpoint behind step {last} since attempt {first}"


def put_back(turn: Turn, command: str, inbox: Inbox, journal: JournalWriter) -> Requeued:
    """Run the requeue *command* for the run; *journal* is that of the next attempt.

    The command is called with the run's manifest and prints, as JSON in its last line, the ticket of the new job, or
    nothing where this job itself is put back, as with Slurm. It has five minutes. Failures are journalled and returned
    in `Requeued.problem`, not raised.
    """
    journal.event(EventName.SUBMITTED, {"why": _LEFT, "by": "agent"})
    journal.sync()
    try:
        done = subprocess.run(
            [*shlex.split(command), str(turn.source)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return _failed(journal, str(error))
    if done.returncode < 0 and inbox.asks_to_end():
        return Requeued(problem=None, is_same_job=True)  # what it asked for took effect: both of us are being killed
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return _failed(journal, lines[-1] if lines else f"exit status {done.returncode}")
    ticket = _ticket(done.stdout)
    if ticket is not None:
        journal.event(EventName.SUBMITTED, {"why": _LEFT, "by": "agent", **ticket})
        journal.sync()
    return Requeued(problem=None, is_same_job=ticket is None)


def _failed(journal: JournalWriter, why: str) -> Requeued:
    reason = f"{_LEFT}, but could not be queued again: {why}; hpcml retry goes on from the checkpoint"
    journal.event(EventName.SUBMISSION_FAILED, {"reason": reason, "state": State.TIMEOUT.value})
    journal.sync()
    return Requeued(problem=reason, is_same_job=False)


def _ticket(stdout: str) -> dict[str, Any] | None:
    """Return the ticket in the last line of *stdout*; None where it has none, because the job stays the same."""
    lines = stdout.strip().splitlines()
    try:
        said = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    if not isinstance(said, dict) or said.get("job_id") is None:
        return None
    where = {} if said.get("job_cluster") is None else {"job_cluster": said["job_cluster"]}
    return {**{name: said.get(name) for name in _TICKET}, **where}
