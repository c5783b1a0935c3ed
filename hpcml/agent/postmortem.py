"""Why a workload ended without success: its ranks' last words and the kernel's counts, turned into a cause."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

from hpcml.agent.memory_kills import MemoryKills
from hpcml.agent.outcome import Outcome
from hpcml.agent.turn import Turn
from hpcml.causes import Cause, classify, ended_because
from hpcml.states import State

_TAIL_BYTES = 64 << 10
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # the second by a shell or a container, which outlives its program
# Where ranks failed of different causes: one that broke off its connections may have made the others fail.
_RANKING = (
    *(Cause.GPU_FAULT, Cause.HOST_MEMORY, Cause.GPU_MEMORY, Cause.CONTAINER, Cause.PRECISION_MISMATCH, Cause.PROGRAM),
    *(Cause.UNKNOWN, Cause.COMMUNICATION),
)


def out_of_memory(outcome: Outcome, before: MemoryKills, after: MemoryKills) -> Outcome:
    """Return the outcome with the state OUT_OF_MEMORY if the kernel killed for it, as Slurm would call it too."""
    if outcome.state is not State.FAILED or not after.rose_since(before):
        return outcome
    # A group that is not the job's alone counts what others did as well: there it takes a rank that was killed.
    if not after.is_of_job and not any(code in _KILLED for code in outcome.codes):
        return outcome
    return replace(outcome, state=State.OUT_OF_MEMORY, reason=f"out of memory: {outcome.reason}")


def cause_of(outcome: Outcome, turn: Turn, attempt: int) -> Cause | None:
    """Return the cause, or None for a success."""
    if outcome.state is State.COMPLETED:
        return None
    first = turn.node * turn.manifest.plan.processes_per_node
    causes = {
        classify(
            outcome.state,
            reason=outcome.reason,
            raw=None,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            log_tail=_last_words(turn, attempt, first + rank),
        )
        for rank, code in ((rank, outcome.codes[rank]) for rank in outcome.failed_ranks)
    }
    if not causes:  # no rank was started, or none failed
        causes = {
            classify(
                outcome.state,
                reason=outcome.reason,
                raw=None,
                exit_code=outcome.exit_code,
                signal=outcome.signal,
                log_tail="",
            )
        }
    return min(causes, key=lambda cause: _RANKING.index(cause) if cause in _RANKING else -1)


def explained(outcome: Outcome, turn: Turn, attempt: int) -> Outcome:
    """Return the outcome with the program's own words as its reason where they say more than its exit status."""
    if outcome.state is not State.FAILED:
        return outcome
    first = turn.node * turn.manifest.plan.processes_per_node
    words = (ended_because(_last_words(turn, attempt, first + rank)) for rank in outcome.failed_ranks)
    return replace(outcome, reason=next((said for said in words if said is not None), outcome.reason))


def _last_words(turn: Turn, attempt: int, rank: int) -> str:
    return "\n".join(_tail(path) for path in (turn.run_dir.stdout(attempt, rank), turn.run_dir.stderr(attempt, rank)))


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:  # the program may have removed it
        return ""
