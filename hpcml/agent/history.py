"""The history of a run, as its agent needs it: read from the journals in the run directory.

Journals of ranks may be large and are not opened for this, except to find the last checkpoint.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from hpcml.runs.journal import events, is_cut_short, parse_chunk, pieces
from hpcml.runs.layout import RunDir, attempt_of
from hpcml.runs.state import EventName, read_fold

_RANK = re.compile(r"\d+-.*-rank(\d+)(?:-\d+)?\.jsonl")
_CHECKPOINT = b'"n":"checkpoint"'


def is_over(run_dir: RunDir, pack: str, *, comes_back: bool) -> bool:
    """Tell whether the job with the token *pack*, which the scheduler restarted, has already finished this run.

    *comes_back*: a requeued run is started by this same job (local runs), not by a job of its own.
    """
    told = read_fold(run_dir)
    begun = {one.number for one in told if any(start.details.get("pack") == pack for start in one.starts)}
    over = begun & {one.number for one in told if one.has_ended}
    waits = max((one.number for one in told if one.is_requeue), default=-1)
    return bool(over) and not (comes_back and waits > max(over))


def saved_steps(run_dir: RunDir) -> dict[int, int]:
    """Return the step of the last checkpoint of each attempt that reported one: of several ranks, the one ahead counts.

    Raises `HpcmlError` where a journal cannot be read.
    """
    found: dict[int, int] = {}
    for path in run_dir.journal_files():
        attempt, step = attempt_of(path.name), _last_checkpoint_step(path)
        if attempt is not None and step is not None:
            found[attempt] = max(step, found.get(attempt, step))
    return found


def is_continued(run_dir: RunDir, attempt: int) -> bool:
    """Tell whether *attempt* goes on from the one before, as the store counts it: that left a checkpoint.

    Raises `HpcmlError` where a journal cannot be read.
    """
    before = [one for one in read_fold(run_dir) if one.number < attempt and one.starts]
    if not before:
        return False
    return before[-1].left_checkpoint or before[-1].number in saved_steps(run_dir)


def attempts_left_at_checkpoint(run_dir: RunDir) -> list[int]:
    """Return the numbers of the attempts whose program left at a checkpoint, to go on in another."""
    return [one.number for one in read_fold(run_dir) if one.may_go_on]


def _last_checkpoint_step(path: Path) -> int | None:
    """Return the step of the last checkpoint in the journal *path*; None without one."""
    found = (parse_chunk(data, offset=at) for at, data in pieces(path) if _CHECKPOINT in data)
    steps = [event.details.get("step") for event in events(list(found), EventName.CHECKPOINT)]
    return next((step for step in reversed(steps) if isinstance(step, int)), None)


def last_checkpoint(run_dir: RunDir) -> str | None:
    """Return the file name of the last checkpoint that a rank has reported in any attempt; None without one.

    Journals are searched from the newest. Raises `HpcmlError` where one cannot be read.
    """
    dated: list[tuple[float, Path]] = []
    for path in run_dir.journal_files():
        with suppress(FileNotFoundError):
            dated.append((path.stat().st_mtime, path))
    for _, path in sorted(dated, reverse=True):
        found = (parse_chunk(data, offset=at) for at, data in pieces(path) if _CHECKPOINT in data)
        named = list(events(list(found), EventName.CHECKPOINT))
        if named:
            return Path(str(named[-1].details.get("path"))).name
    return None


def cut_short(run_dir: RunDir, attempt: int, host: str) -> str | None:
    """Return in one line that what ranks on *host* reported last in *attempt* may be missing; None where all is there.

    Raises `HpcmlError` where one of their journals cannot be read.
    """
    files = ((_RANK.fullmatch(path.name), path) for path in run_dir.journal_files())
    of_here = ((match, path) for match, path in files if match and path.name.startswith(f"{attempt}-{host}-"))
    ranks = sorted({int(match[1]) for match, path in of_here if is_cut_short(path)})
    if not ranks:
        return None
    whose = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:3]))}{', ...' if len(ranks) > 3 else ''}"
    return (
        f"what {whose} reported last may be missing: the journal has no end, as on a full disk, or where a program "
        "leaves by os._exit without close() of its client"
    )
