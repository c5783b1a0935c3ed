from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hpcml.runs.atomic import (
    create_text,
    creating,
    draft_of,
    forgotten_drafts,
    have_on_disk,
    is_forgotten,
    replacing,
    write_text,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def interrupted(path: Path) -> None:
    with replacing(path) as draft:
        draft.write_text("ne")
        raise KeyboardInterrupt


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    seen = []

    with replacing(path, durable=True) as draft:
        draft.write_text("new")
        seen.append(path.read_text())

    assert (seen, path.read_text(), names(tmp_path)) == (["old"], "new", ["file"])


def test_on_trouble_the_file_is_as_it_was_and_nothing_else_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")

    with pytest.raises(KeyboardInterrupt):
        interrupted(path)
    with pytest.raises(OSError, match="No such file"), replacing(path):
        pass

    assert (path.read_text(), names(tmp_path)) == ("old", ["file"])


def test_what_is_there_is_never_replaced_by_what_is_created(tmp_path: Path) -> None:
    path = tmp_path / "file"
    create_text(path, "first", durable=True)

    with pytest.raises(FileExistsError):
        create_text(path, "second")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(FileExistsError), creating(tmp_path / "link") as draft:
        draft.write_text("x")

    assert path.read_text() == "first"
    assert names(tmp_path) == ["file", "link"]


def test_of_many_who_create_it_one_does(tmp_path: Path) -> None:
    path = tmp_path / "file"
    outcomes: list[str] = []

    def create(text: str) -> None:
        try:
            create_text(path, text)
            outcomes.append(text)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=create, args=(str(number),)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert outcomes == [path.read_text()]
    assert names(tmp_path) == ["file"]


def test_a_draft_is_forgotten_after_a_day(tmp_path: Path) -> None:
    draft, users = draft_of(tmp_path / "file"), tmp_path / ".of-the-user"
    draft.touch()
    users.touch()
    assert not is_forgotten(draft)

    for path in (draft, users):
        os.utime(path, (1, 1))

    assert is_forgotten(draft)
    assert not is_forgotten(users)
    assert list(forgotten_drafts(str(tmp_path), [draft.name, users.name])) == [draft]


def test_a_long_name_has_a_draft(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)

    write_text(path, "text")
    have_on_disk([path, tmp_path])

    assert path.read_text() == "text"


def test_many_files_are_on_the_disk_or_an_error_says_which_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / str(index) for index in range(200)]
    for path in paths:
        path.write_text("x")
    flushed, really = [], os.fsync

    def fsync(descriptor: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    have_on_disk(paths)

    assert sorted(flushed) == sorted(map(str, paths))
    with pytest.raises(FileNotFoundError, match="gone"):
        have_on_disk([*paths, tmp_path / "gone"])
