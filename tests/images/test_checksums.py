"""SHA-256 sums that are taken once, and again as soon as a file may be another."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hpcml.images import cache
from hpcml.images.cache import Checksums, sha256_of


@pytest.fixture
def memory(tmp_path: Path) -> Checksums:
    return Checksums(tmp_path / "memory", young_s=-1e9)  # clocks do not matter here


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "an image.sif"
    path.write_bytes(b"whole")
    return path


def test_a_file_that_was_read_is_not_read_again(memory: Checksums, image: Path) -> None:
    assert memory.recall(image) is None

    taken = memory.take(image)

    assert taken == sha256_of(image)
    assert memory.recall(image) == taken
    memory.forget(image)
    assert memory.recall(image) is None


def test_other_content_of_the_same_size_and_date_is_seen(memory: Checksums, image: Path) -> None:
    memory.take(image)
    before = image.stat()
    time.sleep(0.05)  # the clock of a file system ticks some hundred times a second

    image.write_bytes(b"wholE")
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))

    after = image.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    assert memory.recall(image) is None


def test_another_file_under_the_name_is_seen(memory: Checksums, image: Path) -> None:
    memory.take(image)
    status = image.stat()
    other = image.with_name("other")
    other.write_bytes(b"wholE")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))

    other.replace(image)

    assert memory.recall(image) is None


def test_a_file_that_was_changed_a_moment_ago_is_read_again_the_next_time(image: Path, tmp_path: Path) -> None:
    memory = Checksums(tmp_path / "memory")

    memory.take(image)

    assert memory.recall(image) is None


@pytest.mark.parametrize("words", ["", "{", "[]", "null", "7", '{"sha256": 1}'])
def test_a_torn_memory_is_none(memory: Checksums, image: Path, words: str) -> None:
    memory.take(image)
    (note,) = memory.folder.iterdir()
    note.write_text(words)

    assert memory.recall(image) is None
    memory.take(image)
    assert memory.recall(image) == sha256_of(image)


def test_where_nothing_can_be_remembered_files_are_read(image: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    memory = cache.Checksums(tmp_path / "file" / "memory", young_s=-1e9)

    assert memory.take(image) == sha256_of(image)
    assert memory.recall(image) is None


def test_a_file_that_is_not_there_is_the_callers_business(memory: Checksums, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        memory.recall(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        memory.take(tmp_path / "none")
