from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from hpcml.errors import ConfigError
from hpcml.interop.output import MARK, file_name, new_file, new_folder


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def export_to(folder: Path, form: str = "csv", **files: str) -> None:
    with new_folder(folder, form) as work:
        for name, text in files.items():
            (work / name).write_text(text)


def test_an_export_replaces_the_one_before_whole(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    export_to(out, a="1", b="2")

    export_to(out, a="3")

    assert {path.name: path.read_text() for path in out.iterdir() if path.name != MARK} == {"a": "3"}
    assert names(out.parent) == ["out"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    export_to(tmp_path / "out", a="1")

    assert (tmp_path / "out" / "a").read_text() == "1"


def test_what_no_export_wrote_is_not_touched(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_to(out, a="1")
    (out / "deep").mkdir()
    (out / "deep" / "thesis.tex").write_text("mine")

    with pytest.raises(ConfigError, match=r"holds deep/thesis.tex, which no export wrote"):
        export_to(out, a="2")

    assert (out / "a").read_text() == "1"
    assert names(tmp_path) == ["out"]


def test_an_export_to_another_format_is_not_touched(tmp_path: Path) -> None:
    export_to(tmp_path / "out", "csv", a="1")

    with pytest.raises(ConfigError, match="holds an export to csv"):
        export_to(tmp_path / "out", "parquet", a="2")


@pytest.mark.parametrize("mark", ["", "[]", "{}", '{"files": 1, "form": "csv"}'])
def test_a_mark_that_says_nothing_protects_the_folder(tmp_path: Path, mark: str) -> None:
    (tmp_path / MARK).write_text(mark)

    with pytest.raises(ConfigError, match="cannot be read"):
        export_to(tmp_path, a="1")


def test_what_appears_while_an_export_is_written_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def export_for_long() -> None:
        with new_folder(out, "csv"):
            export_to(out)
            (out / "notes.txt").write_text("mine")

    with pytest.raises(ConfigError, match=r"holds notes\.txt"):
        export_for_long()

    assert (out / "notes.txt").read_text() == "mine"
    assert names(tmp_path) == ["out"]


def test_a_file_or_link_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path)

    for name in ("file", "link"):
        with pytest.raises(ConfigError, match="is no folder"):
            export_to(tmp_path / name, a="1")


def test_an_export_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    export_to(tmp_path / "out", a="1")

    with pytest.raises(TypeError):
        export_to(tmp_path / "out", a="2", b=3)  # type: ignore[arg-type] # which is the point

    assert (tmp_path / "out" / "a").read_text() == "1"
    assert names(tmp_path) == ["out"]


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No space left"), new_folder(tmp_path / "out", "csv"):
        raise OSError(28, os.strerror(28))

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "new", [lambda target: new_folder(target, "csv"), lambda target: new_file(target, is_ours=is_ours)]
)
def test_where_nothing_can_be_written_the_name_that_was_given_is_said(
    new: Callable[[Path], AbstractContextManager[Any]],
) -> None:
    target = Path("/proc/report")

    with pytest.raises(ConfigError, match=r"^/proc/report cannot be written: No such file"), new(target):
        pass


def is_ours(head: bytes) -> bool:
    return head.startswith(b'{"ours"')


def test_a_file_is_replaced_if_an_export_wrote_it(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    for number in (1, 2):
        with new_file(target, is_ours=is_ours) as file:
            json.dump({"ours": number}, file)

    assert json.loads(target.read_text()) == {"ours": 2}
    assert names(tmp_path) == ["out.json"]


def test_another_file_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "thesis.tex"
    target.write_text("mine")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    for path, problem in ((target, "was not written by this export"), (pipe, "is no ordinary file")):
        with pytest.raises(ConfigError, match=problem), new_file(path, is_ours=is_ours):
            pass

    assert target.read_text() == "mine"


def test_names_become_files_that_stay_where_they_belong() -> None:
    taken: set[str] = set()

    assert [file_name(text, taken) for text in ("../../etc", "a/b", "a b", "", ".x")] == [
        "_.._etc",
        "a_b",
        "a_b-2",
        "_",
        "x",
    ]
