"""The live state of running runs, read from the files that they write, for ``hpcml top``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcml.commands import external_runs
from hpcml.commands.collect import collect, opened
from hpcml.commands.follow import REQUEUE_S, Glimpse, Watcher
from hpcml.commands.selection import Selection, select
from hpcml.commands.top.live_machine import Sampled
from hpcml.errors import ConfigError, HpcmlError
from hpcml.model.live import NodeNow, RunNow
from hpcml.model.records import spell_job
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.files import open_regular, read_raw
from hpcml.runs.journal import Chunk, Event, Header, Metrics, parse_chunk, read_piece
from hpcml.runs.layout import NEWEST, RunDir, find_run_dirs, home_of
from hpcml.schedulers.contract import Ticket
from hpcml.schedulers.local.waiting import why_waiting

EDGE_BYTES = 64 << 10  # what a journal is about stands in its first lines; ten samples of eight GPUs take 50 KiB
_CHUNK_BYTES = 4 << 20


@dataclass(slots=True)
class Tail:
    """One journal that is read on with each look; of a long one, at first only both ends (`edge_bytes` each).

    A line that its writer has not finished is left for the next look.
    """

    path: Path
    edge_bytes: int = EDGE_BYTES
    header: Header | None = None
    has_begun: bool = False  # there was a whole line
    _offset: int = 0
    _is_in_line: bool = False  # the next byte is one of a line whose beginning was left out

    def read(self) -> list[Metrics | Event]:
        """Return the records that are new since the last call; none where the file is gone, or is none."""
        try:
            file = open_regular(self.path)  # again each time: that is what makes NFS ask its server
        except OSError:
            return []
        records: list[Metrics | Event] = []
        with file:
            if not self.has_begun:
                records += self._begin(file.read(self.edge_bytes), os.fstat(file.fileno()).st_size)
        while True:
            before = self._offset
            try:
                piece = read_piece(self.path, before, _CHUNK_BYTES)
            except HpcmlError:
                return records
            self._is_in_line &= piece.at == before  # behind a hole a line begins
            self._offset = piece.at
            records += self._take(piece.data)
            if len(piece.data) < _CHUNK_BYTES or self._offset == before:  # all read, or a line without an end
                return records

    def _begin(self, head: bytes, size: int) -> list[Metrics | Event]:
        """Take the beginning, once there is a whole line of it, and go to where the end begins."""
        chunk = parse_chunk(head, offset=0)
        if chunk.end == 0 and len(head) < self.edge_bytes:
            return []
        self.has_begun = True
        self._offset = chunk.end
        self.header = chunk.header
        if size - self.edge_bytes > chunk.end:
            self._offset = size - self.edge_bytes
            self._is_in_line = True
        return list(chunk.records)

    def _take(self, data: bytes) -> list[Metrics | Event]:
        if not self.has_begun:
            return []
        if self._is_in_line:
            begin = data.find(b"\n") + 1
            if begin == 0:
                self._offset += len(data)
                return []
            self._is_in_line = False
            self._offset += begin
            data = data[begin:]
        chunk: Chunk = parse_chunk(data, offset=self._offset)
        self._offset = chunk.end
        return list(chunk.records)


# Following the runs: which are shown, and what of their files is new.

_SHORTEST_END = 4  # characters of an id, as everywhere
_SHOWN = 5
_SILENT_S = 60.0  # a run that writes nothing for so long, nor for ten intervals, may have died with its agent


def find_runs(places: Places, references: Sequence[str], submission: str | None = None) -> list[RunDir]:
    """Return the runs that *references* mean, each once, and those that were submitted together as *submission*.

    References are ids, ends of ids (four characters or more), names, paths of run directories, and ``@1`` or ``@-1`` as
    in `hpcml.store.query.runs_meant`. The files are looked through, since the store may be older than they are. Raises
    `ConfigError` for one that means no run or several, and for a submission without runs.
    """
    by_uid: dict[str, RunDir] = {}
    for root in external_runs.roots(places):
        for run_dir in find_run_dirs(root):
            by_uid.setdefault(run_dir.uid, run_dir)
    found: list[RunDir] = []
    for word in references:
        if (at := NEWEST.fullmatch(word)) is None:
            found.append(_find(word, by_uid, places))
        elif newest := _newest(int(at[2]), by_uid, is_submission=bool(at[1])):
            found += newest
        else:
            raise ConfigError(f"{word}: there are fewer {'submissions' if at[1] else 'runs'} than that")
    if submission is not None:
        members = [one for one in by_uid.values() if _said_of(one, "provenance").get("submission") == submission]
        if not members:
            raise ConfigError(f"--submission {submission}: no run below {places.runs} was submitted so")
        found += members
    return list({run_dir.path.resolve(): run_dir for run_dir in found}.values())


def runs_under_way(places: Places) -> list[RunDir]:
    """Return the runs that run, and behind them those that wait."""
    with opened(places) as store:
        collect(store, places)
        found = select(store, Selection(states=[State.RUNNING.name, State.PENDING.name]))
    return [RunDir(Path(record.path)) for record in sorted(found, key=lambda record: record.state is State.PENDING)]


def _newest(number: int, by_uid: Mapping[str, RunDir], *, is_submission: bool) -> list[RunDir]:
    """Return the newest run but *number* - 1, or the runs of such a submission; none where there are fewer."""
    newest = sorted(by_uid, reverse=True)
    if not is_submission:
        return [by_uid[uid] for uid in newest[number - 1 : number]]
    members: dict[object, list[RunDir]] = {}  # from the newest on
    for uid in newest:
        submission = _said_of(by_uid[uid], "provenance").get("submission")
        if submission is not None:
            if submission not in members and len(members) == number:
                break  # run.json of older ones need not be read
            members.setdefault(submission, []).insert(0, by_uid[uid])
    return list(members.values())[number - 1] if len(members) >= number else []


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
    """One run that is looked at again and again: its journals and its telemetry.

    Of each file both ends are read at first, then what is added. Neither the store nor a scheduler is asked.
    """

    run_dir: RunDir
    _spec: Mapping[str, Any] = field(default_factory=dict)
    _watcher: Watcher = field(init=False)
    _journals: dict[Path, Tail] = field(default_factory=dict)
    _telemetry: dict[Path, tuple[Tail, Sampled | None]] = field(default_factory=dict)
    _left_out: dict[Path, str] = field(default_factory=dict)  # journals, and why
    _troubles: dict[tuple[int, int], str] = field(default_factory=dict)  # of a sampler, by attempt and node

    def __post_init__(self) -> None:
        self._spec = _said_of(self.run_dir, "run")
        self._watcher = Watcher(self.run_dir)

    def look(self, now: float) -> tuple[RunNow, Glimpse]:
        """Read what is new and return the run at *now* (unix seconds), with the glimpse that its end is judged by."""
        for path in self.run_dir.journal_files():
            header = self._header(path)
            if header is not None:
                records = self._journals.setdefault(path, Tail(path)).read()
                self._watcher.take(header, records)
                self._take(header, records)
        for path in sorted(self.run_dir.telemetry.glob("*.jsonl")):
            self._follow_samples(path)
        seen = self._watcher.glimpse()
        nodes = self._nodes(seen.attempt)
        run = self._run(seen, nodes)
        return replace(run, notes=self._notes(run, now)), seen

    def _header(self, path: Path) -> Header | None:
        """Return who writes the journal *path*; None, and why among the notes, where that cannot be told."""
        self._left_out.pop(path, None)
        try:
            header = self._watcher.header(path)
            if isinstance(header, Header):
                return header
            if read_piece(path, 0, 1).is_news:  # else it has not begun
                self._left_out[path] = header
        except HpcmlError:
            return None  # gone: the run is being removed
        return None

    def _take(self, header: Header, records: Sequence[Metrics | Event]) -> None:
        for record in records:
            if isinstance(record, Event) and record.name == "telemetry_lost":
                node = record.details.get("node")
                self._troubles[header.attempt, node if isinstance(node, int) else 0] = str(record.details.get("reason"))

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
        notes = [self._left_out[path] for path in sorted(self._left_out)]
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
    over_since: float | None = None
    while True:
        there = [top.run_dir.path.is_dir() for top in tops]  # asked first: a frame shall say that a run is gone
        looks = _look_at(tops)
        yield [run for run, _ in looks]
        is_over = all(seen.is_over or not is_there for is_there, (_, seen) in zip(there, looks, strict=True))
        now = time.monotonic()
        over_since = (over_since if over_since is not None else now) if is_over else None
        may_go_on = any(seen.may_go_on for _, seen in looks)
        if over_since is not None and (not may_go_on or now - over_since >= REQUEUE_S):
            return
        time.sleep(period_s)
