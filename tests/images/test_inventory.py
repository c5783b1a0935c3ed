from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from hpcml.errors import ImageError
from hpcml.images import inventory
from hpcml.images.cache import Cache
from hpcml.model.image import ImageUse
from hpcml.runs.lock import Lock, try_lock
from tests.images.test_cache import TEXT, filled

DAY_S = 86_400.0


def silent(_: int) -> None:
    pass


def a_use(key: str, *, ended: bool, at: float | None = None) -> ImageUse:
    return ImageUse(uid="20261121-r1", key=key, has_ended=ended, at=at)


def test_an_image_that_a_run_still_needs_is_not_removed(tmp_path: Path) -> None:
    cache, record = filled(tmp_path)
    _, other = filled(tmp_path, text=TEXT + "%post\ntrue\n")
    stocked = inventory.stock(cache, [a_use(record.key, ended=False)])

    with pytest.raises(ImageError, match="needed by run 20261121-r1"):
        inventory.remove(cache, stocked)

    assert {one.key for one in cache.records()} == {record.key, other.key}
    assert [one.record.key for one in inventory.may_go(stocked, now=4e9, older_than_s=0)] == [other.key]


def test_an_image_whose_runs_have_ended_goes_whole(tmp_path: Path) -> None:
    cache, record = filled(tmp_path)

    inventory.remove(cache, inventory.stock(cache, [a_use(record.key, ended=True)]))

    assert [path.name for path in tmp_path.iterdir()] == ["locks"]


def test_an_image_that_is_being_built_again_is_left_alone(tmp_path: Path) -> None:
    cache, record = filled(tmp_path)
    assert isinstance(try_lock(cache.locks, record.key), Lock)

    with pytest.raises(ImageError, match="is being built"):
        inventory.remove(cache, inventory.stock(cache, []))


def test_age_counts_from_the_last_use(tmp_path: Path) -> None:
    cache, record = filled(tmp_path)
    built = inventory.stock(cache, [])[0].idle_since
    used = inventory.stock(cache, [a_use(record.key, ended=True, at=built + 10 * DAY_S)])

    assert inventory.may_go(used, now=built + 30 * DAY_S, older_than_s=30 * DAY_S) == []
    assert inventory.may_go(used, now=built + 40 * DAY_S, older_than_s=30 * DAY_S) == used


def test_downloads_go_only_while_nobody_builds(tmp_path: Path) -> None:
    cache, _ = filled(tmp_path)
    (cache.layers / "blob").mkdir(parents=True)
    (cache.layers / "blob" / "one").write_bytes(b"12345")
    held = try_lock(cache.locks, "a" * 32)
    assert isinstance(held, Lock)

    assert inventory.sweep(cache) == 0
    held.release()
    assert inventory.sweep(cache) == 5
    assert not cache.layers.exists()


def test_an_exported_image_arrives_as_it_left(tmp_path: Path) -> None:
    cache, record = filled(tmp_path / "here")
    there = Cache(tmp_path / "there")
    counted: list[int] = []

    inventory.export(cache, record, tmp_path / "image.tar", on_bytes=counted.append)
    arrived = inventory.bring_in(there, tmp_path / "image.tar", on_bytes=silent)

    assert sum(counted) == record.size_bytes
    assert there.find(record.key) == arrived
    assert arrived.sha256 == record.sha256
    assert arrived.imported_at is not None
    assert there.verify(arrived) is None
    assert inventory.bring_in(there, tmp_path / "image.tar", on_bytes=silent) == arrived
    assert {path.name for path in (tmp_path / "there").iterdir()} == {
        "locks", f"{record.key}.sif", f"{record.key}.json", f"{record.key}.def",
    }  # fmt: skip


def test_nothing_is_overwritten_or_half_exported(tmp_path: Path) -> None:
    cache, record = filled(tmp_path / "here")
    (tmp_path / "there.tar").write_text("mine")

    with pytest.raises(ImageError, match="exists"):
        inventory.export(cache, record, tmp_path / "there.tar", on_bytes=silent)
    Path(record.path).write_bytes(b"other")
    with pytest.raises(ImageError, match="is not exported"):
        inventory.export(cache, record, tmp_path / "new.tar", on_bytes=silent)

    assert (tmp_path / "there.tar").read_text() == "mine"
    assert not (tmp_path / "new.tar").exists()


def repacked(source: Path, target: Path, **changes: bytes | None) -> Path:
    """Write *source* again with other members."""
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for member in old.getmembers():
            file = old.extractfile(member)
            assert file is not None
            content = changes.get(member.name.replace(".", "_"), file.read())
            if content is not None:
                member.size = len(content)
                new.addfile(member, io.BytesIO(content))
    return target


def test_a_file_that_changed_on_its_way_is_refused_and_nothing_stays(tmp_path: Path) -> None:
    cache, record = filled(tmp_path / "here")
    tar = tmp_path / "image.tar"
    inventory.export(cache, record, tar, on_bytes=silent)
    words = json.loads(cache.record(record.key).read_text())
    forged = json.dumps({**words, "definition": "Bootstrap: docker\nFrom: other\n"}).encode()
    upwards = json.dumps({**words, "key": "../../escape"}).encode()
    bad = [
        repacked(tar, tmp_path / "1.tar", image_sif=b"imagE"),
        repacked(tar, tmp_path / "2.tar", image_sif=None),
        repacked(tar, tmp_path / "3.tar", record_json=None),
        repacked(tar, tmp_path / "4.tar", record_json=b"{}"),
        repacked(tar, tmp_path / "5.tar", record_json=forged),
        repacked(tar, tmp_path / "6.tar", record_json=upwards),
        tmp_path / "7.tar",
        tmp_path / "8.tar",
        tmp_path / "none.tar",
    ]
    bad[6].write_bytes(tar.read_bytes()[:2050])
    bad[7].write_bytes(b"no tar at all")
    there = Cache(tmp_path / "there")

    for path in bad:
        with pytest.raises(ImageError) as refused:
            inventory.bring_in(there, path, on_bytes=silent)
        assert "\n" not in str(refused.value)

    left = {path.name for path in there.root.iterdir()} if there.root.exists() else set()
    assert left <= {"locks"}
    assert there.records() == []
