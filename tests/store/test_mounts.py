from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.store.mounts import file_system_of, journal_mode_for

MOUNTS = """\
/dev/vda / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
nas:/home /home nfs4 rw 0 0
/dev/vdb /home/local\\040disk xfs rw 0 0
10.0.0.1@o2ib:/fs /scratch lustre rw,flock 0 0
sshfs /mnt fuse.sshfs rw 0 0
/dev/vdc /over ext4 rw 0 0
beegfs_nodev /over beegfs rw 0 0
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mounts"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("path", "kind", "mode"),
    [
        ("/var/store.db", "ext4", "wal"),
        ("/home/ada/store.db", "nfs4", "delete"),
        ("/home/local disk/store.db", "xfs", "wal"),
        ("/homework/store.db", "ext4", "wal"),
        ("/scratch/p/store.db", "lustre", "delete"),
        ("/mnt/store.db", "fuse.sshfs", "delete"),
        ("/over/store.db", "beegfs", "delete"),
    ],
)
def test_memory_is_shared_on_local_file_systems_only(mounts: Path, path: str, kind: str, mode: str) -> None:
    assert file_system_of(Path(path), mounts=mounts) == kind
    assert journal_mode_for(Path(path), mounts=mounts) == mode


def test_what_is_not_known_counts_as_a_network(tmp_path: Path) -> None:
    assert journal_mode_for(Path("/var/store.db"), mounts=tmp_path / "absent") == "delete"
