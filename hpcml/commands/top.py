"""The live state of runs, read from the files that they write, for ``hpcml run``, ``top`` and ``watch``."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcml.commands.collect import collect, opened
from hpcml.commands.follow import EndOfAll, Glimpse, JournalReader, Watcher, look_unless_removed
from hpcml.commands.selection import Selection, select
from hpcml.errors import HpcmlError
from hpcml.model.live import GpuNow, NodeNow, RunNow
from hpcml.model.records import Point, spell_job
from hpcml.model.running_total import TotalReading, growth_between
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.files import read_raw
from hpcml.runs.journal import Event, Metrics, parse_chunk, read_piece
from hpcml.runs.layout import RunDir, home_of
from hpcml.schedulers.contract import Ticket
from hpcml.schedulers.local.waiting import why_waiting

_EDGE_BYTES = 64 << 10  # what telemetry is about stands in its first lines; ten samples of eight GPUs take 50 KiB
_SILENT_S = 60.0  # a run that writes nothing for so long, nor for ten intervals, may have died with its agent
_KEPT = 120  # samples of a curve
_RATE_S = 0.9  # what CPU time is averaged over at least: ticks of 10 ms that lie close together tell no rate
_COUNTED, _SAMPLED = "throttle_", "throttled_"
_OF_FIELDS = ("energy_j", "power_w")  # come with the counters: a sample with one of them is news of throttling


def find_runs(places: Places, selection: Selection) -> list[RunDir]:
    """Return the selected runs; of an empty selection those that run, and behind them those that wait."""
    if selection.is_empty:
        selection = Selection(states=[State.RUNNING.name, State.PENDING.name])
    with opened(places) as store:
        collect(store, places)
        found = select(store, selection)
    if not selection.references:
        found = sorted(found, key=lambda record: record.state is State.PENDING)
    return [RunDir(Path(record.path)) for record in found]


@dataclass(slots=True)
class RunTop:
    """One run that is looked at again and again: its journals and its telemetry.

    Of long telemetry both ends are read at first, then what is added. Neither the store nor a scheduler is asked.
    """

    run_dir: RunDir
    _watcher: Watcher = field(init=False)
    _spec: Mapping[str, Any] = field(default_factory=dict)
    _telemetry: dict[Path, tuple[JournalReader, Sampled]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._watcher = Watcher(self.run_dir)
        with suppress(HpcmlError):  # the run is being removed
            self._spec = read_raw(self.run_dir.manifest).get("run") or {}

    def look(self, now: float) -> tuple[RunNow, Glimpse]:
        """Read what is new and return the run at *now* (unix seconds), with the glimpse that its end is judged by."""
        seen = look_unless_removed(self._watcher)
        with suppress(HpcmlError, FileNotFoundError):  # the run is being removed
            for path in sorted(self.run_dir.telemetry.glob("*.jsonl")):
                self._follow_samples(path)
        nodes = self._nodes(seen.attempt)
        run = self._run(seen, nodes)
        return replace(run, notes=self._notes(run, now)), seen

    def _follow_samples(self, path: Path) -> None:
        if path not in self._telemetry:
            reader = JournalReader.begin(path, self.run_dir.uid)
            if reader is None:
                return
            header = reader.header
            node = header.writer.removeprefix("node")
            sampled = Sampled(
                node=int(node) if node.isdecimal() else 0, host=header.host, t0=header.t0, attempt=header.attempt
            )
            if (size := path.stat().st_size) > 2 * _EDGE_BYTES:
                head = read_piece(path, 0, _EDGE_BYTES)
                sampled.take(parse_chunk(head, offset=0, journal=header.journal).records)
                reader.offset = size - _EDGE_BYTES  # in a line, which is passed over as one that is damaged is
            self._telemetry[path] = reader, sampled
        reader, sampled = self._telemetry[path]
        for records in reader.read():
            sampled.take(records)

    def _nodes(self, attempt: int) -> list[NodeNow]:
        """Return the nodes of *attempt*; of two samplers of one node the one that began last counts."""
        latest: dict[int, Sampled] = {}
        for _, sampled in self._telemetry.values():
            if sampled.attempt != attempt:
                continue
            known = latest.get(sampled.node)
            if known is None or sampled.t0 >= known.t0:
                latest[sampled.node] = sampled
        for node, sampled in latest.items():
            sampled.ended = self._watcher.telemetry_lost.get((attempt, node)) or sampled.ended
        return [latest[node].now() for node in sorted(latest)]

    def _run(self, seen: Glimpse, nodes: Sequence[NodeNow]) -> RunNow:
        reported = self._watcher.reported
        told = self._watcher.told.deciding
        began_ms, ended_ms = (told.began_ms, told.ended_ms) if told is not None else (None, None)
        goes_on = seen.state is State.RUNNING and reported.attempt == seen.attempt
        return RunNow(
            uid=self.run_dir.uid,
            experiment=str(self._spec.get("experiment") or self.run_dir.path.parent.name),
            name=self._spec.get("name") or (self._spec.get("model") or {}).get("name"),
            state=seen.state,
            is_settled=seen.is_settled,
            attempt=seen.attempt,
            reason=seen.reason,
            job=self._job_words(),
            started_at=None if began_ms is None else began_ms / 1000,
            ended_at=None if ended_ms is None or not seen.state.is_final else ended_ms / 1000,
            step=reported.step,
            steps=reported.steps,
            steps_per_s=reported.steps_per_s(),
            left_s=reported.left_s() if goes_on else None,
            objective=(self._spec.get("objective") or {}).get("metric"),
            metrics=dict(reported.metrics),
            metrics_at=reported.at,
            curves=dict(reported.curves),
            nodes=tuple(nodes),
        )

    def _job_words(self) -> str | None:
        told = self._watcher.told
        if told.job is None:
            return None
        return f"{told.scheduler or 'job'} {spell_job(told.job.job_id, told.job.array_index)}"

    @property
    def submissions(self) -> Path:
        """The folder of the queues of the home that the run lies in."""
        return Places(home=home_of(self.run_dir.manifest), store_url="").submissions

    @property
    def local_ticket(self) -> Ticket | None:
        """What this machine's queue calls its job; None for a job of another scheduler, or before it is known."""
        told = self._watcher.told
        if told.job is None or told.scheduler != "local":
            return None
        return Ticket(scheduler="local", job_id=told.job.job_id, array_index=told.job.array_index)

    def _notes(self, run: RunNow, now: float) -> list[str]:
        if not self.run_dir.path.is_dir():
            return [f"{self.run_dir.path} is gone: the run was removed"]
        notes = []
        if run.state is State.PENDING:
            notes.append(_waiting_note(run))
        is_sampled = (self._spec.get("telemetry") or {}).get("enabled", True)
        if not is_sampled:
            notes.append("telemetry is off (telemetry.enabled=false): there are no samples")
        elif run.state is not State.PENDING and not any(node.sampled_at for node in run.nodes):
            notes.append("no samples were taken" if run.state.is_final else "no samples yet")
        if run.state is State.RUNNING:
            newest = [run.started_at, run.metrics_at, *(node.sampled_at for node in run.nodes)]
            intervals_s = [node.interval_s or 0.0 for node in run.nodes]
            silent_s = now - max((at for at in newest if at is not None), default=now)
            if silent_s > max([_SILENT_S, *(10 * interval_s for interval_s in intervals_s)]):
                notes.append("nothing has been written for so long: hpcml status finds out whether it still runs")
        return notes


