"""How the file of a store is used, decided by where it lies, by what it is, or by the user."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hpcml.errors import StoreError
from hpcml.store.mounts import MOUNTS, file_system_of, is_local
from hpcml.store.sqlite_path import Header

VARIABLE = "HPCML_STORE_MODE"


class Mode(Enum):
    """How processes get at the rows of a file."""

    direct = "direct"  # SQLite works in the file, and its locks keep order: all who use it are on one host
    published = "published"  # the file is a snapshot that is only ever replaced; no lock of a file system is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How a file is used, and why."""

    path: Path
    file_system: str | None
    mode: Mode
    why: str

    @property
    def is_local(self) -> bool:
        """Whether only this machine can be at work there."""
        return is_local(self.file_system)

    def __str__(self) -> str:
        return f"on {self.file_system or 'an unknown file system'}, {self.mode.value}: {self.why}"

    @property
    def is_doubtful(self) -> bool:
        """Whether SQLite's locks are relied on where they may not hold."""
        return self.mode is Mode.direct and not self.is_local


def placement_of(path: Path, wanted: str = "auto", *, mounts: Path = MOUNTS) -> Placement:
    """Return how the store in *path* is to be used; *wanted* is auto or a mode. Raises `OSError`."""
    kind = file_system_of(path, mounts=mounts)
    if wanted in Mode.__members__:
        mode, why = Mode[wanted], f"{VARIABLE} says so"
    elif wanted != "auto":
        raise StoreError(f"{VARIABLE}={wanted!r} is none of auto, {', '.join(Mode.__members__)}")
    elif not is_local(kind):
        mode, why = Mode.published, f"{kind or 'an unknown file system'} may be used by several machines at once"
    elif Header.of(path).publication:
        # another machine sees it over a network, or did: it counts how all who use it do so
        mode, why = Mode.published, f"it was published before; {VARIABLE}=direct ends that"
    else:
        mode, why = Mode.direct, f"{kind} is a file system of this machine"
    return Placement(path=path, file_system=kind, mode=mode, why=why)
