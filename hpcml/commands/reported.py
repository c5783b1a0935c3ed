"""What a program has reported so far in its latest attempt: newest values, short curves, pace and time left."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpcml.model.live import Latest
from hpcml.model.records import Point
from hpcml.runs.journal import Event, Metrics

_KEPT = 120  # points of a curve
_PACE_S = 60.0  # the pace is that of the last minute


@dataclass(slots=True)
class Reported:
    """What the program has reported so far; the step, pace and curves are those of its latest attempt.

    The journals may be taken in any order; an attempt that is later than the latest so far clears what that had
    reported.
    """

    attempt: int = -1
    steps: int | None = None
    at: float | None = None  # unix seconds of the newest metrics
    _latest: dict[str, tuple[int, float, Latest]] = field(default_factory=dict)  # by metric: attempt, time, value
    _curves: defaultdict[str, deque[Point]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=_KEPT)))
    _progress: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=4096))  # when a step was new
    _is_counted: bool = True  # whether nobody said these steps: they number the values of a metric

    def take(self, attempt: int, t0: float, records: Sequence[Metrics | Event]) -> None:
        """Take *records* of one journal of *attempt*, whose times count from *t0* (unix seconds)."""
        for record in records:
            if isinstance(record, Event) and record.name != "training":
                continue
            if attempt > self.attempt:
                self.attempt = attempt
                self._progress.clear()
                self._is_counted = True
                self._curves.clear()
            if isinstance(record, Metrics):
                self._take_metrics(attempt, t0 + record.t_s, record)
            elif attempt == self.attempt and isinstance(record.details.get("steps"), int):
                self.steps = record.details["steps"]

    @property
    def step(self) -> int | None:
        """The last step of the latest attempt that reported any; None before the first."""
        return self._progress[-1][1] if self._progress else None

    @property
    def metrics(self) -> Mapping[str, Latest]:
        """The newest value of each metric; of an earlier attempt where the latest has not reported it yet."""
        return {name: latest for name, (_, _, latest) in self._latest.items()}

    @property
    def curves(self) -> Mapping[str, Sequence[Point]]:
        """The newest points of each metric in the latest attempt, 120 at most."""
        return {name: tuple(points) for name, points in self._curves.items()}

    def steps_per_s(self) -> float | None:
        """Return the pace of the last minute that was reported, or of the last two steps if they are longer apart.

        None before the second step, and where only values were counted that may be reported every hundred steps (a
        program that says which step will be its last one counts its steps by them).
        """
        if len(self._progress) < 2 or (self._is_counted and self.steps is None):
            return None
        last_at, last_step = self._progress[-1]
        since = next((entry for entry in self._progress if last_at - entry[0] <= _PACE_S), self._progress[-1])
        if since[1] == last_step:
            since = self._progress[-2]
        elapsed_s = last_at - since[0]
        return (last_step - since[1]) / elapsed_s if elapsed_s > 0 else None

    def left_s(self) -> float | None:
        """Return how many seconds the remaining steps take at that pace; None where it or their number is unknown."""
        pace, step = self.steps_per_s(), self.step
        if pace is None or step is None or self.steps is None or pace <= 0:
            return None
        return max(0, self.steps - step) / pace

    def _take_metrics(self, attempt: int, at: float, record: Metrics) -> None:
        self.at = at if self.at is None else max(self.at, at)
        for name, value in record.values.items():
            known = self._latest.get(name)
            if known is None or (attempt, at) >= known[:2]:
                self._latest[name] = (attempt, at, Latest(value=value, step=record.step))
            if attempt == self.attempt:
                self._curves[name].append(Point(record.step, at, value))
        if attempt != self.attempt or (record.is_counted and not self._is_counted):
            return
        if self._is_counted and not record.is_counted:
            self._is_counted = False
            self._progress.clear()
        if not self._progress or record.step > self._progress[-1][1]:
            self._progress.append((at, record.step))
