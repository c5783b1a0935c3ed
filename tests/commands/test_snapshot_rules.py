"""What is code, and what becomes of the entries of a program's folder that are not: three rules and their lists."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcml.commands.submit.snapshot import CodeSource, Tree, is_everything, keep_code, read_tree
from hpcml.errors import ConfigError
from hpcml.model.run import Schedule
from hpcml.paths import Places
from hpcml.runs.layout import RunDir
from tests.commands.planning import planned_for


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print('first')\n")
    return folder


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(home=tmp_path / "home" / "hpcml", store_url="")


def fill(project: Path, *names: str, size_bytes: int = 10) -> None:
    for name in names:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        with (project / name).open("wb") as file:
            file.truncate(size_bytes)


def under_git(project: Path, ignored: str) -> None:
    (project / ".gitignore").write_text(ignored)
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)


def tree_of(project: Path, places: Places, schedule: Schedule | None = None) -> Tree:
    tree = read_tree(CodeSource(folder=project, rules=schedule or Schedule()), places)
    assert tree is not None
    return tree


def names_of(tree: Tree) -> set[str]:
    return {file.path for file in tree.files} - {"train.py", ".gitignore"}


Read = Callable[[], Tree]


@pytest.fixture(params=["git", "no git"])
def read(request: pytest.FixtureRequest, project: Path, places: Places) -> Read:
    """Read the project, where git ignores all but train.py, and where there is no git."""

    def it() -> Tree:
        if request.param == "git":
            under_git(project, "*\n!train.py\n!.gitignore\n")
        return tree_of(project, places)

    return it


def test_small_files_are_copied_and_folders_of_data_are_linked(project: Path, read: Read) -> None:
    fill(project, "model.pt", ".env", "data/train.bin", "dataset-v2/x")

    tree = read()

    assert names_of(tree) == {"model.pt", ".env"}
    assert tree.linked == {name: str(project / name) for name in ("data", "dataset-v2")}


def test_folders_of_outputs_and_hidden_ones_begin_empty(project: Path, read: Read) -> None:
    names = ("outputs", "runs", "out-gpt", "checkpoints", "lightning_logs", "wandb", ".mypy_cache", ".idea")
    fill(project, *(f"{name}/x" for name in names), "__pycache__/train.pyc")

    tree = read()

    assert sorted(tree.empty) == sorted(names)
    assert (names_of(tree), tree.linked) == (set(), {})


def test_environments_are_links(project: Path, read: Read) -> None:
    fill(project, "env/pyvenv.cfg", "env/lib/os.py", ".venv/lib/x", "node_modules/x", "conda/conda-meta/x")

    tree = read()

    assert set(tree.linked) == {"env", ".venv", "node_modules", "conda"}
    assert (names_of(tree), tree.empty) == (set(), [])


def test_an_environment_that_git_was_not_told_to_ignore_is_a_link(project: Path, places: Places) -> None:
    fill(project, ".venv/pyvenv.cfg", ".venv/lib/os.py", "tools/env/pyvenv.cfg", "tools/env/bin/python", "tools/a.py")
    under_git(project, "")

    tree = tree_of(project, places)

    assert set(tree.linked) == {".venv", "tools/env"}
    assert names_of(tree) == {"tools/a.py"}


def test_a_folder_that_git_ignores_is_a_link_and_a_file_a_copy(project: Path, places: Places) -> None:
    fill(project, "build/lib.so", "models/base.pt", "lib/fast.so", "lib/a.py", "net/data/__init__.py", "net/a.py")
    under_git(project, "build/\nmodels\n*.so\ndata\n")

    tree = tree_of(project, places)

    assert tree.linked == {name: str(project / name) for name in ("build", "models", "net/data")}
    assert names_of(tree) == {"lib/fast.so", "lib/a.py", "net/a.py"}
    assert (tree.empty, tree.remarks) == ([], [])


def test_ignored_files_are_copied_small_ones_first_until_the_room_is_used_up(project: Path, places: Places) -> None:
    fill(project, "a.bin", "model.pt", size_bytes=40 << 20)
    fill(project, "small.pt")
    under_git(project, "*.bin\n*.pt\n")

    tree = tree_of(project, places)
    without = tree_of(project, places, Schedule(ignored_mib=0))

    assert names_of(tree) == {"small.pt", "a.bin"}
    assert tree.linked == {"model.pt": str(project / "model.pt")}
    (remark,) = tree.remarks
    assert remark.startswith("each run has a link to yours, since schedule.ignored_mib=64 is the most that is copied")
    assert remark.endswith(": model.pt (40.0 MiB)")
    assert set(without.linked) == {"a.bin", "model.pt", "small.pt"}


def test_a_checkpoint_that_git_ignores_is_nobodys_beginning(project: Path, places: Places) -> None:
    fill(project, "ckpt.pt", "checkpoint.pth.tar", "mlflow.db", "mlruns.db", "results.csv")
    under_git(project, "*\n!train.py\n")

    assert names_of(tree_of(project, places)) == {"results.csv"}


def test_the_lists_and_sizes_are_settings(project: Path, places: Places) -> None:
    fill(project, "mine/x", "data/x", "corpus.bin", size_bytes=2 << 20)
    rules = Schedule(fresh=["mine/"], linked=["*.bin"], snapshot_mib=3)

    tree = tree_of(project, places, rules)

    assert (tree.empty, set(tree.linked), names_of(tree)) == (["mine"], {"corpus.bin"}, {"data/x"})
    with pytest.raises(ConfigError, match=r"5 files|4 files, 6 MiB, .*schedule.snapshot_mib=3.*schedule.linked"):
        tree_of(project, places, Schedule(fresh=[], linked=[], snapshot_mib=3))
    for wrong in ("a/b", "", "/"):
        with pytest.raises(ConfigError, match=r"schedule\.fresh: .* is no name of a file or folder"):
            Schedule(fresh=[wrong])


def test_without_git_all_else_is_code(project: Path, places: Places, tmp_path: Path) -> None:
    fill(project, "src/deep/model.py", "src/big.bin", "ckpt.pt", "notes/a.txt", "old/runs/x", size_bytes=1 << 20)
    (project / "placeholder").mkdir()
    (project / "current").symlink_to("src")
    (project / "elsewhere").symlink_to(tmp_path)

    tree = tree_of(project, places)

    assert names_of(tree) == {"src/deep/model.py", "src/big.bin", "ckpt.pt", "notes/a.txt"}
    assert {link.path: link.target for link in tree.links} == {"current": "src"}
    assert (tree.empty, tree.linked) == (["old/runs", "placeholder"], {"elsewhere": str(tmp_path)})


def test_without_git_a_package_of_python_is_code_whatever_it_is_called(project: Path, places: Places) -> None:
    fill(project, "net/data/__init__.py", "net/data/loader.py", "results/__init__.py", "data/x")

    tree = tree_of(project, places)

    assert names_of(tree) == {"net/data/__init__.py", "net/data/loader.py", "results/__init__.py"}
    assert list(tree.linked) == ["data"]


def test_a_folder_that_git_ignores_is_the_code_of_what_starts_in_it(project: Path, places: Places) -> None:
    fill(project, "scratch/try.py")
    under_git(project, "scratch\n")

    assert names_of(tree_of(project / "scratch", places)) == {"try.py"}


def test_a_folder_that_is_all_that_an_ignored_one_holds_is_taken_once(project: Path, places: Places) -> None:
    fill(project, "python/module/fast/a.py", "lib/fast/b")
    under_git(project, "fast\n")

    tree = tree_of(project, places)

    assert len(set(tree.linked)) == 2
    assert names_of(tree) == set()


def test_a_home_that_is_no_repository_is_more_than_code(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_everything(project)
    monkeypatch.setenv("HOME", str(project))

    assert is_everything(project)
    assert is_everything(Path("/"))
    under_git(project, "")
    assert not is_everything(project)


def test_data_beside_the_project_is_found_beside_its_copy(project: Path, places: Places) -> None:
    fill(project.parent, "data/x", "datasets/x", "other/x", "inputs")

    assert tree_of(project, places).beside == {name: str(project.parent / name) for name in ("data", "datasets")}


def test_python_imports_from_the_copy_what_it_would_from_the_tree(
    project: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(project, "src/mine/__init__.py", "tools/part.py")
    monkeypatch.setenv("PYTHONPATH", f"lib:{project}/tools:/opt/lib:{project}/absent")
    run_dir = RunDir(places.runs / "default" / "20261121-083015-222abcde")
    (item,) = planned_for(project, "workload.command=true")

    own = run_dir.work / "project"
    assert keep_code(places)(item, run_dir).plan.python_path == [f"{own}/tools", str(own), f"{own}/src"]
