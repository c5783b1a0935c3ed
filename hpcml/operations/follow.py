"""Submitted runs watched through their journals, and ended on request; no scheduler is asked."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.journal import Event, Metrics, events, parse_chunk, read_journal
from hpcml.operations.collect import is_alive, is_here
from hpcml.rundir import RunDir
from hpcml.schedulers.local import is_queue_alive
from hpcml.schedulers.submitter import Ticket
from hpcml.states import DECISIVE, State, state_after

_CHUNK_BYTES = 4 << 20
_LAST_WORDS_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """How far a run is. `step` is the last one reported, None before the first; `latest` the last value by metric."""

    uid: str
    state: State
    step: int | None
    latest: dict[str, float]
    reason: str | None


@dataclass(slots=True)
class Watcher:
    """Reads on in the journals of one run; asks the disk for nothing that was read before."""

    run_dir: RunDir
    _decided: tuple[int, int] = (-1, 0)  # attempt and weight of the event that decided the state
    _state: State = State.PENDING
    _step: int | None = None
    _latest: dict[str, float] = field(default_factory=dict)
    _reason: str | None = None
    _offsets: dict[Path, int] = field(default_factory=dict)

    def look(self) -> Glimpse:
        """Return what is known now."""
        for path in self.run_dir.journal_files():
            offset = self._offsets.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                chunk = parse_chunk(file.read(_CHUNK_BYTES), offset=offset)
            self._offsets[path] = chunk.end
            attempt = int(path.name.partition("-")[0])
            for record in chunk.records:
                self._note(record, attempt)
        return Glimpse(
            uid=self.run_dir.uid, state=self._state, step=self._step, latest=dict(self._latest), reason=self._reason
        )

    def _note(self, record: Metrics | Event, attempt: int) -> None:
        if isinstance(record, Metrics):
            self._step = record.step if self._step is None else max(self._step, record.step)
            self._latest |= record.values
        elif record.name in DECISIVE and (attempt, DECISIVE[record.name]) > self._decided:
            self._decided = (attempt, DECISIVE[record.name])
            self._state = state_after(record.name, record.details)
            self._reason = record.details.get("reason")


def follow(run_dirs: Sequence[RunDir], *, period_s: float, is_tended: Callable[[], bool]) -> Iterator[list[Glimpse]]:
    """Yield a glimpse of every run once a period, until all have ended or nobody tends the rest any more."""
    watchers = [Watcher(run_dir) for run_dir in run_dirs]
    while True:
        tended = is_tended()  # asked first: what is written before the queue ends is seen by the look that follows
        glimpses = [watcher.look() for watcher in watchers]
        yield glimpses
        if all(glimpse.state.is_final for glimpse in glimpses):
            return
        if not tended and not any(glimpse.state is State.RUNNING for glimpse in glimpses):
            return
        time.sleep(period_s)


def cancel(run_dir: RunDir) -> bool:
    """Ask a run to stop, whether it runs or waits; return False if it had ended already.

    The mark comes first: a queue or an agent that is just starting the run sees it. An agent that runs on this
    machine is told by SIGTERM, passes it on and kills what is left after the run's grace; one on a node of a cluster
    is told by its scheduler.
    """
    if Watcher(run_dir).look().state.is_final:
        return False
    run_dir.cancel_mark.touch()
    for path in run_dir.journal_files():
        for started in events([read_journal(path)], "attempt_started"):
            if is_here(started) and is_alive(started):
                os.kill(int(started.details["pid"]), signal.SIGTERM)
    return True


def is_tended(tickets: Sequence[Ticket]) -> bool:
    """Tell whether the queue of any of *tickets* is still there to start what waits."""
    return any(is_queue_alive(job_id) for job_id in {ticket.job_id for ticket in tickets})


def last_words(run_dir: RunDir, *, lines: int = 3) -> list[str]:
    """Return the end of what the last attempt printed to standard error: usually the reason of a failure."""
    for path in sorted(run_dir.logs.glob("*-rank*.err"), reverse=True):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LAST_WORDS_BYTES))
            said = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        if said:
            return ["".join(c if c.isprintable() else "?" for c in line) for line in said[-lines:]]
    return []
