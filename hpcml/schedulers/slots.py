"""Cores and GPUs of this machine, claimed by name so that several `hpcml run` at once do not share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What this machine has. `gpus` are UUIDs."""

    cores: int
    gpus: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one run takes of it."""

    cores: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Cores and GPUs that are ours until `release`, or until this process ends."""

    gpus: Sequence[str]
    _locks: Sequence[FileLock]

    def release(self) -> None:
        """Give everything back."""
        for lock in self._locks:
            lock.release()


def claim(need: Need, pool: Pool, lock_dir: Path) -> Claim | None:
    """Return a claim on all that *need* asks for, or None, with nothing held, where that much is not free.

    The locks are advisory and of this machine alone, which is right for cores and GPUs: *lock_dir* must be local.
    """
    lock_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    cores = _take([f"core-{number}" for number in range(pool.cores)], need.cores, lock_dir)
    gpus = _take(list(pool.gpus), need.gpus, lock_dir)
    held = Claim([name for name, _ in gpus], [lock for _, lock in (*cores, *gpus)])
    if len(cores) == need.cores and len(gpus) == need.gpus:
        return held
    held.release()
    return None


def _take(names: Sequence[str], count: int, lock_dir: Path) -> list[tuple[str, FileLock]]:
    taken: list[tuple[str, FileLock]] = []
    for name in names:
        if len(taken) == count:
            break
        lock = FileLock(lock_dir / f"{name}.lock", blocking=False)
        try:
            lock.acquire()
        except Timeout:
            continue
        taken.append((name, lock))
    return taken
