"""One run seen through its own journals, read on as they grow; neither the store nor a scheduler is asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.journal import Event, Metrics, parse_chunk
from hpcml.rundir import RunDir
from hpcml.states import DECISIVE, UNSETTLED, State, state_after

_CHUNK_BYTES = 4 << 20
_HELPER = re.compile(r"-agent\d+(-\d+)?\.jsonl$")  # the agent of another node than the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """How far a run is. `step` is the last one reported, None before the first; `latest` the last value by metric."""

    uid: str
    state: State
    step: int | None
    latest: dict[str, float]
    reason: str | None
    attempt: int = 0  # the one that decided the state
    is_settled: bool = True  # False: ended by a signal from outside, and nobody has said why
    may_go_on: bool = False  # it left at a checkpoint: its agent may be queueing it again right now

    @property
    def is_over(self) -> bool:
        """Whether the run has ended and it is known why."""
        return self.state.is_final and self.is_settled


@dataclass(slots=True)
class Watcher:
    """Reads on in the journals of one run; asks the disk for nothing that was read before."""

    run_dir: RunDir
    _decided: tuple[int, int] = (-1, -1)  # attempt and weight of the event that decided the state
    _state: State = State.PENDING
    _is_settled: bool = True
    _may_go_on: bool = False
    _step: int | None = None
    _latest: dict[str, float] = field(default_factory=dict)
    _reason: str | None = None
    _offsets: dict[Path, int] = field(default_factory=dict)

    def look(self) -> Glimpse:
        """Return what is known now."""
        for path in self.run_dir.journal_files():
            offset = self._offsets.get(path, 0)
            with path.open("rb") as file:  # opened even if it has not grown: that is what makes NFS ask its server
                file.seek(offset)
                chunk = parse_chunk(file.read(_CHUNK_BYTES), offset=offset)
            self._offsets[path] = chunk.end
            self.take(path, chunk.records)
        return self.glimpse()

    def take(self, path: Path, records: Sequence[Metrics | Event]) -> None:
        """Take note of *records* of the journal *path*, which somebody else has read."""
        attempt = int(path.name.partition("-")[0])
        is_helpers = _HELPER.search(path.name) is not None
        for record in records:
            self._note(record, attempt, is_helpers=is_helpers)

    def glimpse(self) -> Glimpse:
        """Return what follows from all that was taken note of."""
        return Glimpse(
            uid=self.run_dir.uid,
            state=self._state,
            step=self._step,
            latest=dict(self._latest),
            reason=self._reason,
            attempt=max(0, self._decided[0]),
            is_settled=self._is_settled,
            may_go_on=self._may_go_on,
        )

    def _note(self, record: Metrics | Event, attempt: int, *, is_helpers: bool) -> None:
        if isinstance(record, Metrics):
            self._step = record.step if self._step is None else max(self._step, record.step)
            self._latest |= record.values
        elif record.name in DECISIVE and (attempt, DECISIVE[record.name]) > self._decided:
            state = state_after(record.name, record.details)
            if is_helpers and state in (State.RUNNING, State.COMPLETED):
                return  # that all is well is the first node's to say
            self._decided = (attempt, DECISIVE[record.name])
            self._state = state
            self._is_settled = record.name != UNSETTLED
            self._may_go_on = record.name == "attempt_ended" and record.details.get("checkpointed") is True
            self._reason = record.details.get("reason")
