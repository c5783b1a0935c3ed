"""The runs of a job, one turn after the other: each is claimed, its sampler started, and its attempt carried out.

``hpcml.agent.main`` starts this with its words: a run directory or a manifest in it, and nothing else is needed: no
Hydra, no database, no network. With ``--batch FILE`` the runs are those that FILE lists for this job's array index, one
after the other. The exit status is that of the workload, or 2 where the arguments or manifests cannot be used.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcml.agent import claim, history
from hpcml.agent.assignment import Turn, job_of, read_element, read_turn
from hpcml.agent.attempt import carry_out
from hpcml.agent.outcome import Ended
from hpcml.agent.signals import Inbox
from hpcml.agent.telemetry.control import SamplerHandle
from hpcml.errors import HpcmlError
from hpcml.model.state import State
from hpcml.runs.cancellation import is_cancelled
from hpcml.runs.liveness import ProcessIdentity
from hpcml.runs.state import EventName, read_fold
from hpcml_client.journal import JournalWriter

_USAGE = 2
_FIRST_OF_SEVERAL = "HPCML_MASTER_ADDR"  # set by the job scripts of several nodes alone


def take_turns(words: Sequence[str]) -> int:
    """Execute the runs that *words*, the arguments of the agent, name; return the exit status.

    Of several runs, the first that failed determines the status; one that was put back into the queue is no failure of
    a shared job. After a signal that asks to end, runs that have not started are left as they are. Arguments or
    manifests that cannot be used are reported on standard error, with status 2.
    """
    inbox = Inbox()
    with inbox.listening():
        try:
            element = read_element(words, os.environ)
        except (HpcmlError, OSError) as error:
            return _complain(error)
        status = 0
        for source in element.sources:
            ended = _run(source, element.pack, inbox, os.environ)
            status = _worse(status, ended, is_alone=element.pack is None)
            if ended.interrupted or (element.pack is not None and inbox.asks_to_end()):
                break  # what has not begun stays as it was: the scheduler's word decides
        return status


def _run(source: Path, pack: str | None, inbox: Inbox, environ: Mapping[str, str]) -> Ended:
    try:
        turn = read_turn(source, pack, environ)
        if _is_over(turn, environ):
            return Ended(status=0)
        return _carry_out(turn, inbox, environ)
    except (HpcmlError, OSError) as error:
        # On several nodes the others would wait for this one for ever: the job ends
        return Ended(status=_complain(error), interrupted=_FIRST_OF_SEVERAL in environ)


def _carry_out(turn: Turn, inbox: Inbox, environ: Mapping[str, str]) -> Ended:
    """Run the next attempt of the run of *turn* to its end, and journal everything about it.

    *inbox* holds the signals sent to the agent; *environ* is the environment of the job. A run that was cancelled
    before it started ends at once. Ended by a signal from outside (on a cluster), the attempt stays unsettled: the
    scheduler knows why.
    """
    hold = claim.enter(turn, environ, inbox)
    if isinstance(hold, claim.Left):
        sys.stderr.write(f"hpcml agent: run {turn.run_dir.uid} is left alone: {hold.reason}\n")
        return Ended(status=hold.status, interrupted=hold.interrupted)
    journal = turn.open_journal(hold.attempt)
    started = {
        **ProcessIdentity.of_this_process().as_details(),
        "walltime_s": turn.plan.walltime_s,
        "node": turn.node,
        "pack": turn.pack,
        "start": claim.JobStart.of(turn, environ).start,
        **job_of(turn, environ),
    }
    journal.event(EventName.ATTEMPT_STARTED, started)
    sampler = None if is_cancelled(turn.run_dir) else SamplerHandle.start(turn, hold.attempt, environ)
    try:
        return carry_out(turn, hold, inbox, environ, journal, sampler)
    except (HpcmlError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - the program is dead by now, and the run would be lost
        traceback.print_exc()
        _tell_own_error(turn, hold.attempt, error, journal)
        return Ended(status=_USAGE, interrupted=_FIRST_OF_SEVERAL in environ)


def _tell_own_error(turn: Turn, attempt: int, error: Exception, journal: JournalWriter) -> None:
    """Journal that the attempt ended by an *error* of hpcml, unless its end has been told."""
    if not any(one.number == attempt and one.has_ended for one in read_fold(turn.run_dir)):
        reason = " ".join(f"hpcml's own error: {type(error).__name__}: {error}".split())
        journal.event(EventName.ATTEMPT_ENDED, {"state": State.FAILED.value, "reason": reason, "cause": "unknown"})
    journal.close()


def _is_over(turn: Turn, environ: Mapping[str, str]) -> bool:
    """Tell whether a job that was started again has finished this run before; a slow node has its part still to do."""
    if turn.pack is None or not history.is_over(turn.run_dir, turn.pack, comes_back=turn.is_local):
        return False
    return turn.node == 0 or not claim.is_awaited(turn, environ)


def _worse(status: int, ended: Ended, *, is_alone: bool) -> int:
    """Return the exit status after one more run: the first that is no success stands for all that share the job."""
    if ended.waits and not is_alone:
        return status  # it goes on by itself, and is no failure of this job
    return status or ended.status


def _complain(error: Exception) -> int:
    sys.stderr.write(f"hpcml agent: {error}\n")
    return _USAGE
