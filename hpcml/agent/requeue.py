"""A run that left at a checkpoint put back into the queue by its own agent, so that it goes on without anybody's help.

The wish is written down before the scheduler is asked: asked, it may kill this process at any moment.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcml.agent import history
from hpcml.agent.inbox import Inbox
from hpcml.agent.outcome import Outcome
from hpcml.agent.ranks import REQUEUE
from hpcml.agent.turn import Turn
from hpcml.states import State
from hpcml_client.journal import JournalWriter

_PATIENCE_S = 300.0  # the scheduler's program has time limits of its own, and asks again before it gives up
_TICKET = ("scheduler", "job_id", "array_index", "job_name")
_LEFT = "left at a checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """What came of it; *is_same_job*: this job itself starts again, once it has been killed."""

    problem: str | None
    is_same_job: bool


def obstacle(turn: Turn, outcome: Outcome, environ: Mapping[str, str]) -> str | None:
    """Return why a run that left at a checkpoint is not put back, or None where it is to be."""
    if outcome.state is not State.TIMEOUT:
        return f"it is {outcome.state.value}"
    if not environ.get(REQUEUE):
        return "nothing here puts it back into the queue"
    limit = turn.manifest.run.schedule.max_requeues
    if history.requeues(turn.run_dir) >= limit:
        return f"schedule.max_requeues={limit} is used up"
    return None


def put_back(turn: Turn, command: str, inbox: Inbox, journal: JournalWriter) -> Requeued:
    """Run *command* for the run; *journal* is that of the attempt that is asked for, which is not this one."""
    journal.event("submitted", {"why": _LEFT, "by": "agent"})
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
        journal.event("submitted", {"why": _LEFT, "by": "agent", **ticket})
        journal.sync()
    return Requeued(problem=None, is_same_job=ticket is None)


def _failed(journal: JournalWriter, why: str) -> Requeued:
    reason = f"{_LEFT}, but could not be queued again: {why}; hpcml retry goes on from the checkpoint"
    journal.event("submission_failed", {"reason": reason, "state": State.TIMEOUT.value})
    journal.sync()
    return Requeued(problem=reason, is_same_job=False)


def _ticket(stdout: str) -> dict[str, Any] | None:
    """Return what the last line says the run is called from now on; it says nothing where that is as before."""
    lines = stdout.strip().splitlines()
    try:
        said = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    if not isinstance(said, dict) or said.get("job_id") is None:
        return None
    return {name: said.get(name) for name in _TICKET}
