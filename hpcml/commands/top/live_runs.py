"""The live state of running runs, read from the files that they write, for ``hpcml top``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcml.commands.collect import collect, opened
from hpcml.commands.follow import EndOfAll, Glimpse, JournalReader, Watcher
from hpcml.commands.selection import Selection, select
from hpcml.commands.top.live_machine import Sampled
from hpcml.errors import HpcmlError
from hpcml.model.live import NodeNow, RunNow
from hpcml.model.records import spell_job
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.files import read_raw
from hpcml.runs.journal import parse_piece, read_piece
from hpcml.runs.layout import RunDir, home_of
from hpcml.schedulers.contract import Ticket
from hpcml.schedulers.local.waiting import why_waiting

_EDGE_BYTES = 64 << 10  # what telemetry is about stands in its first lines; ten samples of eight GPUs take 50 KiB
_SILENT_S = 60.0  # a run that writes nothing for so long, nor for ten intervals, may have died with its agent


def find_runs(places: Places, references: Sequence[str], submission: str | None = None) -> list[RunDir]:
    """Return the runs that *references* mean, each once, and those that were submitted together as *submission*.

    References are ids, ends of ids, names, ``@1`` or ``@-1`` as in `hpcml.store.query.runs_meant`, and paths of run
    directories. Raises an `HpcmlError` for one that means no run or several, and for a submission without runs.
    """
    at = [RunDir(Path(word).absolute()) for word in references if "/" in word and (Path(word) / "run.json").is_file()]
    words = [word for word in references if "/" not in word or not (Path(word) / "run.json").is_file()]
    wanted = [Selection(references=words)] if words else []
    wanted += [Selection(submission=submission)] if submission is not None else []
    with opened(places) as store:
        collect(store, places)
        refusal = f"--submission {submission}: no run was submitted so"
        found = [record for selection in wanted for record in select(store, selection, refusal=refusal)]
    run_dirs = [*at, *(RunDir(Path(record.path)) for record in found)]
    return list({run_dir.path.resolve(): run_dir for run_dir in run_dirs}.values())


def runs_under_way(places: Places) -> list[RunDir]:
    """Return the runs that run, and behind them those that wait."""
    with opened(places) as store:
        collect(store, places)
        found = select(store, Selection(states=[State.RUNNING.name, State.PENDING.name]))
    return [RunDir(Path(record.path)) for record in sorted(found, key=lambda record: record.state is State.PENDING)]


def _said_of(run_dir: RunDir, what: str) -> Mapping[str, Any]:
    """Return a part of run.json; empty where that cannot be read, as of a run that is just being removed."""
    try:
        found = read_raw(run_dir.manifest).get(what)
    except HpcmlError:
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(slots=True)
class RunTop:
    """One run that is looked at again and again: its journals and its telemetry.

    Of long telemetry both ends are read at first, then what is added. Neither the store nor a scheduler is asked.
    """

    run_dir: RunDir
    _spec: Mapping[str, Any] = field(default_factory=dict)
    _watcher: Watcher = field(init=False)
    _telemetry: dict[Path, tuple[JournalReader, Sampled]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._spec = _said_of(self.run_dir, "run")
        self._watcher = Watcher(self.run_dir)

    def look(self, now: float) -> tuple[RunNow, Glimpse]:
        """Read what is new and return the run at *now* (unix seconds), with the glimpse that its end is judged by."""
        try:
            seen = self._watcher.look()
            for path in sorted(self.run_dir.telemetry.glob("*.jsonl")):
                self._follow_samples(path)
        except (HpcmlError, FileNotFoundError):  # the run is being removed
            seen = self._watcher.glimpse()
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
                sampled.take(parse_piece(head, offset=0, journal=header.journal).records)
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


def follow(run_dirs: Sequence[RunDir], *, period_s: float) -> Iterator[list[RunNow]]:
    """Yield the state of the runs once in *period_s* seconds, until all have ended or were removed.

    A run that left at a checkpoint is followed for two more seconds, since its agent may be queueing it again.
    """
    tops = [RunTop(run_dir) for run_dir in run_dirs]
    has_ended = EndOfAll()
    while True:
        there = [top.run_dir.path.is_dir() for top in tops]  # asked first: a frame shall say that a run is gone
        looks = _look_at(tops)
        yield [run for run, _ in looks]
        if has_ended.by([seen for is_there, (_, seen) in zip(there, looks, strict=True) if is_there]):
            return
        time.sleep(period_s)
