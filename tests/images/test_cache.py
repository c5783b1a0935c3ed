from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.errors import ConfigError, ImageError
from hpcml.images.cache import Cache, locate, remove_tree, sha256_of
from hpcml.images.key import key_of
from hpcml.model.image import ImageRecord
from hpcml.runs.atomic import draft_of
from hpcml.runs.liveness import ProcessIdentity
from hpcml.runs.lock import Lock, try_lock

TEXT, DIGEST = "Bootstrap: docker\nFrom: x\n", f"sha256:{'ab' * 32}"


def filled(root: Path, text: str = TEXT, content: bytes = b"image") -> tuple[Cache, ImageRecord]:
    """Return a cache with one image."""
    cache = Cache(root)
    root.mkdir(exist_ok=True)
    draft = root / "draft"
    draft.write_bytes(content)
    record = ImageRecord(
        key=key_of(text, DIGEST, "amd64", {}),
        path=str(draft),
        sha256=sha256_of(draft),
        size_bytes=len(content),
        mtime_ns=0,
        definition=text,
        base="nvcr.io/nvidia/pytorch:24.12-py3",
        base_digest=DIGEST,
        architecture="amd64",
        builder="me",
        built_at="2026-11-01T10:00:00+00:00",
        built_on="login1",
        build_s=1.0,
        runtime="apptainer 1.4.5",
        labels={"a": "b"},
    )
    return cache, cache.adopt(draft, record)


def test_what_was_adopted_is_found_as_it_was_recorded(tmp_path: Path) -> None:
    cache, record = filled(tmp_path / "images")

    assert cache.find(record.key) == record
    assert cache.records() == [record]
    assert cache.get(record.key[:6]) == record
    assert cache.verify(record) is None
    assert cache.definition(record.key).read_text() == TEXT


def test_a_cache_that_was_moved_still_finds_its_images(tmp_path: Path) -> None:
    _, record = filled(tmp_path / "images")
    (tmp_path / "images").rename(tmp_path / "moved")

    found = Cache(tmp_path / "moved").find(record.key)

    assert found is not None
    assert found.path == str(tmp_path / "moved" / f"{record.key}.sif")


def test_an_image_without_a_record_is_not_there(tmp_path: Path) -> None:
    cache, record = filled(tmp_path)
    cache.record(record.key).unlink()

    assert cache.find(record.key) is None
    assert {path.name for path in cache.leftovers()} == {f"{record.key}.sif", f"{record.key}.def"}


@pytest.mark.parametrize("words", ["", "{", "[]", "null", '{"format": 1}', '{"format": 99}', '{"format": 1, "key": 3}'])
def test_a_torn_or_foreign_record_is_none(tmp_path: Path, words: str) -> None:
    cache, record = filled(tmp_path)
    cache.record(record.key).write_text(words)

    assert cache.find(record.key) is None


def test_a_changed_image_is_found_no_more(tmp_path: Path) -> None:
    cache, record = filled(tmp_path)
    Path(record.path).write_bytes(b"imagE")

    assert cache.find(record.key) is None
    assert "has SHA-256" in (cache.verify(record) or "")
    Path(record.path).write_bytes(b"ima")
    assert "has 3 bytes instead of 5" in (cache.verify(record) or "")
    Path(record.path).unlink()
    assert "cannot be read" in (cache.verify(record) or "")


def test_bits_that_turn_on_the_disk_are_seen_by_verify(tmp_path: Path) -> None:
    cache, record = filled(tmp_path)
    Path(record.path).write_bytes(b"imagE")
    os.utime(record.path, ns=(record.mtime_ns, record.mtime_ns))

    assert cache.verify(record) is not None


def test_an_image_that_was_only_touched_is_read_once(tmp_path: Path) -> None:
    cache, record = filled(tmp_path)
    os.utime(record.path, ns=(1, 1))

    assert cache.find(record.key) == replace(record, mtime_ns=1)
    assert cache.read(record.key) == replace(record, mtime_ns=1)


def test_a_key_that_means_none_or_several_is_refused(tmp_path: Path) -> None:
    cache, _ = filled(tmp_path)
    filled(tmp_path, text=TEXT + "%post\ntrue\n")

    with pytest.raises(ImageError, match="no image in"):
        cache.get("zz")
    with pytest.raises(ImageError, match="more than one image"):
        cache.get("")


