"""Watching runs through their own journals as these grow; neither the store nor a scheduler is asked.

A `Watcher` reads one run, for ``hpcml run``, ``logs -f``, ``top``, ``cancel`` and others.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcml.errors import HpcmlError
from hpcml.model.live import Latest
from hpcml.model.records import Point
from hpcml.model.state import State
from hpcml.runs.event_words import counted, left_words, paths_in, unread_words
from hpcml.runs.files import read_raw
from hpcml.runs.journal import USER, Event, Header, Metrics, parse_chunk, read_piece
from hpcml.runs.layout import RunDir, is_removed
from hpcml.runs.state import EventName, RunEvent, RunFold
from hpcml.store.journals import find_header

_CHUNK_BYTES = 4 << 20
_KEPT = 120  # points of a curve
_PACE_S = 60.0  # the pace is that of the last minute
_REQUEUE_S = 2.0  # between an agent's last word on an attempt and its first on the next


class EndOfAll:
    """Whether runs that are looked at again and again have all ended.

    After one that left at a checkpoint that is so two seconds later, since its agent may be queueing it again.
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def by(self, glimpses: Sequence[Glimpse]) -> bool:
        """Tell whether all have ended, by the latest *glimpses*."""
        if not all(glimpse.is_over for glimpse in glimpses):
            self._since = None
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return not any(glimpse.may_go_on for glimpse in glimpses) or now - self._since >= _REQUEUE_S


def look_unless_removed(watcher: Watcher) -> Glimpse:
    """Return what *watcher* sees; a run whose directory was removed is lost."""
    try:
        glimpse = watcher.look()
    except FileNotFoundError:
        glimpse = watcher.glimpse()
    folder = watcher.run_dir.path
    if glimpse.is_over or not watcher.has_read or not is_removed(str(folder)):
        return glimpse
    return replace(glimpse, state=State.LOST, is_settled=True, reason=why_removed(folder))


def why_removed(folder: os.PathLike[str] | str) -> str:
    """Return the reason of the end of a run whose directory, *folder*, was removed before the run had ended."""
    return f"{os.fspath(folder)} was removed while it ran, and with it what it had recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """How a run stands: `latest` has the last value of each metric, `reason` is that of its end, None for success."""

    uid: str
    state: State
    latest: dict[str, float]
    reason: str | None
    attempt: int = 0  # the latest that there is a journal of
    is_settled: bool = True  # False: ended by a signal from outside, and nobody has said why
    written: tuple[int, int] | None = None  # files that it left in its working directory, and their bytes
    touched: tuple[str, ...] = ()  # files and folders shared with other runs that changed while this one ran
    left_behind: str | None = None  # what was still at work when its program had ended, and was killed
    unread: tuple[str, ...] = ()  # what was not read of metrics that its program wrote or printed, where work counts
    may_go_on: bool = False  # it left at a checkpoint: its agent may be queueing it again right now

    @property
    def is_over(self) -> bool:
        """Whether the run has ended and it is known why."""
        return self.state.is_final and self.is_settled


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


@dataclass(slots=True)
class JournalReader:
    """Reads on in one journal that grows, from where it stopped in the last look."""

    path: Path
    header: Header
    offset: int = 0

    @classmethod
    def begin(cls, path: Path, uid: str) -> JournalReader | None:
        """Return the reader of the journal *path* of run *uid*; None where it has not begun yet, or is another run's.

        Raises `HpcmlError` where it cannot be read, as does `read`.
        """
        header = find_header(path, uid)
        return None if isinstance(header, str) else cls(path, header)

    def read(self) -> Iterator[Sequence[Metrics | Event]]:
        """Yield the records that are new since the last call, by pieces; a line that is being written waits."""
        while True:  # opened even if it has not grown: that is what makes an NFS client ask its server
            begin = self.offset
            data = read_piece(self.path, begin, _CHUNK_BYTES)
            chunk = parse_chunk(data, offset=begin, journal=self.header.journal)
            self.offset = chunk.end
            yield chunk.records
            if chunk.end == begin or len(data) < _CHUNK_BYTES:
                return


@dataclass(slots=True)
class Watcher:
    """Reads on in the journals of one run, from where it stopped in the last look."""

    run_dir: RunDir
    told: RunFold = field(default_factory=RunFold)
    reported: Reported = field(default_factory=Reported)
    _uid: str = field(init=False)  # which a folder that was copied need not be called
    _written: tuple[int, int] | None = None
    _touched: dict[str, None] = field(default_factory=dict)
    _left_behind: str | None = None
    _unread: dict[tuple[int, str], None] = field(default_factory=dict)  # by attempt
    telemetry_lost: dict[tuple[int, int], str] = field(default_factory=dict)  # why, by attempt and node
    _journals: dict[Path, JournalReader] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._uid = self.run_dir.uid
        with suppress(HpcmlError):  # it is not there (yet), or torn
            self._uid = str(read_raw(self.run_dir.manifest).get("uid") or self._uid)

    @property
    def has_read(self) -> bool:
        """Whether any journal was there."""
        return bool(self._journals)

    def look(self) -> Glimpse:
        """Read what is new in all journals and return what is known now.

        Raises `HpcmlError` where a journal cannot be read, and `FileNotFoundError` where the run is being removed.
        """
        try:
            for path in self.run_dir.journal_files():
                journal = self._journals.get(path) or JournalReader.begin(path, self._uid)
                if journal is not None:
                    self._journals[path] = journal
                    for records in journal.read():
                        self._take(journal.header, records)
        except HpcmlError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from None
            raise
        return self.glimpse()

    def _take(self, header: Header, records: Sequence[Metrics | Event]) -> None:
        """Take *records* of the journal that begins with *header* into account; those of users change no state."""
        self.told.begin(header.attempt, header.writer)
        self.reported.take(header.attempt, header.t0, records)
        for record in records:
            if isinstance(record, Event) and header.writer != USER:
                if record.name == EventName.FILES_WRITTEN:
                    self._written = counted(record.details)
                if record.name == EventName.SHARED_CHANGED:
                    self._touched |= dict.fromkeys(paths_in(record.details))
                if record.name == EventName.LEFT_BEHIND:
                    self._left_behind = left_words(record.details)
                if record.name == "telemetry_lost" and isinstance(node := record.details.get("node"), int):
                    self.telemetry_lost[header.attempt, node] = str(record.details.get("reason"))
                if record.name == EventName.METRICS_TROUBLE:
                    self._unread[header.attempt, unread_words(record.details)] = None
                self.told.take(RunEvent.of(record, header))

    def glimpse(self) -> Glimpse:
        """Return what follows from the records so far, without a look at the disk."""
        counting = self.told.counting() if self._unread else ()
        return Glimpse(
            uid=self.run_dir.uid,
            state=self.told.state,
            latest={name: latest.value for name, latest in self.reported.metrics.items()},
            reason=self.told.reason,
            attempt=self.told.attempt,
            is_settled=self.told.is_settled,
            written=self._written,
            touched=tuple(self._touched),
            left_behind=self._left_behind,
            unread=tuple(dict.fromkeys(words for attempt, words in self._unread if attempt in counting)),
            may_go_on=self.told.may_go_on,
        )
