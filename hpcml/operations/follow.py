"""Submitted runs watched through their journals, and ended on request; no scheduler is asked."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from hpcml.journal import events, read_journal
from hpcml.operations.tending import is_alive, is_here
from hpcml.operations.watcher import Glimpse, Watcher
from hpcml.rundir import RunDir
from hpcml.schedulers.local import is_queue_alive
from hpcml.schedulers.submitter import Ticket
from hpcml.states import State
from hpcml_client.journal import JournalWriter

_REQUEUE_S = 2.0  # between an agent's last word on an attempt and its first on the next


def follow(run_dirs: Sequence[RunDir], *, period_s: float, is_tended: Callable[[], bool]) -> Iterator[list[Glimpse]]:
    """Yield a glimpse of every run once a period, until all have ended or nobody tends the rest any more."""
    watchers = [Watcher(run_dir) for run_dir in run_dirs]
    over_since: float | None = None
    while True:
        tended = is_tended()  # asked first: what is written before the queue ends is seen by the look that follows
        glimpses = [watcher.look() for watcher in watchers]
        yield glimpses
        if all(glimpse.is_over for glimpse in glimpses):
            now = time.monotonic()
            over_since = now if over_since is None else over_since
            if not any(glimpse.may_go_on for glimpse in glimpses) or now - over_since >= _REQUEUE_S:
                return
        else:
            over_since = None
            if not tended and not any(glimpse.state is State.RUNNING for glimpse in glimpses):
                return
        time.sleep(period_s)


def cancel(run_dir: RunDir, *, is_local: bool = True, is_shared: bool = False) -> bool:
    """Ask a run to stop, whether it runs or waits; return False if it had ended already.

    The mark comes first: a queue or an agent that is just starting the run sees it, and the agent of a job that is
    shared looks for it every few seconds. Else an agent that runs on this machine is told by SIGTERM, passes it on and
    kills what is left after the run's grace; one on a node of a cluster is told by its scheduler. A run that waits in
    a queue of this machine will be passed over, so it has ended.
    """
    seen = Watcher(run_dir).look()
    if seen.is_over:
        return False
    run_dir.cancel_mark.touch()
    if is_shared:
        return True
    told = False
    for path in run_dir.journal_files():
        for started in events([read_journal(path)], "attempt_started"):
            if is_here(started) and is_alive(started):
                os.kill(int(started.details["pid"]), signal.SIGTERM)
                told = True
    if is_local and not told and seen.state is State.PENDING:
        with JournalWriter.open(
            str(run_dir.journals), run=run_dir.uid, attempt=seen.attempt, writer="cancel"
        ) as journal:
            journal.event("cancelled", {"reason": "cancelled before it started"})
    return True


def is_tended(tickets: Sequence[Ticket]) -> bool:
    """Tell whether the queue of any of *tickets* is still there to start what waits."""
    return any(is_queue_alive(job_id) for job_id in {ticket.job_id for ticket in tickets})
