"""The working directory of a run at the start and the end of an attempt, on one node or on several.

The first node makes it (`make_ready`), in a folder that all nodes see, and says so with a file; the others wait for
that before they start their processes. The node whose processes end last removes what is as it was staged, and journals
what the program wrote (`leave`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hpcml.agent.assignment import Turn
from hpcml.agent.claim import Hold
from hpcml.agent.outcome import Outcome
from hpcml.agent.signals import Inbox
from hpcml.errors import HpcmlError, why_not
from hpcml.model.state import State
from hpcml.runs.cancellation import is_cancelled
from hpcml.runs.private import FILE
from hpcml.runs.state import EventName
from hpcml.runs.working_directory import changed, look_at_shared, settle, stage
from hpcml_client.journal import JournalWriter

_LOOK_S = 0.2
_PATIENCE_S = 600.0  # of the other nodes, for the first: 20,000 files on a busy file system
_MOST_TOLD = 100  # places outside that changed
_SETTLES_WITHIN_S = 10.0  # the time that is left where the walltime is over: `plan.stop_and_warn_after_s`


def make_ready(turn: Turn, hold: Hold, inbox: Inbox) -> Outcome | None:
    """Make the working directory, or wait for the first node that makes it; return how the attempt ended without one.

    None: the program can start. A recipe, and a run without a copy of its code, needs nothing.
    """
    plan = turn.plan
    if plan.staging is None:
        return None
    ready = turn.run_dir.is_staged(hold.attempt)
    if turn.node != 0:
        return _wait_for(ready, turn, hold, inbox)
    try:
        stage(turn.run_dir, plan.staging, Path(plan.cwd), on_file=hold.beat)
        if turn.run.resources.nodes > 1:
            ready.touch(mode=FILE)
    except (OSError, HpcmlError) as error:
        why = why_not(error, plan.cwd) if isinstance(error, OSError) else str(error)
        return _ended(State.FAILED, f"its working directory could not be made: {why}")
    return None


def shared_before(turn: Turn) -> Mapping[str, object]:
    """Return how what this run shares with others looks now, for `leave`; empty on other nodes than the first."""
    plan = turn.plan
    return {} if plan.staging is None or turn.node != 0 else look_at_shared(plan.staging)


def leave(turn: Turn, attempt: int, shared: Mapping[str, object], journal: JournalWriter) -> None:
    """Say that the processes of this node have ended; the last node to say so clears up and journals what was written.

    Raises `OSError` and `HpcmlError` where the working directory cannot be read.
    """
    plan, run_dir = turn.plan, turn.run_dir
    if plan.staging is None:
        return
    touched = [] if turn.node else changed(shared, look_at_shared(plan.staging))
    if touched:
        journal.event(EventName.SHARED_CHANGED, {"paths": touched[:_MOST_TOLD]})
    nodes = turn.run.resources.nodes
    if nodes > 1:
        run_dir.has_left_work(attempt, turn.node).touch(mode=FILE)
        left = set(os.listdir(run_dir.has_left_work(attempt, 0).parent))  # noqa: PTH208 - a folder, read anew
        if any(run_dir.has_left_work(attempt, node).name not in left for node in range(nodes)):
            return
    written = settle(run_dir, within_s=_SETTLES_WITHIN_S)
    size_bytes = sum(file.size_bytes for file in written)
    journal.event(EventName.FILES_WRITTEN, {"count": len(written), "bytes": size_bytes})


def _wait_for(ready: Path, turn: Turn, hold: Hold, inbox: Inbox) -> Outcome | None:
    """Wait for the file *ready*; the folder is read each time, since a network file system remembers what is absent."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        with suppress(FileNotFoundError):
            if ready.name in os.listdir(ready.parent):  # noqa: PTH208
                return None
        with suppress(OSError):
            words = turn.run_dir.has_failed(hold.attempt).read_text(encoding="utf-8", errors="replace")
            return _ended(State.FAILED, words.strip())
        if inbox.asks_to_end():
            return _ended(State.CANCELLED, "ended by a signal before it started", interrupted=True)
        if hold.superseded or is_cancelled(turn.run_dir):
            return _ended(State.CANCELLED, "cancelled before it started")
        hold.beat()
        time.sleep(_LOOK_S)
    return _ended(State.FAILED, f"the first node did not make the working directory within {_PATIENCE_S:.0f} s")


def _ended(state: State, reason: str, *, interrupted: bool = False) -> Outcome:
    return Outcome(state=state, exit_code=None, signal=None, reason=reason, wall_s=0.0, interrupted=interrupted)
