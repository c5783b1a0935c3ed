"""`hpcml sync`, `hpcml rm` and `hpcml import`: what was found or done, in lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcml.codec import encode
from hpcml.model.records import RunRecord
from hpcml.report.render.data import json_text
from hpcml.report.runs import title
from hpcml.report.text import safe, size


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheck:
    """A store as it is kept, and what is wrong: a line for each fault of it, and for each run that cannot be read.

    `used` says how it is used, `size_bytes` is None for a server's database; of a damaged store nothing is counted.
    `folders` are those outside of HPCML_HOME that are read too.
    """

    name: str
    used: str | None = None
    size_bytes: int | None = None
    runs: int | None = None
    points: int | None = None
    folders: Sequence[str]
    faults: Sequence[str]
    unreadable: Sequence[str]


def check_json(check: StoreCheck) -> str:
    """Return one JSON object; its keys do not change between versions. `size_bytes` is null for a server."""
    return json_text(encode(check))


def check_lines(check: StoreCheck) -> Iterator[str]:
    """Yield where the store is and what is in it, then each problem and what to do, or that there is none."""
    yield safe(check.name)
    if check.used is not None:
        yield f"  {safe(check.used)}"
    if check.runs is not None and check.points is not None:
        room = "" if check.size_bytes is None else f", {size(check.size_bytes)}"
        yield f"  {_counted(check.runs, 'run')}, {_counted(check.points, 'point')}{room}"
    yield from (f"  reads {safe(folder)}, too" for folder in check.folders)
    yield from (safe(problem) for problem in (*check.faults, *check.unreadable))
    if check.faults:
        yield f"{_counted(len(check.faults), 'fault')} in {safe(check.name)}: delete it, and hpcml sync makes it anew"
    else:
        yield f"nothing is wrong with {safe(check.name)}"
    if check.unreadable:
        runs = _counted(len(check.unreadable), "run")
        yield f"{runs} cannot be read: put right what is damaged, or remove the run's folder"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def run_line(record: RunRecord, size_bytes: int | None, *, is_gone: bool) -> str:
    """Return one line on a run and its size; *size_bytes* None means that only the store forgets it.

    *is_gone* says whether the directory of the run is there no more; the line says then what stays.
    """
    stays = "its directory is gone" if is_gone else f"its files stay in {record.path}"
    words = (record.uid, record.experiment, title(record), record.state.value)
    return safe("  ".join(filter(None, (*words, stays if size_bytes is None else size(size_bytes)))))


def code_line(path: str, size_bytes: int) -> str:
    """Return one line on a copy of code and its size."""
    return safe(f"{path}  {size(size_bytes)}")


def import_lines(
    *, created: int, updated: int, unchanged: int, own: int, points: int, remarks: Mapping[str, int]
) -> tuple[str, list[str]]:
    """Return the sum of an import in one line, and a line for each thing that could not be taken over as it was.

    *remarks* has the number of runs that each remark is about; *own* is the number of runs that hpcml itself had
    exported.
    """
    parts = [f"{created} runs imported", f"{updated} with news", f"{unchanged} unchanged"]
    if own:
        parts.append(f"{own} that hpcml exported and has")
    line = f"{', '.join(parts)}; {points} points"
    return line, [f"{safe(remark)}{f' ({count} runs)' if count > 1 else ''}" for remark, count in remarks.items()]
