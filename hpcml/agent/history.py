"""The history of a run, as its agent needs it: read from the journals in the run directory.

Journals of ranks may be large and are not opened for this, except to find the last checkpoint and the last step.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcml.runs.journal import Metrics, events, is_cut_short, parse_chunk, pieces, read_piece
from hpcml.runs.layout import RunDir, attempt_of
from hpcml.runs.state import EventName, read_fold

_RANK = re.compile(r"\d+-.*-rank(\d+)(?:-\d+)?\.jsonl")
_IN_OWN_WORDS = re.compile(r"\d+-.*-(rank\d+|agent)(?:-\d+)?\.jsonl")  # steps in files that it writes may begin anew
_CHECKPOINT = b'"n":"checkpoint"'
_END_BYTES = 64 << 10


def requeues(run_dir: RunDir) -> int:
    """Return how often agents have put the run back into the queue, by its journals; retries by users do not count."""
    return read_fold(run_dir).requeues


def is_over(run_dir: RunDir, pack: str, *, comes_back: bool) -> bool:
    """Tell whether the job with the token *pack*, which the scheduler restarted, has already finished this run.

    *comes_back*: a requeued run is started by this same job (local runs), not by a job of its own.
    """
    told = read_fold(run_dir)
    begun = {one.number for one in told if any(start.details.get("pack") == pack for start in one.starts)}
    over = begun & {one.number for one in told if one.has_ended}
    waits = max((one.number for one in told if one.is_requeue), default=-1)
    return bool(over) and not (comes_back and waits > max(over))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far an attempt came; None where it did not say."""

    checkpoint: int | None = None  # the step of its last checkpoint
    step: int | None = None  # the last for which it reported metrics, where the program itself said which step it was


def reached(run_dir: RunDir) -> dict[int, Reached]:
    """Return how far each attempt came, by its number: of several ranks, the one that is ahead counts.

    Raises `HpcmlError` where a journal cannot be read.
    """
    found: dict[int, Reached] = {}
    for path in run_dir.journal_files():
        if (attempt := attempt_of(path.name)) is not None:
            known = found.get(attempt, Reached())
            found[attempt] = Reached(
                checkpoint=_later(known.checkpoint, _last_checkpoint_step(path)),
                step=_later(known.step, _last_metrics_step(path) if _IN_OWN_WORDS.fullmatch(path.name) else None),
            )
    return found


def is_continued(run_dir: RunDir, attempt: int) -> bool:
    """Tell whether *attempt* goes on from the one before, as the store counts it: that left a checkpoint.

    Raises `HpcmlError` where a journal cannot be read.
    """
    before = [one for one in read_fold(run_dir) if one.number < attempt and one.starts]
    if not before:
        return False
    told = reached(run_dir).get(before[-1].number, Reached())
    return before[-1].left_checkpoint or told.checkpoint is not None


def attempts_left_at_checkpoint(run_dir: RunDir) -> list[int]:
    """Return the numbers of the attempts whose program left at a checkpoint, to go on in another."""
    return [one.number for one in read_fold(run_dir) if one.may_go_on]


def _later(one: int | None, other: int | None) -> int | None:
    return max((step for step in (one, other) if step is not None), default=None)


def _last_checkpoint_step(path: Path) -> int | None:
    """Return the step of the last checkpoint in the journal *path*; None without one."""
    found = (parse_chunk(piece.data, offset=piece.at) for piece in pieces(path) if _CHECKPOINT in piece.data)
    steps = [event.details.get("step") for event in events(list(found), EventName.CHECKPOINT)]
    return next((step for step in reversed(steps) if isinstance(step, int)), None)


def _last_metrics_step(path: Path) -> int | None:
    """Return the largest step in the last 64 KiB of the journal *path*, of those that the program said."""
    end = read_piece(path, max(0, path.stat().st_size - _END_BYTES), _END_BYTES)
    records = parse_chunk(end.data, offset=end.at).records
    return max((one.step for one in records if isinstance(one, Metrics) and not one.is_counted), default=None)


def last_checkpoint(run_dir: RunDir) -> str | None:
    """Return the file name of the last checkpoint that a rank has reported in any attempt; None without one.

    Journals are searched from the newest. Raises `HpcmlError` where one cannot be read.
    """
    dated: list[tuple[float, Path]] = []
    for path in run_dir.journal_files():
        with suppress(FileNotFoundError):
            dated.append((path.stat().st_mtime, path))
    for _, path in sorted(dated, reverse=True):
        found = (parse_chunk(piece.data, offset=piece.at) for piece in pieces(path) if _CHECKPOINT in piece.data)
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
