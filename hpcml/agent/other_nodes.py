"""The end of a run on several nodes: its first node's agent tells a success once the others have told theirs.

Loaded while the program runs, as `hpcml.agent.ending` is.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hpcml.agent.assignment import Turn
from hpcml.agent.claim import Hold
from hpcml.agent.outcome import LEFT_AT_CHECKPOINT, Outcome
from hpcml.agent.signals import ENDING, Inbox
from hpcml.errors import HpcmlError
from hpcml.model.state import State
from hpcml.runs.files import open_regular
from hpcml.runs.journal import Chunk, read_on
from hpcml.runs.layout import is_removed, journal_names
from hpcml.runs.state import EventName, RunEvent, fold_of

ENDS_WITHIN_S = 10.0  # of the others, where the end of the run is known without theirs
_FIRST_LOOK_S = 0.1
_LOOK_S = 1.0
_FIRST = "agent"  # the writer of the first node
_BY_AGENT = re.compile(r"-(agent\d*)(-\d+)?\.jsonl$")


def ended_everywhere(
    turn: Turn, hold: Hold, outcome: Outcome, inbox: Inbox, *, why_ended: Callable[[], str | None]
) -> Outcome:
    """Wait, on the first node and after a success there, for the ends of the other nodes; return what it is for all.

    The others may be at work for long yet, and may fail, or leave at a checkpoint. Until they have told their ends the
    job holds its nodes in any case, for each scheduler waits for all of them. A signal that asks to end leaves the
    attempt unsettled, as while a program runs, wherever it came; *why_ended* is asked where it came here, for the
    failure elsewhere that is behind it. FAILED where an agent tells no end and gives no sign of life (`claim.Pace`).
    That another node failed is for its own agent to tell: the outcome stays as it was here. Of an MPI job the first
    node knows the end of all ranks.
    """
    if turn.node != 0 or turn.run.resources.nodes == 1 or outcome.state is not State.COMPLETED:
        return outcome
    others = _OtherNodes(turn, hold, range(1, turn.run.resources.nodes))
    within_s = ENDS_WITHIN_S if turn.plan.mpi is not None else float("inf")
    look_s = _FIRST_LOOK_S
    while (awaited := others.awaited()) and others.waited_s < within_s and not hold.superseded:
        if silent := others.silent(awaited):
            nodes = ", ".join(map(str, silent))
            reason = f"the agent of node {nodes} told no end, and gave no sign of life for {hold.pace.silence_s:g} s"
            return replace(outcome, state=State.FAILED, exit_code=None, reason=reason)  # by whom nobody knows
        for number in inbox.wait(look_s):
            if number in ENDING:
                why = why_ended()
                state, reason = (State.FAILED, why) if why else (State.CANCELLED, f"cancelled by {number.name}")
                return replace(outcome, state=state, reason=reason, interrupted=True)
        hold.beat()
        others.waited_s += look_s  # not by a clock, which goes on where a whole job is suspended
        look_s = min(2 * look_s, _LOOK_S)
    return outcome if turn.plan.mpi is not None else _of_all(outcome, others.ends())


def _of_all(outcome: Outcome, ends: list[RunEvent]) -> Outcome:
    """Return the *outcome* of a success on the first node together with the *ends* of the others."""
    for end in ends:
        if end.name == EventName.ATTEMPT_INTERRUPTED:
            return replace(outcome, state=end.state, reason=end.reason, interrupted=True)
    left = [end for end in ends if end.is_checkpointed]
    if not left or any(end.state is not State.COMPLETED for end in ends if not end.is_checkpointed):
        return outcome
    reason = left[0].reason  # as of ranks on one node: some were done, and the others go on from there
    return replace(outcome, state=State.TIMEOUT, exit_code=LEFT_AT_CHECKPOINT, reason=reason, checkpointed=True)


def await_ends(turn: Turn, hold: Hold, inbox: Inbox) -> None:
    """Wait for the ends of the other nodes before the first puts the run back: Slurm kills them then.

    They have the time that the program has for a checkpoint, and to end after it.
    """
    if turn.run.resources.nodes == 1:
        return
    within_s = max(ENDS_WITHIN_S, turn.run.schedule.notice_s + turn.plan.stop_grace_s)
    _wait(_OtherNodes(turn, hold, range(1, turn.run.resources.nodes)), hold, inbox, within_s=within_s)


def leave_with_first(turn: Turn, hold: Hold, inbox: Inbox) -> None:
    """Wait, on another node than the first, for the end of the first, so that all leave together.

    Flux ends a job some seconds after the first of its tasks has left, and Slurm does at sites with a WaitTime. The end
    of this node must have been told; no sign of life is given any more.
    """
    _wait(_OtherNodes(turn, hold, range(1)), hold, inbox, within_s=float("inf"))


def _wait(others: _OtherNodes, hold: Hold, inbox: Inbox, *, within_s: float) -> None:
    look_s = _FIRST_LOOK_S
    while (awaited := others.awaited()) and others.waited_s < within_s:
        hold.look()
        if others.silent(awaited) or inbox.asks_to_end() or hold.superseded:
            return
        time.sleep(look_s)  # a signal stays in the inbox: whoever called wants to know of it
        others.waited_s += look_s
        look_s = min(2 * look_s, _LOOK_S)


@dataclass(slots=True)
class _OtherNodes:
    """What the journals and the logs of the agents on other nodes tell of an attempt."""

    turn: Turn
    hold: Hold
    nodes: range
    waited_s: float = 0.0
    _read: dict[str, Chunk] = field(default_factory=dict)
    _signs: dict[int, tuple[int, float]] = field(default_factory=dict)  # heartbeats, and when they were seen first

    def awaited(self) -> list[int]:
        """Return the nodes whose agents have not told their end, those included that have not begun.

        Nobody is waited for where the run was removed: what they tell goes nowhere.
        """
        self._look({_writer(node) for node in self.nodes} - {end.writer for end in self.ends()})
        ended = {end.writer for end in self.ends()}
        awaited = [node for node in self.nodes if _writer(node) not in ended]
        return [] if awaited and is_removed(str(self.turn.run_dir.path)) else awaited

    def ends(self) -> list[RunEvent]:
        """Return the ends that were told when it was looked last, by time; the weightiest of each agent."""
        writers = {_writer(node) for node in self.nodes}
        attempt = next((one for one in fold_of(self._read) if one.number == self.hold.attempt), None)
        return [] if attempt is None else [end for end in attempt.told_ends if end.writer in writers]

    def silent(self, nodes: list[int]) -> list[int]:
        """Return those of *nodes* whose agents began, and have given no sign of life for as long as means death."""
        found = []
        for node in nodes:
            sign = self._sign(node)
            if sign is None:
                continue
            if node not in self._signs or self._signs[node][0] != sign:
                self._signs[node] = (sign, self.waited_s)
            elif self.waited_s - self._signs[node][1] >= self.hold.pace.silence_s:
                found.append(node)
        return found

    def _look(self, writers: set[str]) -> None:
        """Read what is new in the journals of *writers* of this attempt; what cannot be read now may be later."""
        folder, beginning = str(self.turn.run_dir.journals), f"{self.hold.attempt}-"
        with suppress(OSError):
            for name in journal_names(folder):
                match = _BY_AGENT.search(name)
                if match is not None and match[1] in writers and name.startswith(beginning):
                    with suppress(HpcmlError, OSError):
                        self._read[name] = read_on(f"{folder}/{name}", self._read.get(name))

    def _sign(self, node: int) -> int | None:
        """Return the time of the last heartbeat of the agent of *node*, by its clock; None before it begins."""
        with suppress(OSError), open_regular(self.hold.run_dir.agent_log(self.hold.attempt, node)) as file:
            return os.fstat(file.fileno()).st_mtime_ns  # opened: a network file system answers a stat from its memory
        return None


def _writer(node: int) -> str:
    return f"{_FIRST}{node or ''}"
