"""Why a workload ended without success: judged from the last output of its ranks and the kernel's count of OOM kills.

`read_kills` reads how many processes of the agent's control group the kernel has killed for want of memory, before and
after the workload.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hpcml.agent.assignment import Turn
from hpcml.agent.outcome import Outcome
from hpcml.model.failure_causes import Cause, classify, ended_because
from hpcml.model.state import State

_TAIL_BYTES = 64 << 10
# Where ranks failed of different causes: one that broke off its connections may have made the others fail.
_RANKING = (
    *(Cause.GPU_FAULT, Cause.HOST_MEMORY, Cause.GPU_MEMORY, Cause.CONTAINER, Cause.PRECISION_MISMATCH, Cause.PROGRAM),
    *(Cause.UNKNOWN, Cause.COMMUNICATION),
)


def cause_of(outcome: Outcome, turn: Turn, attempt: int) -> Cause | None:
    """Return the cause of the end, or None for COMPLETED.

    Where ranks failed for different causes, the more specific one counts: a lost connection, for example, is usually
    the consequence of another rank's failure.
    """
    if outcome.state is State.COMPLETED:
        return None
    first = turn.node * turn.plan.processes_per_node
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
    """Return *outcome* with the message of hpcml_client as its reason, where the program ended with one, or without it.

    The first failed rank that printed such a message counts; without one, the outcome is returned as it is.
    """
    if outcome.state is not State.FAILED:
        return outcome
    first = turn.node * turn.plan.processes_per_node
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
