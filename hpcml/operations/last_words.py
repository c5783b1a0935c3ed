"""The end of what a run printed: usually the reason of a failure."""

from __future__ import annotations

from pathlib import Path

from hpcml.rundir import RunDir

_LAST_WORDS_BYTES = 4096
_TAIL_BYTES = 16_384


def last_words(run_dir: RunDir, *, lines: int = 3) -> list[str]:
    """Return the end of what the last attempt printed to standard error."""
    for path in sorted(run_dir.logs.glob("*-rank*.err"), key=_attempt_of, reverse=True):
        said = [line for line in _tail(path, _LAST_WORDS_BYTES).splitlines() if line.strip()]
        if said:
            return ["".join(c if c.isprintable() else "?" for c in line) for line in said[-lines:]]
    return []


def log_tail(run_dir: RunDir) -> str:
    """Return the end of what the ranks of the last attempt printed to standard error, one rank after the other."""
    found = list(run_dir.logs.glob("*-rank*.err"))
    last = max((_attempt_of(path)[0] for path in found), default=0)
    return "\n".join(_tail(path, _TAIL_BYTES) for path in sorted(found) if _attempt_of(path)[0] == last)


def _attempt_of(path: Path) -> tuple[int, str]:
    number = path.name.partition("-")[0]
    return (int(number) if number.isdecimal() else -1, path.name)


def _tail(path: Path, size: int) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode("utf-8", "replace")
