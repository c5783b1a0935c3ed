"""The output of a run, followed over all its attempts and passed on as bytes, for ``hpcml logs``."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from hpcml.commands.follow import EndOfAll, Watcher, look_unless_removed
from hpcml.errors import ConfigError
from hpcml.model.failure_causes import last_exception, last_line, printed_lines
from hpcml.model.records import RunRecord
from hpcml.runs.files import open_inside
from hpcml.runs.layout import QUEUE_LOG, RunDir
from hpcml.runs.run_json import IMPORTED

_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 16
_PERIOD_S = 0.5
_COMPLAINT = re.compile(
    r"\b(error|not found|no such|denied|cannot|can't|failed|failure|unable|quota|no space|bad)\b", re.IGNORECASE
)
_REFRESH_S = 15.0  # between questions whether the run lives: of the store, which asks schedulers politely


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """What of a run's output is to be shown.

    `attempt` None: the last one that printed anything and, when following, those after it.
    """

    rank: int = 0
    streams: Sequence[str] = ("out", "err")
    attempt: int | None = None
    lines: int | None = None  # the last so many; None: all


def find_logs(run_dir: RunDir, wanted: LogRequest) -> list[Path]:
    """Return the files that are *wanted*, of one attempt; none where nothing was printed there yet.

    Raises `ConfigError` where the run directory cannot be seen from here.
    """
    _check_there(run_dir)
    chosen = wanted.attempt if wanted.attempt is not None else max(_attempts(run_dir, wanted), default=0)
    return _logs_of(run_dir, wanted, chosen)


def _logs_of(run_dir: RunDir, wanted: LogRequest, attempt: int) -> list[Path]:
    paths = [run_dir.logs / f"{attempt}-rank{wanted.rank}.{stream}" for stream in wanted.streams]
    return [path for path in paths if os.path.lexists(path)]


def _check_there(run_dir: RunDir) -> None:
    if not run_dir.path.is_dir():
        raise ConfigError(
            f"what run {run_dir.uid} printed is in {run_dir.path}, which is not to be seen from here: "
            "ask whoever submitted it, or look there"
        )


def no_log(run_dir: RunDir, wanted: LogRequest, record: RunRecord | None = None) -> ConfigError:
    """Return, for the caller to raise, the error that names the ranks or attempts there are instead of the *wanted*."""
    there = {_attempt_and_rank(path) for path in run_dir.logs.glob("[0-9]*-rank*.out")}
    attempts = sorted({attempt for attempt, _ in there})
    ranks = sorted({rank for attempt, rank in there if wanted.attempt in (None, attempt)})
    instead = f"there is attempt {', '.join(map(str, attempts))}" if attempts else _why_silent(record)
    instead = f"there is rank {', '.join(map(str, ranks))}" if ranks else instead
    of_attempt = "" if wanted.attempt is None else f" in attempt {wanted.attempt}"
    return ConfigError(f"run {run_dir.uid} has no output of rank {wanted.rank}{of_attempt}: {instead}")


def _attempt_and_rank(path: Path) -> tuple[int, int]:
    found = re.match(r"(\d+)-rank(\d+)\.", path.name)
    return (int(found[1]), int(found[2])) if found else (-1, -1)


def _why_silent(record: RunRecord | None) -> str:
    if record is not None and record.scheduler == IMPORTED:
        return "it was imported, and what it printed was not"
    if record is not None and record.state.is_final:
        return f"it is {record.state.value} and left none"
    return "it has not started yet"


def schedulers_logs(record: RunRecord, submissions: Path) -> list[Path]:
    """Return the files that the scheduler, or this machine's queue, wrote of the run's job; empty ones are left out.

    They are all there is if no agent started: Slurm's output file, PBS's ``.OU``, the local queue's log.
    """
    folder = Path(record.path)
    found = [*folder.glob("slurm*.log"), *folder.glob(QUEUE_LOG), *folder.glob("logs/*.OU")]
    found += RunDir(folder).agent_logs()
    token = (record.job_name or "").rpartition(".")[2]
    if token and token != record.uid:
        index = record.array_index or 0
        shared = submissions / token
        found += [*shared.glob("slurm.log"), *shared.glob(f"slurm-{index}.log")]
        found += [path for path in shared.glob("*.OU") if f"[{index}]" in path.name or "[" not in path.name]
    if record.scheduler == "local" and token:
        found += (submissions / token).glob(QUEUE_LOG)
    return sorted(path for path in found if has_words(path, path.parent))


def why_not_started(record: RunRecord, submissions: Path) -> str | None:
    """Return what the shell of a job whose agent told nothing complained of last, or the agent; None where none did.

    A site's own words at the end of a job, of what it used, say nothing. What is older than the run's journals is of an
    attempt before.
    """
    run_dir = RunDir(Path(record.path))
    try:
        journals = run_dir.journal_files() if record.attempt else []
        since = max((path.stat().st_mtime for path in journals), default=0.0)
        dated = [(path.stat().st_mtime, path) for path in schedulers_logs(record, submissions)]
    except FileNotFoundError:  # it is being removed
        return None
    latest = max((one for one in dated if one[0] >= since), default=None)
    if latest is None:
        return None
    printed = _tail(latest[1].parent, latest[1], _TAIL_BYTES)
    complaints = [line for line in printed_lines(printed) if _COMPLAINT.search(line)]
    return last_exception(printed) or last_line("\n".join(complaints))


def has_words(path: Path, folder: Path) -> bool:
    """Tell whether *path* is a file with something in it, and not a link out of *folder*."""
    try:
        with open_inside(folder, path) as file:
            return bool(file.read(1))
    except OSError:
        return False


def _open(path: Path, folder: Path) -> BinaryIO:
    try:
        return open_inside(folder, path)
    except OSError as error:
        raise ConfigError(f"{path} {error.strerror}: it is not shown (look at it with another program)") from error


def read(path: Path, *, lines: int | None = None, within: Path | None = None) -> Iterator[bytes]:
    """Yield the bytes of *path*, or of its last *lines* lines, in pieces of at most 1 MiB.

    Bytes are not decoded: what a program prints need not be UTF-8. Raises `ConfigError` where *path* is no regular file
    or a link out of the folder *within* (None: the one that it is in), since whoever made it may want another's file
    shown.
    """
    with _open(path, within or path.parent) as file:
        if lines is not None:
            file.seek(_start_of_last(file, lines))
        while piece := file.read(_CHUNK_BYTES):
            yield piece


def follow(
    run_dir: RunDir, wanted: LogRequest, *, note: Callable[[str], None], refresh: Callable[[], str | None]
) -> Iterator[bytes]:
    """Yield what was printed and what is added to it, of both streams as it comes, until the run has ended.

    It waits for a run that has not started. *note* is called with what is waited for, and with why where that is told;
    *refresh* every 15 seconds, to have the schedulers asked: they alone know of a run whose agent died, and it returns
    why the run waits, or None.
    """
    _check_there(run_dir)
    watcher, has_ended, refresh_at = Watcher(run_dir), EndOfAll(), time.monotonic() + _REFRESH_S
    first, attempt, noted = wanted.attempt, None, dict[str, str]()  # the attempt waited for, and the one that is read
    with ExitStack() as opened:
        files: dict[Path, BinaryIO] = {}
        while True:
            if time.monotonic() >= refresh_at:
                if (why := refresh()) and attempt is None and "why" not in noted:
                    noted["why"] = why  # once: who is in front, and for how long, changes all the time
                    note(f"{run_dir.uid} waits: {why}")
                refresh_at = time.monotonic() + _REFRESH_S
            seen = look_unless_removed(watcher)  # asked first: what was printed before the end is read after it
            is_over = has_ended.by([seen])
            attempt = _begun(run_dir, wanted, first) if attempt is None else attempt
            if attempt is not None:
                yield from _added(run_dir, wanted, attempt, files, opened)
            elif not is_over and "what" not in noted:
                noted["what"] = "start" if first is None else f"start attempt {first}"
                note(f"{run_dir.uid} is {seen.state.value}: waiting for it to {noted['what']}")
            has_next = attempt is not None and seen.attempt > attempt
            if is_over or (has_next and wanted.attempt is not None):
                return
            if attempt is not None and has_next:
                wanted, first, attempt, noted = replace(wanted, lines=None), attempt + 1, None, {}
                files.clear()
            time.sleep(_PERIOD_S)


def _begun(run_dir: RunDir, wanted: LogRequest, first: int | None) -> int | None:
    """Return the attempt to be read, of those from *first* on that have printed; None where none has."""
    there = [attempt for attempt in _attempts(run_dir, wanted) if attempt >= (first or 0)]
    return None if not there else max(there) if first is None else min(there)


def _added(
    run_dir: RunDir, wanted: LogRequest, attempt: int, files: dict[Path, BinaryIO], opened: ExitStack
) -> Iterator[bytes]:
    """Yield what was added to the output of an attempt; *files* are those that are open, and are added to."""
    for path in _logs_of(run_dir, wanted, attempt):
        if path not in files:
            files[path] = opened.enter_context(_open(path, run_dir.path))
            if wanted.lines is not None:
                files[path].seek(_start_of_last(files[path], wanted.lines))
    for file in files.values():
        while piece := file.read(_CHUNK_BYTES):
            yield piece


def _attempts(run_dir: RunDir, wanted: LogRequest) -> set[int]:
    found = (path for stream in wanted.streams for path in run_dir.logs.glob(f"[0-9]*-rank{wanted.rank}.{stream}"))
    return {_attempt_and_rank(path)[0] for path in found}


def _start_of_last(file: BinaryIO, lines: int) -> int:
    """Return where the last *lines* lines of *file* begin."""
    at = end = file.seek(0, os.SEEK_END)
    if lines == 0:
        return end
    while at > 0:
        size = min(at, _BLOCK_BYTES)
        at -= size
        file.seek(at)
        block = file.read(size)
        place = len(block) - 1 if at + size == end else len(block)  # the newline that ends the file begins no line
        while (place := block.rfind(b"\n", 0, place)) >= 0:
            lines -= 1
            if lines == 0:
                return at + place + 1
    return 0


# The last lines of the output, usually the reason of a failure.

_LAST_WORDS_BYTES = 4096
_TAIL_BYTES = 16_384
_DRAWN_BYTES = 1 << 20  # that are looked at for as much: bars of progress draw one line a thousand times
_LONGEST_DRAWN = 2_000  # characters that are kept of a line, the last ones


def last_words(run_dir: RunDir, *, lines: int = 3) -> list[str]:
    """Return the last *lines* lines that the last attempt printed, without blank ones: to standard error, else output.

    Of several ranks it is one that printed something. Colours and what moves a cursor are left out, and what else a
    terminal would obey is replaced by ``?``.
    """
    found = [path for path in run_dir.logs.glob("*-rank*.*") if path.suffix in (".err", ".out")]
    for path in sorted(
        found, key=lambda path: (_attempt_and_rank(path)[0], path.suffix == ".err", path.name), reverse=True
    ):
        plain = _tail(run_dir.path, path, _LAST_WORDS_BYTES).expandtabs()
        if printed := [line for line in printed_lines(plain) if line.strip()]:
            return ["".join(c if c.isprintable() else "?" for c in line) for line in printed[-lines:]]
    return []


def last_printed(run_dir: RunDir) -> str:
    """Return the end (16 KiB) of what rank 0 of the last attempt printed: standard error, then standard output.

    Of a line that was drawn over and over it is what was drawn last.
    """
    ends = (_tail(run_dir.path, path, _DRAWN_BYTES) for path in _of_last_attempt(run_dir, "*-rank0.*"))
    return "\n".join(_last_drawn(end) for end in ends)


def _last_drawn(printed: str) -> str:
    """Return the last lines of what was *printed*, and of each what was drawn last."""
    lines = [line[-_LONGEST_DRAWN:] for line in printed.split("\n")]
    sizes = itertools.accumulate(len(line) + 1 for line in reversed(lines))
    n = sum(1 for _ in itertools.takewhile(lambda size: size <= _TAIL_BYTES, sizes))
    return "\n".join(lines[-n:])


def log_tail(run_dir: RunDir) -> str:
    """Return the end (16 KiB a rank) of what the last attempt printed to standard error, one rank after the other.

    The cause of a failure is judged by it (`failure_causes.classify`).
    """
    return "\n".join(_tail(run_dir.path, path, _TAIL_BYTES) for path in _of_last_attempt(run_dir, "*-rank*.err"))


def _of_last_attempt(run_dir: RunDir, names: str) -> list[Path]:
    found = sorted(run_dir.logs.glob(names))
    last = max((_attempt_and_rank(path)[0] for path in found), default=0)
    return [path for path in found if _attempt_and_rank(path)[0] == last]


def _tail(folder: Path, path: Path, size: int) -> str:
    """Return the last *size* bytes of *path*, of which the first line is a whole one, unless it has no other."""
    try:
        with open_inside(folder, path) as file:
            begin = file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            data = file.read(size)
            rest = re.split(rb"[\r\n]", data, maxsplit=1)[-1] if begin else data
            return (rest or data).decode("utf-8", "replace")
    except OSError:  # removed, or no file of this run: it says nothing of its end
        return ""