def look_once(run_dirs: Sequence[RunDir]) -> list[RunNow]:
    """Return the present state of the runs, in order; for ``hpcml top --once`` and ``--json``."""
    return [run for run, _ in _look_at([RunTop(run_dir) for run_dir in run_dirs])]


def _look_at(tops: Sequence[RunTop]) -> list[tuple[RunNow, Glimpse]]:
    """Look at all of *tops*; those that wait on this machine say for which cores and GPUs, and who holds them."""
    looks = [top.look(time.time()) for top in tops]
    by_queue: dict[Path, dict[str, Ticket]] = {}
    for top, (run, _) in zip(tops, looks, strict=True):
        if run.state is State.PENDING and (ticket := top.local_ticket) is not None:
            by_queue.setdefault(top.submissions, {})[run.uid] = ticket
    lacks: dict[str, str] = {}
    for submissions, tickets in by_queue.items():
        found = why_waiting(submissions, list(tickets.values()))
        lacks |= {uid: found[ticket] for uid, ticket in tickets.items() if ticket in found}
    return [(_told_what_for(run, lacks[run.uid]) if run.uid in lacks else run, seen) for run, seen in looks]


def _told_what_for(run: RunNow, lacks: str) -> RunNow:
    return replace(run, notes=[f"waiting for {lacks}" if note == _waiting_note(run) else note for note in run.notes])


