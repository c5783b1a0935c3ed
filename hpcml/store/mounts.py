"""The file system a path lies on, and whether it is one of this machine alone."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
# What is not known to be local (nfs, lustre, gpfs, beegfs, cifs, fuse.*, 9p, afs, ceph ...) counts as a network.
_LOCAL = frozenset(
    "bcachefs btrfs ext2 ext3 ext4 f2fs jfs overlay ramfs reiserfs tmpfs xfs zfs".split()  # noqa: SIM905 - a table
)


def is_local(kind: str | None) -> bool:
    """Whether only this machine's processes can be at work on a file system of this type."""
    return kind in _LOCAL


def file_system_of(path: Path, *, mounts: Path = MOUNTS) -> str | None:
    """Return the type of the file system that *path* lies on, as the kernel names it; None where it does not tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    place = path.resolve()
    found: tuple[int, str] | None = None
    for line in lines:
        _, mount_point, kind, *_ = (*line.split(" "), "", "", "")
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount_point))  # \040 is a space
        # the last of several mounts on one point is the visible one
        if mount_point and place.is_relative_to(point) and (found is None or len(point.parts) >= found[0]):
            found = (len(point.parts), kind)
    return None if found is None else found[1]
