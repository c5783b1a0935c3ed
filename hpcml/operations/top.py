"""Runs looked at while they go, through the files that they write: no scheduler, no store and no node is asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcml.errors import ConfigError, HpcmlError
from hpcml.journal import Event, Header, Metrics
from hpcml.live import NodeNow, RunNow
from hpcml.manifest import read_raw
from hpcml.operations import elsewhere
from hpcml.operations.reported import Reported
from hpcml.operations.sampled import Sampled
from hpcml.operations.tail import Tail
from hpcml.operations.watcher import Glimpse, Watcher
from hpcml.places import Places
from hpcml.rundir import RunDir, find_run_dirs
from hpcml.states import State

_REQUEUE_S = 2.0  # between an agent's last word on an attempt and its first on the next
_SHORTEST_END = 4  # characters of an id, as everywhere
_SHOWN = 5
_SILENT_S = 60.0  # a run that writes nothing for so long, nor for ten intervals, may have died with its agent


def find_runs(places: Places, references: Sequence[str], submission: str | None = None) -> list[RunDir]:
    """Return the runs that *references* mean, each once: ids, ends of ids, names, run directories; and a submission's.

    The files are looked through, since the store may be older than they are.
    """
    by_uid: dict[str, RunDir] = {}
    for root in elsewhere.roots(places):
        for run_dir in find_run_dirs(root):
            by_uid.setdefault(run_dir.uid, run_dir)
    found = [_find(word, by_uid, places) for word in references]
    if submission is not None:
        members = [one for one in by_uid.values() if _said_of(one, "provenance").get("submission") == submission]
        if not members:
            raise ConfigError(f"--submission {submission}: no run below {places.runs} was submitted so")
        found += members
    return list({run_dir.path.resolve(): run_dir for run_dir in found}.values())


def _find(word: str, by_uid: Mapping[str, RunDir], places: Places) -> RunDir:
    if word in by_uid:
        return by_uid[word]
    if "/" in word and (Path(word) / "run.json").is_file():
        return RunDir(Path(word).absolute())
    end = word.casefold() if len(word) >= _SHORTEST_END else "\0"
    ends = [one for uid, one in by_uid.items() if uid.casefold().startswith(end) or uid.casefold().endswith(end)]
    if len(ends) == 1:
        return ends[0]
    named = [one for one in by_uid.values() if _said_of(one, "run").get("name") == word]  # last: this reads every run
    if len(named) == 1:
        return named[0]
    if named or ends:
        uids = [one.uid for one in named or ends]
        shown = ", ".join(uids[:_SHOWN]) + (", ..." if len(uids) > _SHOWN else "")
        raise ConfigError(f"{word!r} means {len(uids)} runs: {shown}; give more of the uid, or all of them")
    raise ConfigError(f"no run below {places.runs} is called {word!r}: hpcml runs lists them")


def _said_of(run_dir: RunDir, what: str) -> Mapping[str, Any]:
    """Return a part of run.json; empty where that cannot be read, as of a run that is just being removed."""
    try:
        found = read_raw(run_dir.manifest).get(what)
    except HpcmlError:
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(slots=True)
class RunTop:
    """One run, looked at again and again: of its files both ends are read at first, then what is added."""

    run_dir: RunDir
    _spec: Mapping[str, Any] = field(default_factory=dict)
    _watcher: Watcher = field(init=False)
    _journals: dict[Path, Tail] = field(default_factory=dict)
    _telemetry: dict[Path, tuple[Tail, Sampled | None]] = field(default_factory=dict)
    _reported: Reported = field(default_factory=Reported)
    _started: tuple[int, float] | None = None  # attempt, unix seconds
    _ended: tuple[int, float] | None = None
    _job: Mapping[str, Any] = field(default_factory=dict)
    _troubles: dict[tuple[int, int], str] = field(default_factory=dict)  # of a sampler, by attempt and node

    def __post_init__(self) -> None:
        self._spec = read_raw(self.run_dir.manifest).get("run") or {}
        self._watcher = Watcher(self.run_dir)

    def look(self, now: float) -> tuple[RunNow, Glimpse]:
        """Return what is known at *now*, in unix seconds."""
        for path in self.run_dir.journal_files():
            tail = self._journals.setdefault(path, Tail(path))
            records = tail.read()
            self._watcher.take(path, records)
            if tail.header is not None:
                self._take(tail.header, records)
        for path in sorted(self.run_dir.telemetry.glob("*.jsonl")):
            self._follow_samples(path)
        seen = self._watcher.glimpse()
        nodes = self._nodes(seen.attempt)
        run = self._run(seen, nodes)
        return replace(run, notes=self._notes(run, now)), seen

    def _take(self, header: Header, records: Sequence[Metrics | Event]) -> None:
        self._reported.take(header.attempt, header.t0, records)
        for record in records:
            if isinstance(record, Metrics):
                continue
            when = (header.attempt, header.t0 + record.t_s)
            if record.name == "attempt_started":
                self._started = max(self._started or when, when)
            elif record.name in ("attempt_ended", "attempt_interrupted", "ended_by_scheduler", "lost", "cancelled"):
                self._ended = max(self._ended or when, when)
            elif record.name == "telemetry_lost":
                node = int(record.details.get("node", 0))
                self._troubles[header.attempt, node] = str(record.details.get("reason"))
            if record.name in ("submitted", "attempt_started") and record.details.get("job_id"):
                self._job = {**self._job, **record.details}

    def _follow_samples(self, path: Path) -> None:
        tail, sampled = self._telemetry.get(path, (None, None))
        tail = tail or Tail(path)
        records = tail.read()
        if sampled is None and tail.header is not None:
            node = tail.header.writer.removeprefix("node")
            sampled = Sampled(
                node=int(node) if node.isdecimal() else 0,
                host=tail.header.host,
                t0=tail.header.t0,
                attempt=tail.header.attempt,
            )
        if sampled is not None:
            sampled.take(records)
        self._telemetry[path] = (tail, sampled)

    def _nodes(self, attempt: int) -> list[NodeNow]:
        """Return the nodes of *attempt*; of two samplers of one node the one that began last counts."""
        latest: dict[int, Sampled] = {}
        for _, sampled in self._telemetry.values():
            if sampled is None or sampled.attempt != attempt:
                continue
            known = latest.get(sampled.node)
            if known is None or sampled.t0 >= known.t0:
                latest[sampled.node] = sampled
        for node, sampled in latest.items():
            sampled.ended = self._troubles.get((attempt, node)) or sampled.ended
        return [latest[node].now() for node in sorted(latest)]

    def _run(self, seen: Glimpse, nodes: Sequence[NodeNow]) -> RunNow:
        reported = self._reported
        started = self._started[1] if self._started and self._started[0] == seen.attempt else None
        ended = self._ended[1] if self._ended and self._ended[0] == seen.attempt and seen.state.is_final else None
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
            started_at=started,
            ended_at=ended,
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
        if not self._job.get("job_id"):
            return None
        index = self._job.get("array_index")
        return f"{self._job.get('scheduler') or 'job'} {self._job['job_id']}{'' if index is None else f'_{index}'}"

    def _notes(self, run: RunNow, now: float) -> list[str]:
        if not self.run_dir.path.is_dir():
            return [f"{self.run_dir.path} is gone: the run was removed"]
        notes = [f"{path.name} begins with no header and is left out" for path in self._without_header()]
        if run.state is State.PENDING:
            where = f" as {run.job}" if run.job else ""
            notes.append(f"waits in the queue{where}: hpcml status asks what for")
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

    def _without_header(self) -> list[Path]:
        return [path for path, tail in self._journals.items() if tail.header is None and tail.has_begun]


def look_once(run_dirs: Sequence[RunDir]) -> list[RunNow]:
    """Return what is known of the runs now."""
    return [RunTop(run_dir).look(time.time())[0] for run_dir in run_dirs]


def follow(run_dirs: Sequence[RunDir], *, period_s: float) -> Iterator[list[RunNow]]:
    """Yield what is known of the runs once a period, until all have ended or were removed."""
    tops = [RunTop(run_dir) for run_dir in run_dirs]
    over_since: float | None = None
    while True:
        there = [top.run_dir.path.is_dir() for top in tops]  # asked first: a frame shall say that a run is gone
        looks = [top.look(time.time()) for top in tops]
        yield [run for run, _ in looks]
        is_over = all(seen.is_over or not is_there for is_there, (_, seen) in zip(there, looks, strict=True))
        now = time.monotonic()
        over_since = (over_since if over_since is not None else now) if is_over else None
        may_go_on = any(seen.may_go_on for _, seen in looks)
        if over_since is not None and (not may_go_on or now - over_since >= _REQUEUE_S):
            return
        time.sleep(period_s)
