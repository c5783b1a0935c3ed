from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
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


def test_a_draft_is_forgotten_once_its_process_is_dead(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from hpcml.runs.atomic import draft_of; "
        f"draft = draft_of(Path({str(tmp_path)!r}) / 'file'); draft.touch(); print(draft)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = draft_of(tmp_path / "file")
    ours.touch()

    assert is_forgotten(Path(done.stdout.strip()))
    assert not is_forgotten(ours)
    assert not is_forgotten(tmp_path / ".of-the-user")


def test_the_draft_of_a_process_that_cannot_be_seen_is_forgotten_after_an_hour(tmp_path: Path) -> None:
    draft = tmp_path / ".file.0123abcd-elsewhere@1e0121cd@4026531836-1"
    draft.touch()
    assert not is_forgotten(draft)

    os.utime(draft, (1, 1))

    assert is_forgotten(draft)


def test_a_long_name_has_a_draft(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)

    write_text(path, "text")
    have_on_disk([path, tmp_path])

    assert path.read_text() == "text"


def test_only_drafts_of_dead_processes_are_found_to_be_forgotten(tmp_path: Path) -> None:
    killed = (
        "import os, sys; from pathlib import Path; from hpcml.runs.atomic import draft_of; "
        f"draft_of(Path({str(tmp_path)!r}) / 'run.json').touch(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", killed], check=False)
    (left,) = tmp_path.iterdir()
    draft_of(tmp_path / "file").touch()  # ours, and we live
    for name in (".users-own-12", ".vimrc", "run.json", ".x.0123abcd-elsewhere@@-12"):
        (tmp_path / name).touch()

    assert list(forgotten_drafts(str(tmp_path), [path.name for path in tmp_path.iterdir()])) == [left]


@pytest.mark.parametrize("quick_s", [60.0, 0.0])
def test_many_files_are_on_the_disk_or_an_error_says_which_is_not(
    quick_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / str(index) for index in range(1000)]
    for path in paths:
        path.write_text("x")
    before, counts, flushed, really = threading.active_count(), set(), [], os.fsync

    def fsync(descriptor: int) -> None:
        counts.add(threading.active_count() > before)
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        really(descriptor)
        time.sleep(0.001)

    monkeypatch.setattr(os, "fsync", fsync)
    have_on_disk(paths, quick_s=quick_s)

    assert sorted(flushed) == sorted(map(str, paths))
    assert counts == ({False} if quick_s else {False, True})

    flushed.clear()
    with pytest.raises(FileNotFoundError, match="gone"):
        have_on_disk([*paths[:100], tmp_path / "gone", *paths * 5], quick_s=quick_s)
    assert len(flushed) < 3000  # nobody goes on for nothing
    assert threading.active_count() == before
