"""One run directory, read into the rows of the store: whole, or only what its files grew by.

What is read whole depends on the directory alone. A run that goes on is read from where the last reading ended, while
nothing but the end of its files has changed (`_grown`); what is stored then is the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from hpcml.runs.journal import Header, parse_chunk, read_piece, unread
from hpcml.runs.layout import RunDir
from hpcml.store.curves import EMPTY, Columns, Precedence, Tally, extend, measured, merge
from hpcml.store.facts import ANNOTATING, FOLDED, Happening, JournalStart, RunFacts, fold, fold_notes, fold_tags
from hpcml.store.journals import JOURNALS, MANIFEST, TELEMETRY, Seen, find_header
from hpcml.store.manifest_rows import Description, Settings, describe
from hpcml.store.parse import JournalRecords, storable, storable_json
from hpcml.store.spans import Bucket, Buckets
from hpcml.store.usage import MEASURED, Carbon, fold_usage, fold_work

_PIECE_BYTES = 8 << 20  # of a journal that is held at a time
TELLING = frozenset((*FOLDED, *ANNOTATING, *MEASURED))  # names of the events that say something of a run
_PLAIN = ("is_settled", "exit_code", "attempt", "array_index", "is_shared", "t_start", "t_end", "wall_s")
_TEXTS = ("cause", "reason", "job_id", "job_name", "job_cluster", "precision_effective")


@dataclass(slots=True, kw_only=True)
class FileRead:
    """What was read of a journal or a file of telemetry. The column `files` has it as JSON."""

    size: int = 0  # of the file when it was looked at
    read: int = 0  # bytes, to the end of the last whole line
    uid: str = ""  # the journal's own; "" where nothing was read
    writer: str = ""
    attempt: int = 0
    host: str = ""
    t0: float = 0.0  # unix seconds
    events: int = 0
    points: int = 0
    records: int = 0
    next_seq: int = 0  # the number of the last record, plus one
    bad_lines: int = 0  # that are no record: torn, zeroed, foreign
    node: int = 0  # of telemetry
    carry: str = ""  # of telemetry: what the reading goes on from (`Buckets.carry`)
    problem: str = ""  # why the file, or its end, is left out

    def stored(self) -> dict[str, Any]:
        """Return what differs from a file of which nothing was read."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}

    @property
    def lost_records(self) -> int:
        """The number of records that are missing: the last sequence number + 1, less the records that were read.

        Not the sum of gaps between neighbours: a number that was damaged itself, or that a signal handler took a moment
        too early, is then put right by whatever follows it.
        """
        return max(0, self.next_seq - self.records)

    def begin(self, header: Header) -> None:
        """Take over what the *header* of the file says."""
        self.uid, self.writer, self.host = storable(header.journal), storable(header.writer), storable(header.host)
        self.attempt, self.t0 = header.attempt, header.t0
        node = re.fullmatch(r"node(\d{1,9})", header.writer)
        self.node = int(node[1]) if node else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """What the store has of a run before it is read again."""

    run_id: int
    uid: str
    path: str
    home: str | None
    epoch_ms: int
    bad_lines: int
    lost_records: int
    files: Mapping[str, Any]  # as stored


