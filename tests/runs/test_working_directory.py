"""The working directory of a run: made of a copy of the code, completed by later attempts, and cleared at the end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hpcml.errors import HpcmlError
from hpcml.runs.layout import RunDir
from hpcml.runs.plan import Staging
from hpcml.runs.working_directory import WrittenFile, changed, look_at_shared, settle, stage, written_files


@pytest.fixture
def code(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    (code / "lib").mkdir(parents=True)
    (code / "train.py").write_text("print(1)")
    (code / "lib" / "part.py").write_text("x = 1")
    (code / "run.sh").write_text("#!/bin/sh")
    (code / "link.py").symlink_to("train.py")
    for file in ("train.py", "lib/part.py"):
        (code / file).chmod(0o400)
    (code / "run.sh").chmod(0o500)
    return code


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    path = tmp_path / "20261121-083015-222abcde"
    path.mkdir()
    return RunDir(path)


def put(run_dir: RunDir, code: Path, **more: list[str] | dict[str, str]) -> Path:
    """Stage the code as the project "mine"; return the folder in which the program starts."""
    cwd = run_dir.work / "mine"
    stage(run_dir, Staging(code=str(code), project="mine", **more), cwd)  # type: ignore[arg-type]
    return cwd


def cleared(run_dir: RunDir) -> list[WrittenFile]:
    return settle(run_dir, within_s=60)


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_program_may_write_to_all_of_its_code_and_nobody_else_sees_it(run_dir: RunDir, code: Path) -> None:
    cwd = put(run_dir, code)

    with (cwd / "train.py").open("a") as file:
        file.write("# mine")
    (cwd / "lib" / "part.py").write_text("x = 2")

    assert (code / "train.py").read_text() == "print(1)"
    assert (code / "lib" / "part.py").read_text() == "x = 1"
    assert (cwd / "link.py").read_text() == "print(1)# mine"
    assert {(cwd / name).stat().st_nlink for name in ("train.py", "lib/part.py")} == {1}
    modes = [stat.S_IMODE((cwd / name).stat().st_mode) for name in ("train.py", "run.sh", "lib")]
    assert modes == [0o600, 0o700, 0o700]


def test_what_the_program_wrote_stays_and_the_rest_goes(run_dir: RunDir, code: Path) -> None:
    cwd = put(run_dir, code, empty=["mine/outputs", "mine/logs"])
    (cwd / "model.pt").write_text("weights")
    (cwd / "train.py").write_text("print(2)  # changed")
    (cwd / "outputs" / "picture").write_text("...")
    (cwd / "lib" / "__pycache__").mkdir()
    (cwd / "lib" / "__pycache__" / "part.pyc").write_text("compiled")
    (cwd / "latest").symlink_to("model.pt")
    (cwd / "own").mkdir()

    seen = written_files(run_dir)
    found = cleared(run_dir)

    assert found == seen == written_files(run_dir)
    assert [(file.path, file.size_bytes, file.is_new) for file in found] == [
        ("mine/latest", len("model.pt"), True),
        ("mine/model.pt", 7, True),
        ("mine/outputs/picture", 3, True),
        ("mine/train.py", 19, False),
    ]
    assert names_in(cwd) == ["latest", "model.pt", "outputs", "outputs/picture", "own", "train.py"]


def test_a_run_that_wrote_nothing_leaves_nothing(run_dir: RunDir, code: Path) -> None:
    put(run_dir, code, empty=["mine/outputs"])

    assert cleared(run_dir) == []
    assert names_in(run_dir.work) == []


def test_a_later_attempt_finds_what_was_written_and_the_code_complete_again(run_dir: RunDir, code: Path) -> None:
    cwd = put(run_dir, code)
    (cwd / "ckpt").write_text("step 5")
    (cwd / "lib" / "part.py").write_text("x = 2")
    cleared(run_dir)

    assert put(run_dir, code) == cwd

    assert (cwd / "ckpt").read_text() == "step 5"
    assert (cwd / "lib" / "part.py").read_text() == "x = 2"
    assert (cwd / "train.py").read_text() == "print(1)"
    assert [file.path for file in cleared(run_dir)] == ["mine/ckpt", "mine/lib/part.py"]


def test_nothing_is_put_through_a_link_or_over_a_file_of_the_program(
    run_dir: RunDir, code: Path, tmp_path: Path
) -> None:
    cwd = put(run_dir, code)
    cleared(run_dir)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cwd.mkdir()
    (cwd / "lib").symlink_to(elsewhere)
    (cwd / "train.py").mkdir()

    put(run_dir, code)

    assert list(elsewhere.iterdir()) == []
    assert (cwd / "train.py").is_dir()
    assert (cwd / "run.sh").exists()


def test_what_was_cut_off_while_it_was_staged_is_made_anew(run_dir: RunDir, code: Path) -> None:
    cwd = put(run_dir, code)
    run_dir.staged.unlink()  # written last
    (cwd / "train.py").write_text("pri")

    put(run_dir, code)

    assert (cwd / "train.py").read_text() == "print(1)"


def test_what_is_shared_is_a_link_and_not_among_what_was_written(run_dir: RunDir, code: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    cwd = put(run_dir, code, shared={"mine/data": f"{tmp_path}/data", "data": f"{tmp_path}/data"})

    (cwd / "data" / "new").touch()

    assert (cwd / "data").readlink() == (run_dir.work / "data").readlink() == tmp_path / "data"
    assert cleared(run_dir) == []


def test_a_change_of_what_is_shared_is_seen(code: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "part").mkdir(parents=True)
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    shared = {"mine/data": f"{tmp_path}/data", "mine/venv": f"{tmp_path}/venv", "mine/gone": f"{tmp_path}/gone"}
    staging = Staging(code=str(code), project="mine", shared=shared)
    before = look_at_shared(staging)

    (tmp_path / "venv" / "compiled").touch()
    for folder in ("data", "data/part"):  # of an import of data/mnist.py
        (tmp_path / folder / "__pycache__").mkdir()
        (tmp_path / folder / "__pycache__" / "mnist.cpython-311.pyc").touch()
    assert changed(before, look_at_shared(staging)) == []
    (tmp_path / "data" / "part" / "new").touch()
    assert changed(before, look_at_shared(staging)) == ["mine/data"]


def test_a_copy_of_code_that_is_gone_is_an_error(run_dir: RunDir, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        put(run_dir, tmp_path / "nowhere")


def test_a_damaged_record_is_said(run_dir: RunDir, code: Path) -> None:
    put(run_dir, code)
    run_dir.staged.write_text('{"files": 3}')

    with pytest.raises(HpcmlError, match=r"staged\.json is damaged"):
        written_files(run_dir)


def test_names_in_any_bytes_are_told_apart(run_dir: RunDir, code: Path) -> None:
    odd = os.fsdecode(b"\xff\xfe")
    (code / odd).write_text("as kept")
    cwd = put(run_dir, code)
    (cwd / os.fsdecode(b"\xff\xfd")).write_text("new")

    assert [file.path for file in cleared(run_dir)] == [f"mine/{os.fsdecode(bytes([255, 253]))}"]
