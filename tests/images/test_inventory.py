from __future__ import annotations

import json
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

    inventory.export(cache, record, tmp_path / "image.sif", on_bytes=counted.append)
    arrived = inventory.bring_in(there, tmp_path / "image.sif", on_bytes=silent)

    assert sum(counted) == record.size_bytes
    assert there.find(record.key) == arrived
    assert arrived.sha256 == record.sha256
    assert arrived.imported_at is not None
    assert there.verify(arrived) is None
    assert inventory.bring_in(there, tmp_path / "image.sif", on_bytes=silent) == arrived
    assert {path.name for path in (tmp_path / "there").iterdir()} == {
        "locks", f"{record.key}.sif", f"{record.key}.json", f"{record.key}.def",
    }  # fmt: skip


def test_nothing_is_overwritten_or_half_exported(tmp_path: Path) -> None:
    cache, record = filled(tmp_path / "here")
    (tmp_path / "there.sif").write_text("mine")

    with pytest.raises(ImageError, match="exists"):
        inventory.export(cache, record, tmp_path / "there.sif", on_bytes=silent)
    Path(record.path).write_bytes(b"other")
    with pytest.raises(ImageError, match="is not exported"):
        inventory.export(cache, record, tmp_path / "new.sif", on_bytes=silent)

    assert (tmp_path / "there.sif").read_text() == "mine"
    assert not (tmp_path / "new.sif").exists()


def test_a_file_that_changed_on_its_way_is_refused_and_nothing_stays(tmp_path: Path) -> None:
    cache, record = filled(tmp_path / "here")
    image = tmp_path / "image.sif"
    inventory.export(cache, record, image, on_bytes=silent)
    written = (tmp_path / "image.json").read_text()
    words = json.loads(written)
    there = Cache(tmp_path / "there")
    bad = {
        "another image": (b"imagE", written),
        "no image": (None, written),
        "no record": (image.read_bytes(), None),
        "empty": (image.read_bytes(), "{}"),
        "forged": (image.read_bytes(), json.dumps({**words, "definition": "Bootstrap: docker\nFrom: other\n"})),
        "upwards": (image.read_bytes(), json.dumps({**words, "key": "../../escape"})),
        "cut": (image.read_bytes()[:2], written),
    }

    for name, (content, text) in bad.items():
        path = tmp_path / f"{name}.sif"
        if content is not None:
            path.write_bytes(content)
        if text is not None:
            path.with_suffix(".json").write_text(text)
        with pytest.raises(ImageError) as refused:
            inventory.bring_in(there, path, on_bytes=silent)
        assert "\n" not in str(refused.value)

    left = {path.name for path in there.root.iterdir()} if there.root.exists() else set()
    assert left <= {"locks"}
    assert there.records() == []
