"""What became of a run before now, read from its journals: those of its ranks, which may be large, are not opened."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from hpcml.journal import Event, read_journal
from hpcml.rundir import RunDir

_NAME = re.compile(r"(\d+)-.*?(-rank\d+(?:-\d+)?)?\.jsonl")
_VERDICTS_FROM_OUTSIDE = frozenset({"lost", "cancelled", "ended_by_scheduler", "submission_failed"})
_CHECKPOINT = b'"n":"checkpoint"'


def claim_attempt(run_dir: RunDir, node: int) -> int:
    """Return the number of the attempt that begins now; the log file of this node, created here, makes it ours.

    It is the latest that there is anything of (an attempt may begin with the wish for it), or the next if somebody
    said from outside how the latest ended, or if this node has been in it. The agents of a job's nodes start once in
    every attempt each, so that they count alike.
    """
    attempt = max((number for number, _ in _journals(run_dir)), default=0)
    if any(event.name in _VERDICTS_FROM_OUTSIDE for number, event in _events(run_dir) if number == attempt):
        attempt += 1
    run_dir.logs.mkdir(exist_ok=True)
    while True:
        try:
            with run_dir.agent_log(attempt, node).open("x"):
                return attempt
        except FileExistsError:
            attempt += 1


def requeues(run_dir: RunDir) -> int:
    """Return how often agents of the run have put it back into the queue."""
    return len({number for number, event in _events(run_dir) if _is_by_agent(event)})


def is_over(run_dir: RunDir, pack: str, *, comes_back: bool) -> bool:
    """Tell whether the job *pack*, which was started again, has brought the run to an end before.

    *comes_back*: a run that was put back into the queue is started by this same job, not by one of its own.
    """
    begun, ended, waits = set(), set(), -1
    for number, event in _events(run_dir):
        if event.name == "attempt_started" and event.details.get("pack") == pack:
            begun.add(number)
        elif event.name == "attempt_ended":
            ended.add(number)
        elif _is_by_agent(event):
            waits = max(waits, number)
    over = begun & ended
    return bool(over) and not (comes_back and waits > max(over))


def last_checkpoint(run_dir: RunDir) -> str | None:
    """Return the name of the last checkpoint that a rank has reported, in any attempt."""
    for path in sorted(run_dir.journal_files(), key=lambda path: path.stat().st_mtime, reverse=True):
        if path.stat().st_size == 0:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = data.rfind(_CHECKPOINT)
        if found >= 0:
            named = [event for event in _events_of(path) if event.name == "checkpoint"]
            if named:
                return Path(str(named[-1].details.get("path"))).name
    return None


def _is_by_agent(event: Event) -> bool:
    return event.name == "submitted" and event.details.get("by") == "agent"


def _events(run_dir: RunDir) -> Iterator[tuple[int, Event]]:
    for number, path in _journals(run_dir):
        for event in _events_of(path):
            yield number, event


def _events_of(path: Path) -> list[Event]:
    return [record for record in read_journal(path).records if isinstance(record, Event)]


def _journals(run_dir: RunDir) -> list[tuple[int, Path]]:
    """Return the journals that are not of ranks, with their attempts."""
    matches = [(_NAME.fullmatch(path.name), path) for path in run_dir.journal_files()]
    return [(int(match[1]), path) for match, path in matches if match is not None and match[2] is None]