def test_what_a_dead_build_left_is_known_from_what_a_living_one_makes(tmp_path: Path) -> None:
    cache, record = filled(tmp_path)
    living, dead = "a" * 32, "b" * 32
    assert isinstance(try_lock(cache.locks, living), Lock)
    cache.building(living).mkdir()
    cache.image(living).touch()
    code = (
        "from pathlib import Path; from hpcml.images.cache import Cache; from hpcml.runs.lock import try_lock; "
        f"cache = Cache(Path({str(tmp_path)!r})); try_lock(cache.locks, {dead!r}); cache.building({dead!r}).mkdir(); "
        f"cache.image({dead!r}).touch(); print(cache.building({dead!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    left = set(cache.leftovers())

    assert left == {Path(done.stdout.strip()), cache.image(dead)}
    assert cache.find(record.key) is not None


def test_a_tree_with_closed_folders_goes(tmp_path: Path) -> None:
    inner = tmp_path / "tree" / "closed"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    inner.chmod(0)

    assert remove_tree(tmp_path / "tree")


def test_a_folder_that_was_named_is_taken_even_in_the_home() -> None:
    environ = {"HOME": "/home/me", "HPCML_IMAGES": "/home/me/images", "SCRATCH": "/scratch/me"}

    assert locate(environ, site="/site") == Path("/home/me/images")
    assert locate(environ, chosen="/elsewhere") == Path("/elsewhere")


def test_else_the_scratch_of_the_site_or_of_the_user() -> None:
    environ = {"HOME": "/home/me", "SCRATCH": "/scratch/me", "USER": "me"}

    assert locate(environ, site="/lustre/$USER") == Path("/lustre/me/hpcml-images")
    assert locate(environ, site="${SCRATCH}") == Path("/scratch/me/hpcml-images")
    assert locate(environ) == Path("/scratch/me/hpcml-images")


@pytest.mark.parametrize(
    ("environ", "site"),
    [
        ({"HOME": "/home/me"}, None),
        ({"HOME": "/home/me"}, "$SCRATCH"),
        ({"HOME": "/home/me", "SCRATCH": "/home/me/scratch"}, None),
        ({"HOME": "/home/me"}, "/home/me"),
    ],
)
def test_the_home_is_never_taken_silently(environ: dict[str, str], site: str | None) -> None:
    with pytest.raises(ConfigError, match="HPCML_IMAGES") as refused:
        locate(environ, site=site)

    assert "\n" not in str(refused.value)


def test_what_a_process_had_for_a_moment_when_it_was_killed_is_cleaned_up(tmp_path: Path) -> None:
    cache, record = filled(tmp_path)
    names = [f"{record.key}.json", f"{record.key}.def", "probe"]
    forgotten = [draft_of(tmp_path / name) for name in names]
    others = [draft_of(tmp_path / "probe"), tmp_path / ".mine"]
    for path in (*forgotten, *others):
        path.touch()
    for path in (*forgotten, others[-1]):
        os.utime(path, (1, 1))

    assert sorted(cache.leftovers()) == sorted(forgotten)


def test_a_link_that_is_called_as_a_dead_build_is_left_over_and_nothing_behind_it(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    name = f"building-{'b' * 32}-{ProcessIdentity.of_this_process().place}-{int(dead.stdout)}"
    cache, elsewhere, theirs = Cache(tmp_path / "cache"), tmp_path / "elsewhere", tmp_path / "project"
    for folder in (cache.root, elsewhere, theirs):
        folder.mkdir(mode=0o755)
    links = [cache.root / f".{name}", elsewhere / name]
    for link in links:
        link.symlink_to(theirs)

    assert list(cache.leftovers(elsewhere)) == links
    assert all(remove_tree(link) for link in links)
    assert (list(elsewhere.iterdir()), stat.S_IMODE(theirs.stat().st_mode)) == ([], 0o755)


@pytest.mark.parametrize("name", [".building-x", "below/link"])
def test_a_link_is_removed_and_what_it_leads_to_left_as_it_is(tmp_path: Path, name: str) -> None:
    theirs = tmp_path / "project"
    (theirs / "inside").mkdir(parents=True)
    for folder in (theirs, theirs / "inside"):
        folder.chmod(0o755)
    link = tmp_path / "cache" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(theirs)

    assert remove_tree(tmp_path / "cache" / name.partition("/")[0])

    assert not os.path.lexists(tmp_path / "cache" / name.partition("/")[0])
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (theirs, theirs / "inside")] == [0o755, 0o755]
