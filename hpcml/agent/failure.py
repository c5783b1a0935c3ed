"""Why a workload ended without success: judged from what is known of its end and the last output of its ranks."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

from hpcml.agent.assignment import Turn
from hpcml.agent.outcome import Outcome, how
from hpcml.model.failure_causes import Cause, classify, ended_because, last_exception, last_line
from hpcml.model.state import State

_TAIL_BYTES = 64 << 10
# Where ranks failed of different causes: one that broke off its connections may have made the others fail.
_RANKING = (
    *(Cause.GPU_FAULT, Cause.HOST_MEMORY, Cause.GPU_MEMORY, Cause.CONTAINER, Cause.PRECISION_MISMATCH, Cause.DISK),
    *(Cause.PROGRAM, Cause.UNKNOWN, Cause.COMMUNICATION),
)


def cause_of(outcome: Outcome, turn: Turn, attempt: int) -> Cause | None:
    """Return the cause of the end, or None for COMPLETED.

    Where ranks failed for different causes, the more specific one counts: a lost connection, for example, is usually
    the consequence of another rank's failure.
    """
    if outcome.state is State.COMPLETED:
        return None
    if outcome.was_refused:
        return Cause.SUBMISSION
    first = turn.node * turn.plan.processes_per_node
    causes = {
        classify(
            outcome.state,
            reason=outcome.reason,
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
                exit_code=outcome.exit_code,
                signal=outcome.signal,
                log_tail="",
            )
        }
    return min(causes, key=lambda cause: _RANKING.index(cause) if cause in _RANKING else -1)


def explained(outcome: Outcome, turn: Turn, attempt: int) -> Outcome:
    """Return *outcome* with what the program said of its failure in its reason; as it is, where it said nothing.

    A message of hpcml_client is the reason, of the first failed rank that printed one. Otherwise what follows it is of
    the rank that failed first, where that left by itself or aborted: the last exception that it printed, else its last
    line on standard error, or on standard output where it printed nothing there.
    """
    if outcome.state is not State.FAILED:
        return outcome
    first = turn.node * turn.plan.processes_per_node
    printed = [_last_words(turn, attempt, first + rank) for rank in outcome.failed_ranks]
    if said := next(filter(None, map(ended_because, printed)), None):
        return replace(outcome, reason=said)
    code = -signal.SIGABRT if outcome.signal == signal.SIGABRT else outcome.exit_code
    by_itself = code is not None and how(code) in (outcome.reason or "")
    if not (by_itself and printed):
        return outcome
    if exception := last_exception(printed[0]):
        told = f"last exception: {exception}"
    else:
        out, err = _tails(turn, attempt, first + outcome.failed_ranks[0])
        line = last_line(err) or last_line(out)
        if not line:
            return outcome
        told = f"last line: {line}"
    return replace(outcome, reason=f"{outcome.reason}; {told}")


def last_text(path: Path, most_bytes: int) -> str:
    """Return the end of the file *path* as text; "" where it cannot be read: the program may have removed it."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - most_bytes))
            return file.read(most_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def _last_words(turn: Turn, attempt: int, rank: int) -> str:
    return "\n".join(_tails(turn, attempt, rank))


def _tails(turn: Turn, attempt: int, rank: int) -> tuple[str, str]:
    """Return the ends of standard output and standard error."""
    out, err = (turn.run_dir.stdout(attempt, rank), turn.run_dir.stderr(attempt, rank))
    return last_text(out, _TAIL_BYTES), last_text(err, _TAIL_BYTES)
