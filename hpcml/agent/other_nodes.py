"""The end of a run on several nodes: its first node's agent tells a success once the others have told theirs.

Loaded while the program runs, as `hpcml.agent.ending` is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hpcml.agent.assignment import Turn
from hpcml.agent.fence import Hold
from hpcml.agent.outcome import Outcome
from hpcml.agent.signals import ENDING, Inbox
from hpcml.errors import HpcmlError
from hpcml.model.state import State
from hpcml.runs.files import open_regular
from hpcml.runs.journal import Chunk
from hpcml.runs.state import fold_of, read_told

ENDS_WITHIN_S = 10.0  # of the others, where the end of the run is known without theirs
_FIRST_LOOK_S = 0.1
_LOOK_S = 1.0


def ended_everywhere(
    turn: Turn, hold: Hold, outcome: Outcome, inbox: Inbox, *, why_ended: Callable[[], str | None]
) -> Outcome:
    """Wait, on the first node and after a success there, for the ends of the other nodes; return what it is for all.

    The others may be at work for long yet, and may fail. Until they have told their ends the job holds its nodes in any
    case, for each scheduler waits for all of them. A signal that asks to end leaves the attempt unsettled, as while a
    program runs; *why_ended* is asked then, for the failure elsewhere that is behind it. FAILED where an agent tells no
    end and gives no sign of life (`fence.Pace`). Of an MPI job the first node knows the end of all ranks.
    """
    if turn.node != 0 or turn.settings.nodes == 1 or outcome.state is not State.COMPLETED:
        return outcome
    others = _OtherNodes(turn, hold)
    within_s = ENDS_WITHIN_S if turn.plan.mpi is not None else float("inf")
    waited_s, look_s = 0.0, _FIRST_LOOK_S
    while (awaited := others.awaited()) and waited_s < within_s and not hold.superseded:
        if silent := others.silent(awaited):
            nodes = ", ".join(map(str, silent))
            reason = f"the agent of node {nodes} told no end, and gave no sign of life for {hold.pace.silence_s:g} s"
            return replace(outcome, state=State.FAILED, reason=reason)
        for number in inbox.wait(look_s):
            if number in ENDING:
                why = why_ended()
                state, reason = (State.FAILED, why) if why else (State.CANCELLED, f"cancelled by {number.name}")
                return replace(outcome, state=state, reason=reason, interrupted=True)
        hold.beat()
        others.waited_s += look_s  # not by a clock, which goes on where a whole job is suspended
        waited_s, look_s = waited_s + look_s, min(2 * look_s, _LOOK_S)
    return outcome


def await_ends(turn: Turn, hold: Hold, inbox: Inbox) -> None:
    """Wait a moment for the ends of the other nodes: Slurm kills them when the first puts the job back."""
    others, waited_s = _OtherNodes(turn, hold), 0.0
    while others.awaited() and waited_s < ENDS_WITHIN_S and not inbox.asks_to_end():
        inbox.wait(_FIRST_LOOK_S)
        waited_s += _FIRST_LOOK_S


@dataclass(slots=True)
class _OtherNodes:
    """What the journals and the logs of the agents on the other nodes tell of an attempt."""

    turn: Turn
    hold: Hold
    waited_s: float = 0.0
    _read: dict[str, Chunk] = field(default_factory=dict)
    _signs: dict[int, tuple[int, float]] = field(default_factory=dict)  # heartbeats, and when they were seen first

    def awaited(self) -> list[int]:
        """Return the nodes whose agents have not told their end, those included that have not begun."""
        others = range(1, self.turn.settings.nodes)
        try:
            self._read = read_told(self.turn.run_dir, self._read)
        except (HpcmlError, OSError):  # a file system that is away for a moment
            return list(others)
        ended = {
            writer for one in fold_of(self._read) if one.number == self.hold.attempt for writer in one.writers_of_ends
        }
        return [node for node in others if f"agent{node}" not in ended]

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

    def _sign(self, node: int) -> int | None:
        """Return the time of the last heartbeat of the agent of *node*, by its clock; None before it begins."""
        with suppress(OSError), open_regular(self.hold.run_dir.agent_log(self.hold.attempt, node)) as file:
            return os.fstat(file.fileno()).st_mtime_ns  # opened: a network file system answers a stat from its memory
        return None