def _waiting_note(run: RunNow) -> str:
    return f"waits in the queue{f' as {run.job}' if run.job else ''}: hpcml status asks what for"


def follow(
    run_dirs: Sequence[RunDir], *, period_s: float, is_supervised: Callable[[], bool] = lambda: True
) -> Iterator[list[tuple[RunNow, Glimpse]]]:
    """Yield the state of the runs once in *period_s* seconds, in the order of *run_dirs*.

    It ends when all have ended, or when *is_supervised* (asked each time) says that no queue is left to start those
    that wait. A run that left at a checkpoint is followed for two more seconds, since its agent may be queueing it
    again. One whose directory was removed meanwhile is lost.
    """
    tops = [RunTop(run_dir) for run_dir in run_dirs]
    has_ended = EndOfAll()
    while True:
        supervised = is_supervised()  # asked first: what is written before the queue ends is seen by the look below
        looks = _look_at(tops)
        yield looks
        if has_ended.by([seen for _, seen in looks]):
            return
        is_any_open = any(not seen.is_over for _, seen in looks)
        if is_any_open and not supervised and not any(seen.state is State.RUNNING for _, seen in looks):
            return
        time.sleep(period_s)


# One node, from the records of its sampler.


@dataclass(slots=True)
class _Gpu:
    """The newest values of one GPU, the first ones (for differences of counters), and two short curves."""

    about: Mapping[str, Any] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    throttled: tuple[str, ...] = ()
    xids: list[int] = field(default_factory=list)
    lost: str | None = None
    sampled_at: float | None = None  # unix seconds
    util: deque[Point] = field(default_factory=lambda: deque(maxlen=_KEPT))
    power: deque[Point] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def take(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Take the values of one sample; *at* is unix seconds.

        A reason for throttling holds if its counter has risen since the sample before, or if it is set in this one.
        """
        rose = [
            name.removeprefix(_COUNTED).removesuffix("_s")
            for name, value in values.items()
            if name.startswith(_COUNTED) and value > self.values.get(name, value)
        ]
        holds = [
            name.removeprefix(_SAMPLED).removesuffix("_percent")
            for name, value in values.items()
            if name.startswith(_SAMPLED) and value > 0
        ]
        if rose or holds or any(name in values for name in _OF_FIELDS):
            self.throttled = tuple(sorted({*rose, *holds}))
        self.values |= values
        self.first = {**values, **self.first}
        self.sampled_at = at
        for curve, name in ((self.util, "util_percent"), (self.power, "power_w")):
            if name in values:
                curve.append(Point(step, at, values[name]))

    def energy_j(self) -> float | None:
        """Return the energy since sampling began: by the counter, or the integral where that fell or is not there."""
        for name in ("energy_j", "power_integral_j"):
            if name in self.values and self.values[name] >= self.first[name]:
                return self.values[name] - self.first[name]
        return None


@dataclass(slots=True)
class Sampled:
    """The state of one node, built from the records of its sampler; *t0* is the unix time of their second 0."""

    node: int
    host: str
    t0: float
    attempt: int = 0
    ended: str | None = None
    _about: Mapping[str, Any] = field(default_factory=dict)
    _gpus: defaultdict[str, _Gpu] = field(default_factory=lambda: defaultdict(_Gpu))
    _host: dict[str, float] = field(default_factory=dict)
    _cpu: deque[TotalReading] = field(default_factory=deque)  # CPU seconds, as far back as the rate goes
    _sampled_at: float | None = None
    _missed: int = 0

    def take(self, records: Sequence[Metrics | Event]) -> None:
        """Take more records, in the order in which the sampler wrote them; gaps between them are allowed."""
        for record in records:
            if isinstance(record, Metrics):
                self._take_sample(record)
            elif record.name == "devices":
                self._about = record.details
                for about in record.details.get("gpus", ()):
                    self._gpus[str(about["gpu"])].about = about
            elif record.name == "xid":
                self._gpus[str(record.details.get("gpu"))].xids.append(int(record.details["code"]))
            elif record.name == "gpu_lost":
                self._gpus[str(record.details.get("gpu"))].lost = str(record.details.get("reason"))
            elif record.name == "sampler_ended":
                self.ended = "sampling has ended"

    def now(self) -> NodeNow:
        """Return the node as the records so far describe it; what they did not say is None.

        `cores_busy` is the CPU time of the last second, or between the last two readings if they are longer apart.
        """
        cpu = growth_between(self._cpu[0], self._cpu[-1], -math.inf, math.inf) if self._cpu else None
        return NodeNow(
            node=self.node,
            host=self.host,
            gpus=[self._gpu_now(name) for name in sorted(self._gpus, key=_number)],
            cores_busy=None if cpu is None else cpu.rate,
            memory_mb=self._host.get("memory_mb"),
            load1=self._host.get("load1"),
            sampled_at=self._sampled_at,
            interval_s=self._about.get("interval_s"),
            missed_ticks=self._missed,
            ended=self.ended,
            doubt=self._about.get("mapping_reason"),
        )

    def _take_sample(self, record: Metrics) -> None:
        of: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for name, value in record.values.items():
            owner, _, what = name.partition(".")
            of[owner][what] = value
        for owner, values in of.items():
            if owner.startswith("gpu"):
                self._gpus[owner].take(record.step, self.t0 + record.t_s, values)
        host = of["host"]
        self._host |= host
        if "cpu_s" in host and "at_s" in host:
            self._cpu.append(TotalReading(host["at_s"], host["cpu_s"]))
            while len(self._cpu) > 2 and self._cpu[-1].at_s - self._cpu[1].at_s >= _RATE_S:
                self._cpu.popleft()
        self._sampled_at = self.t0 + record.t_s
        self._missed = int(of["sampler"].get("missed_ticks", 0))

    def _gpu_now(self, name: str) -> GpuNow:
        gpu = self._gpus[name]
        return GpuNow(
            gpu=name,
            uuid=gpu.about.get("uuid"),
            model=gpu.about.get("model"),
            scope=gpu.about.get("scope"),
            values={key: value for key, value in gpu.values.items() if key != "at_s"},
            memory_total_mb=gpu.about.get("memory_total_mb"),
            power_limit_w=gpu.about.get("power_limit_w"),
            max_sm_mhz=gpu.about.get("max_sm_mhz"),
            throttled=gpu.throttled,
            energy_j=gpu.energy_j(),
            xids=tuple(gpu.xids),
            lost=gpu.lost,
            sampled_at=gpu.sampled_at,
            util_percent=tuple(gpu.util),
            power_w=tuple(gpu.power),
        )


def _number(name: str) -> tuple[int, str]:
    digits = name.removeprefix("gpu")
    return (int(digits) if digits.isdecimal() else -1), name
