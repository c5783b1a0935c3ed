"""One attempt of one run on one node, from its start to its end (`carry_out`).

The agent (hpcml/agent/main) calls it for each run of its job. In order: the number of the attempt is claimed, its start
is written to the journal, and the sampler is started; the rest is the `course` of the attempt.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from hpcml.agent import fence
from hpcml.agent.assignment import Turn, job_of
from hpcml.agent.outcome import Ended
from hpcml.agent.signals import Inbox
from hpcml.agent.telemetry.control import SamplerHandle
from hpcml.runs.cancellation import is_cancelled
from hpcml.runs.liveness import ProcessIdentity
from hpcml.runs.state import EventName


def carry_out(turn: Turn, inbox: Inbox, environ: Mapping[str, str]) -> Ended:
    """Run the next attempt of the run of *turn* to its end, and journal everything about it.

    *inbox* holds the signals sent to the agent; *environ* is the environment of the job. A run that was cancelled
    before it started ends at once. Ended by a signal from outside (on a cluster), the attempt stays unsettled: the
    scheduler knows why.
    """
    hold = fence.enter(turn, environ, inbox)
    if isinstance(hold, fence.Left):
        sys.stderr.write(f"hpcml agent: run {turn.run_dir.uid} is left alone: {hold.reason}\n")
        return Ended(status=hold.status, interrupted=hold.interrupted)
    journal = turn.open_journal(hold.attempt)
    started = {
        **ProcessIdentity.of_this_process().as_details(),
        "walltime_s": turn.manifest.plan.walltime_s,
        "node": turn.node,
        "pack": turn.pack,
        "start": fence.JobStart.of(turn, environ).start,
        **job_of(turn, environ),
    }
    journal.event(EventName.ATTEMPT_STARTED, started)
    sampler = None if is_cancelled(turn.run_dir) else SamplerHandle.start(turn, hold.attempt, environ)
    from hpcml.agent import course  # noqa: PLC0415 - loaded while the sampler loads what it needs

    return course.go(turn, hold, inbox, environ, journal, sampler)
