"""The file system a path lies on, and whether SQLite may share memory between processes there."""

from __future__ import annotations

import re
from pathlib import Path

# Write-ahead logging needs memory shared by all who use the file, hence one machine (sqlite.org/wal.html). What is
# not known to be local (nfs, lustre, gpfs, beegfs, cifs, fuse.*, 9p, afs, ceph ...) counts as a network.
_LOCAL = frozenset(
    "bcachefs btrfs ext2 ext3 ext4 f2fs jfs overlay ramfs reiserfs tmpfs xfs zfs".split()  # noqa: SIM905 - a table
)


def journal_mode_for(path: Path, *, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Return SQLite's journal mode for a store in *path*: ``wal`` on a local file system, else ``delete``."""
    return "wal" if file_system_of(path, mounts=mounts) in _LOCAL else "delete"


def file_system_of(path: Path, *, mounts: Path) -> str | None:
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
