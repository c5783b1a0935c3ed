"""Which file system a path lies on, and whether other machines may use it, too."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
# What is not known to be local (nfs, lustre, gpfs, beegfs, cifs, fuse.*, 9p, afs, ceph ...) counts as a network.
_LOCAL = frozenset(
    "bcachefs btrfs ext2 ext3 ext4 f2fs jfs overlay ramfs reiserfs tmpfs xfs zfs".split()  # noqa: SIM905 - a table
)


def is_local(kind: str | None) -> bool:
    """Whether a file system of the type *kind* belongs to this machine alone; False for unknown ones and None.

    >>> is_local("ext4"), is_local("nfs4"), is_local(None)
    (True, False, False)
    """
    return kind in _LOCAL


def file_system_of(path: Path, *, mounts: Path = MOUNTS) -> str | None:
    """Return the type of the file system that *path* lies on, by the table *mounts* (man 5 proc).

    None where unknown. *path* need not exist; symbolic links are followed. *mounts* is a parameter for tests.
    """
    place = path.resolve()
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    found: tuple[Path, str] | None = None
    for line in lines:
        _, mount_point, kind, *_ = line.split(" ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount_point))  # \040 is a space
        # the last of several mounts on one point is the visible one
        if place.is_relative_to(point) and (found is None or len(point.parts) >= len(found[0].parts)):
            found = (point, kind)
    return None if found is None else found[1]
