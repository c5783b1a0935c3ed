from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.errors import StoreError
from hpcml.store.opening import open_store
from hpcml.store.sqlite.location import Mode, placement_of

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
        ("/var/store.db", "ext4", Mode.direct),
        ("/home/ada/store.db", "nfs4", Mode.published),
        ("/home/local disk/store.db", "xfs", Mode.direct),
        ("/homework/store.db", "ext4", Mode.direct),
        ("/scratch/p/store.db", "lustre", Mode.published),
        ("/mnt/store.db", "fuse.sshfs", Mode.published),
        ("/over/store.db", "beegfs", Mode.published),
    ],
)
def test_sqlite_works_in_the_file_on_local_file_systems_only(mounts: Path, path: str, kind: str, mode: Mode) -> None:
    placed = placement_of(Path(path), mounts=mounts)

    assert (placed.file_system, placed.mode) == (kind, mode)
    assert kind in placed.why


def test_what_is_not_known_counts_as_a_network(tmp_path: Path) -> None:
    placed = placement_of(Path("/var/store.db"), mounts=tmp_path / "absent")

    assert placed.mode is Mode.published
    assert "unknown" in str(placed)


def test_the_user_has_the_last_word_and_is_told_of_the_doubt(mounts: Path) -> None:
    near = placement_of(Path("/var/store.db"), "published", mounts=mounts)
    far = placement_of(Path("/scratch/store.db"), "direct", mounts=mounts)

    assert (near.mode, near.is_doubtful) == (Mode.published, False)
    assert (far.mode, far.is_doubtful) == (Mode.direct, True)
    assert "HPCML_STORE_MODE says so" in str(far)


def test_a_mode_that_is_none_is_refused(mounts: Path) -> None:
    with pytest.raises(StoreError, match="HPCML_STORE_MODE='wal' is none of auto, direct, published"):
        placement_of(Path("/var/store.db"), "wal", mounts=mounts)


def test_a_store_that_was_published_stays_so_where_its_disk_is_local(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/vda / ext4 rw 0 0\n")
    path = tmp_path / "store.db"
    open_store(str(path), "published").close()

    assert placement_of(path, mounts=mounts).mode is Mode.published
    open_store(str(path), "direct").close()
    assert placement_of(path, mounts=mounts).mode is Mode.direct
