"""What a run printed, read as it grows."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from hpcml.errors import ConfigError
from hpcml.operations.follow import Watcher
from hpcml.rundir import RunDir

_CHUNK_BYTES = 1 << 20
_PERIOD_S = 0.5


def log_file(run_dir: RunDir, *, rank: int, err: bool) -> Path:
    """Return what rank *rank* printed in the last attempt that has printed anything, or raise `ConfigError`."""
    suffix = "err" if err else "out"
    attempts = [
        int(match[1])
        for path in run_dir.logs.glob(f"*-rank{rank}.{suffix}")
        if (match := re.match(r"(\d+)-", path.name))
    ]
    if not attempts:
        ranks = sorted({path.name.partition("-")[2].partition(".")[0] for path in run_dir.logs.glob("*-rank*.out")})
        there = f"there is {', '.join(ranks)}" if ranks else "it has not started yet"
        raise ConfigError(f"run {run_dir.uid} has no output of rank {rank}: {there}")
    chosen = run_dir.stderr if err else run_dir.stdout
    return chosen(max(attempts), rank)


def read(path: Path) -> Iterator[bytes]:
    """Yield what *path* holds, piece by piece."""
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            yield piece


def follow(path: Path, run_dir: RunDir) -> Iterator[bytes]:
    """Yield what *path* holds and what is added to it, until the run has ended."""
    watcher = Watcher(run_dir)
    with path.open("rb") as file:
        while True:
            ended = watcher.look().state.is_final  # asked first: what was printed before the end is read after it
            while piece := file.read(_CHUNK_BYTES):
                yield piece
            if ended:
                return
            time.sleep(_PERIOD_S)