@dataclass(slots=True, kw_only=True, eq=False)
class RunRows:
    """A run as rows. With `grows` those of metrics, points, events and samples come on top of the stored ones."""

    uid: str
    run: Mapping[str, Any]  # but for its settings
    settings: Sequence[Settings]
    metrics: Mapping[str, tuple[Tally, Columns]]  # the new points, and the summary of all
    events: Sequence[Mapping[str, Any]]
    samples: Mapping[str, Sequence[Bucket]]  # by name of file
    files: Mapping[str, FileRead]
    grows: StoredRun | None = None

    @property
    def n_points(self) -> int:
        """How many points there are to be written."""
        return sum(len(columns.steps) for _, columns in self.metrics.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What was read of a run before, as far as more of it depends on that."""

    happenings: Sequence[Happening] = ()
    tallies: Mapping[str, Tally] = field(default_factory=dict)


def read_run(run_dir: RunDir, homes: dict[Path, str | None]) -> RunRows:
    """Return all that the run directory says; raises `HpcmlError` where it cannot be read.

    *homes* as in `describe`.
    """
    seen = Seen.of(str(run_dir.path))
    described = describe(run_dir, homes)
    files = {name: FileRead(size=size) for name, size in seen.sizes.items()}
    return _rows(described, seen, _read_on(run_dir, described, files), files, Earlier())


def read_growth(run_dir: RunDir, homes: dict[Path, str | None], known: StoredRun, earlier: Earlier) -> RunRows | None:
    """Return what was added to the run since it was read; None where more changed, and it is to be read whole.

    Points are added where they lie behind all others of their metric and come from the latest attempt: of an earlier
    one they may not count.
    """
    seen = Seen.of(str(run_dir.path))
    stored = {name: FileRead(**file) for name, file in known.files.items() if name != MANIFEST}
    if known.files.get(MANIFEST) != seen.stamp or known.path != storable(str(run_dir.path.absolute())):
        return None
    if stored.keys() != seen.sizes.keys() or not all(
        _may_grow(run_dir, known.uid, name, file, seen.sizes[name]) for name, file in stored.items()
    ):
        return None
    described = describe(run_dir, homes)
    if described.uid != known.uid:
        return None
    for name, file in stored.items():
        file.size = seen.sizes[name]
    latest = max((file.attempt for name, file in stored.items() if name.startswith(JOURNALS)), default=0)
    series, events, samples = _read_on(run_dir, described, stored)
    for metric, parts in series.items():
        last = earlier.tallies.get(metric, EMPTY).last_step
        for precedence, points in parts:
            if precedence.attempt != latest or (last is not None and points.steps[0] <= last):
                return None
    rows = _rows(described, seen, _Found(series, events, samples), stored, earlier)
    rows.grows = known
    return rows


def _may_grow(run_dir: RunDir, uid: str, name: str, file: FileRead, size: int) -> bool:
    """Whether *file* is the one that was read, with nothing or more behind what was read of it."""
    if size == file.size:
        return True
    if size < file.read or not file.uid or (name.startswith(TELEMETRY) and not file.carry):
        return False
    header = find_header(run_dir.path / name, uid)
    return not isinstance(header, str) and storable(header.journal) == file.uid


class _Found(NamedTuple):
    """What was read: points by metric and journal, rows of events, spans of telemetry by file."""

    series: dict[str, list[tuple[Precedence, Columns]]]
    events: list[dict[str, Any]]
    samples: dict[str, list[Bucket]]


def _read_on(run_dir: RunDir, described: Description, files: Mapping[str, FileRead]) -> _Found:
    """Read all *files* on to their ends, and note down in them how far that is."""
    series, events, samples = found = _Found({}, [], {})
    for name, file in files.items():
        if file.size <= file.read:
            continue
        path, short = run_dir.path / name, name.partition("/")[2]
        if not file.uid and not _begin(path, file, described.uid):
            continue
        if name.startswith(TELEMETRY):
            samples[short] = _read_telemetry(path, file, described)
            continue
        records = JournalRecords(t0=file.t0, epoch_ms=described.epoch_ms)
        for chunk in _chunks(path, file):
            records.take(chunk)
        who = {"file": short, "attempt": file.attempt, "writer": file.writer}
        events += (
            {**who, "ordinal": file.events + at, "t_ms": t_ms, "name": name, "details": details}
            for at, (t_ms, name, details) in enumerate(records.events)
        )
        file.events += len(records.events)
        file.records += records.records
        file.next_seq = file.next_seq if records.next_seq is None else records.next_seq
        file.bad_lines += records.bad_lines
        precedence = _start(short, file).precedence
        for metric, columns in records.curves().items():
            file.points += len(columns.steps)
            series.setdefault(metric, []).append((precedence, columns))
    return found


def _begin(path: Path, file: FileRead, uid: str) -> bool:
    """Read the header of *file*; return whether there is one, or else say why the file is left out."""
    if b"\n" not in read_piece(path, 0, 1):  # its first line is being written
        file.problem = unread(path, 0) or ""
        return False
    header = find_header(path, uid)
    if isinstance(header, str):
        file.problem = header
        return False
    file.begin(header)
    return True


def _chunks(path: Path, file: FileRead) -> Iterable[Sequence[Any]]:
    """Yield the records of *path* behind what was read of it, and note down how far that is now."""
    file.problem = ""
    while file.read < file.size:
        data = read_piece(path, file.read, _PIECE_BYTES)
        if b"\n" not in data:
            file.problem = unread(path, file.read) or ""
            return
        chunk = parse_chunk(data, offset=file.read, journal=file.uid)
        file.read, file.bad_lines = chunk.end, file.bad_lines + chunk.bad_lines
        yield chunk.records


def _read_telemetry(path: Path, file: FileRead, described: Description) -> list[Bucket]:
    buckets = Buckets.resume(file.carry or "{}")
    for records in _chunks(path, file):
        buckets.add(records, base_ms=file.t0 * 1000 - described.epoch_ms)
    file.carry = buckets.carry()
    return buckets.take()


def _start(short: str, file: FileRead) -> JournalStart:
    return JournalStart(file=short, writer=file.writer, attempt=file.attempt, t0=file.t0)


def starts_of(files: Mapping[str, FileRead]) -> dict[str, JournalStart]:
    """Return the begin of each journal among *files*, by its name in the folder of journals."""
    return {
        name.removeprefix(JOURNALS): _start(name.removeprefix(JOURNALS), file)
        for name, file in files.items()
        if name.startswith(JOURNALS) and file.uid
    }


def happenings_of(
    events: Iterable[Mapping[str, Any]], starts: Mapping[str, JournalStart], epoch_ms: int
) -> list[Happening]:
    """Return those of *events* (rows) that say something of the run.

    Those of other journals than *starts* has were written by another process since: what is read now will be stale.
    """
    return [
        Happening(
            journal=starts[event["file"]],
            ordinal=event["ordinal"],
            at=(epoch_ms + event["t_ms"]) / 1000,
            name=event["name"],
            details=event["details"],
        )
        for event in events
        if event["name"] in TELLING and event["file"] in starts
    ]


def _rows(
    described: Description, seen: Seen, found: _Found, files: Mapping[str, FileRead], earlier: Earlier
) -> RunRows:
    starts = starts_of(files)
    happenings = [*earlier.happenings, *happenings_of(found.events, starts, described.epoch_ms)]
    known = fold(
        list(starts.values()),
        happenings,
        requested=described.columns["precision"],
        is_observed=described.setting("precision.observe") == "always",
    )
    journals = [file for name, file in files.items() if name.startswith(JOURNALS)]
    has_ended = known.state.is_final and known.is_settled
    is_closed = has_ended and seen.is_quiet and not any(file.problem for file in files.values())
    if is_closed:
        for file in files.values():
            file.carry = ""
    metrics = {}
    for metric, parts in found.series.items():
        columns = merge(parts)
        metrics[metric] = (extend(earlier.tallies.get(metric, EMPTY), columns.steps, columns.values), columns)
    run = {
        **described.columns,
        **described.planned,
        **_columns(known, described, happenings),
        "uid": described.uid,
        "files": {MANIFEST: seen.stamp, **{name: file.stored() for name, file in files.items()}},
        "closed_ns": seen.journals_ns if is_closed else None,
        "bad_lines": sum(file.bad_lines for file in journals),
        "lost_records": sum(file.lost_records for file in journals),
    }
    return RunRows(
        uid=described.uid,
        run=run,
        settings=list(described.settings.values()),
        metrics=metrics,
        events=found.events,
        samples=found.samples,
        files=files,
    )


def _columns(known: RunFacts, described: Description, happenings: Sequence[Happening]) -> dict[str, Any]:
    """Return the columns of table `run` that the journals decide."""
    columns: dict[str, Any] = {name: getattr(known, name) for name in _PLAIN}
    for name in (*_TEXTS, *described.planned):
        text = getattr(known, name)
        if text is not None or name in _TEXTS:
            columns[name] = None if text is None else storable(text)
    usage = fold_usage(happenings, known.counted, _carbon(described))
    work = fold_work(happenings, known.counted)
    facts = {storable(key): storable_json(value) for key, value in {**known.facts, **described.facts}.items()}
    return {
        **columns,
        "state": known.state.value,
        "clock_ms": 0 if known.clock_zero is None else round(known.clock_zero * 1000 - described.epoch_ms),
        "facts": dict(sorted(facts.items())),
        "tags": storable_json(fold_tags(described.tags, happenings)),
        "notes": storable_json([asdict(note) for note in fold_notes(happenings)]),
        "usage": None if usage is None else storable_json(asdict(usage)),
        "work": None if work is None else storable_json(asdict(work)),
    }


def _carbon(described: Description) -> Carbon | None:
    """Return the CO2 of the cluster's electricity from the run's configuration; None where it is not configured."""
    factor, source = described.setting("cluster.co2_g_per_kwh"), described.setting("cluster.co2_source")
    is_known = isinstance(factor, int | float) and not isinstance(factor, bool) and source is not None
    return Carbon(g_per_kwh=float(factor), source=str(source)) if is_known else None


def summary_row(tally: Tally, columns: Columns) -> dict[str, Any]:
    """Return the row of table `metric` for the *tally* of a curve; *columns* are all of it where any value is nan."""
    row = {**asdict(tally), "n_unmeasured": 0, "measured": None, "measured_step": None}
    if 0 < tally.n_nonfinite < tally.n and (kept := measured(columns.steps, columns.values)) is not None:
        row |= {"n_unmeasured": tally.n - len(kept.steps), "measured": kept.values[-1], "measured_step": kept.steps[-1]}
    return row


def point_rows(metric_id: int, columns: Columns) -> Iterable[dict[str, Any]]:
    """Yield the rows of table `point`; a value that is nan is NULL."""
    for step, t_ms, value in zip(columns.steps, columns.times_ms, columns.values, strict=True):
        yield {"metric_id": metric_id, "step": step, "t_ms": t_ms, "value": None if math.isnan(value) else value}
