"""What becomes of the entries of a program's folder that git does not keep, one by one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcml.commands.submit import work_tree
from hpcml.commands.submit.import_paths import imported_folders
from hpcml.commands.submit.work_tree import WorkTree, is_everything, read_work_tree
from hpcml.paths import Places


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


def names_of(tree: WorkTree) -> set[str]:
    return {file.path for file in tree.files} - {"train.py", ".gitignore"}


Read = Callable[[], WorkTree]


@pytest.fixture(params=["git", "no git"])
def read(request: pytest.FixtureRequest, project: Path, places: Places) -> Read:
    """Read the project, where git ignores all but train.py, and where there is no git."""

    def it() -> WorkTree:
        if request.param == "git":
            under_git(project, "*\n!train.py\n!.gitignore\n")
        return read_work_tree(project, places)

    return it


def test_small_files_are_copied_and_folders_of_data_are_shared(project: Path, read: Read) -> None:
    fill(project, "model.pt", ".env", "notes/a.txt", "data/train.bin", "dataset-v2/x", "empty_one/x")

    tree = read()

    assert names_of(tree) == {"model.pt", ".env", "notes/a.txt", "empty_one/x"}
    assert tree.shared == {name: str(project / name) for name in ("data", "dataset-v2")}


def test_folders_of_outputs_begin_empty(project: Path, read: Read) -> None:
    fill(project, *(f"{name}/x" for name in ("outputs", "runs", "out-gpt", "checkpoints", "lightning_logs", "wandb")))

    tree = read()

    assert sorted(tree.empty) == ["checkpoints", "lightning_logs", "out-gpt", "outputs", "runs", "wandb"]
    assert (names_of(tree), tree.shared) == (set(), {})


def test_environments_are_shared_and_caches_left_out(project: Path, read: Read) -> None:
    fill(project, "env/pyvenv.cfg", "env/lib/os.py", ".venv/lib/x", "node_modules/x", "conda/conda-meta/x")
    fill(project, "__pycache__/train.pyc", ".mypy_cache/x", ".ipynb_checkpoints/x")

    tree = read()

    assert set(tree.shared) == {"env", ".venv", "node_modules", "conda"}
    assert (names_of(tree), tree.empty) == (set(), [])


def test_a_large_file_of_weights_is_copied_for_each_run_and_other_large_ones_are_shared(
    project: Path, read: Read
) -> None:
    fill(project, "model.pt", "best.pth.tar", "corpus.bin", "corpora/a.bin", size_bytes=65 << 20)
    fill(project, "small.pt")

    tree = read()

    assert tree.copied == {name: str(project / name) for name in ("model.pt", "best.pth.tar")}
    assert tree.shared == {name: str(project / name) for name in ("corpus.bin", "corpora")}
    assert names_of(tree) == {"small.pt"}


def test_a_large_file_in_a_folder_of_data_is_shared_though_a_package_of_python_has_it(
    project: Path, read: Read
) -> None:
    fill(project, "data/__init__.py", "net/datasets/__init__.py", "model.h5")
    fill(project, "data/train.h5", "net/datasets/coco.pkl", "model.h5", size_bytes=65 << 20)

    tree = read()

    if "data" in tree.shared:  # git ignores the whole of it
        assert "net" in tree.shared
    else:
        large = ("data/train.h5", "net/datasets/coco.pkl")
        assert tree.shared == {name: str(project / name) for name in large}
    assert tree.copied == {"model.h5": str(project / "model.h5")}


def test_a_large_file_of_data_that_git_ignores_beside_code_is_shared(project: Path, places: Places) -> None:
    fill(project, "data/loader.py", "net.py")
    fill(project, "data/train.h5", "net.h5", size_bytes=65 << 20)
    under_git(project, "*.h5\n")

    tree = read_work_tree(project, places)

    assert tree.shared == {"data/train.h5": str(project / "data/train.h5")}
    assert tree.copied == {"net.h5": str(project / "net.h5")}


def test_a_checkpoint_that_git_ignores_is_nobodys_beginning(project: Path, places: Places) -> None:
    fill(project, "ckpt.pt", "checkpoint.pth.tar", "mlflow.db", "mlruns.db", "ckpt_tools.py")
    under_git(project, "*\n!train.py\n")

    assert names_of(read_work_tree(project, places)) == {"ckpt_tools.py"}


@pytest.mark.parametrize("ignored", ["", "old\n", "*.db\npythonpath\n", None])
@pytest.mark.parametrize("home", ["old", "my/old", "."])
def test_what_hpcml_keeps_in_another_home_is_no_code(
    project: Path, places: Places, home: str, ignored: str | None
) -> None:
    run = f"{home}/runs/default/20260101-000000-aaaaaaaa"
    fill(project, f"{run}/run.json", f"{run}/job.sh", f"{run}/journal/x.jsonl", f"{run}/pythonpath/model.py")
    fill(project, f"{home}/code/7559992082017268/train.py", f"{home}/submissions/x/batch.json")
    fill(project, f"{home}/store.db", f"{home}/store.db-wal", f"{home}/helper.py")
    fill(project, "kaggle/runs/tb/events", "kaggle/submissions/final.csv")
    if ignored is not None:
        under_git(project, ignored)

    tree = read_work_tree(project, places)

    assert names_of(tree) - {"kaggle/runs/tb/events"} == {str(Path(home) / "helper.py"), "kaggle/submissions/final.csv"}
    assert (tree.homes, tree.shared, tree.copied) == ([home], {}, {})


def test_a_link_to_a_home_elsewhere_stays_a_link(project: Path, tmp_path: Path, read: Read) -> None:
    fill(tmp_path / "far", "runs/default/20260101-000000-aaaaaaaa/run.json", "helper.py")
    (project / "far").symlink_to(tmp_path / "far")

    tree = read()

    assert (names_of(tree), tree.homes) == (set(), [])
    assert tree.shared == {"far": str(project / "far")}


def test_a_file_in_an_ignored_folder_that_is_all_of_another_folder_is_taken_once(project: Path, places: Places) -> None:
    fill(project, "python/module/fast/a.py", "lib/fast/out/b", "lib/fast/data/c")
    under_git(project, "fast\n")

    tree = read_work_tree(project, places)

    assert [file.path for file in tree.files if file.path.endswith("a.py")] == ["python/module/fast/a.py"]
    assert (tree.empty, list(tree.shared)) == (["lib/fast/out"], ["lib/fast/data"])


def test_without_git_all_source_is_code_wherever_it_lies(project: Path, places: Places) -> None:
    fill(project, "runs/launch.py", "src/deep/model.py", "src/big.bin", size_bytes=40 << 20)
    fill(project, ".hidden/x")
    (project / "placeholder").mkdir()

    tree = read_work_tree(project, places)

    assert names_of(tree) | set(tree.shared) == {"runs/launch.py", "src/deep/model.py", "src/big.bin"}
    assert {"runs/launch.py", "src/deep/model.py"} <= names_of(tree)
    assert tree.empty == ["placeholder"]


def test_a_package_of_python_called_data_is_code(project: Path, read: Read) -> None:
    fill(project, "net/data/__init__.py", "net/data/loader.py", "datasets/__init__.py", "datasets/coco/x.jpg", "data/x")

    tree = read()

    assert names_of(tree) == {
        *("net/data/__init__.py", "net/data/loader.py", "datasets/__init__.py", "datasets/coco/x.jpg")
    }
    assert list(tree.shared) == ["data"]


def test_a_home_that_is_no_repository_is_more_than_code(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_everything(project)
    monkeypatch.setenv("HOME", str(project))

    assert is_everything(project)
    assert is_everything(Path("/"))
    under_git(project, "")
    assert not is_everything(project)


def test_data_beside_the_project_is_found_beside_its_copy(project: Path) -> None:
    fill(project.parent, "data/x", "datasets/x", "other/x", "inputs")

    assert work_tree.beside(project) == {name: str(project.parent / name) for name in ("data", "datasets")}


def environment(folder: Path) -> Path:
    """Make an environment of Python, as far as it is looked at; return where packages are installed in it."""
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "torchrun"):
        (folder / "bin" / name).write_text("")
        (folder / "bin" / name).chmod(0o755)
    site = folder / "lib" / "python3.12" / "site-packages"
    site.mkdir(parents=True)
    return site


def test_packages_that_pip_installed_as_editable_are_found_in_the_project(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("PYTHONPATH", f"lib:{project}/tools:/opt/lib")
    site = environment(tmp_path / "venv")
    fill(project, "src/mine/__init__.py", "flat/__init__.py")
    (site / "mine.pth").write_text(f"import site\n{project}/src\n{site}/other\n")  # hatchling, uv; setuptools with src
    for name, origin in (
        ("mine", {"url": f"file://{project}", "dir_info": {"editable": True}}),  # whose folder the .pth has
        ("own", {"url": f"file://{project}/a%20b", "dir_info": {"editable": True}}),  # setuptools, flat
        ("copied", {"url": f"file://{project}/flat", "dir_info": {}}),
        ("fetched", {"url": "https://pypi.org/x", "archive_info": {}}),
        ("elsewhere", {"url": "file:///opt/x", "dir_info": {"editable": True}}),
    ):
        (site / f"{name}-1.0.dist-info").mkdir()
        (site / f"{name}-1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    found = [f"{project}/tools", f"{project}/src", f"{project}/a b"]

    for program in ("../venv/bin/python", f"{tmp_path}/venv/bin/torchrun"):
        assert imported_folders(project, program, project) == found
    assert imported_folders(project, "nosuchprogram", project) == found[:1]
    monkeypatch.setenv("PATH", f"{tmp_path}/venv/bin")
    for program in ("torchrun", "nosuchprogram"):
        assert imported_folders(project, program, project) == found


def test_uv_has_the_environment_of_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (environment(project / ".venv") / "mine.pth").write_text(f"{project}/src\n")
    (project / "src").mkdir()

    assert imported_folders(project, "uv", project) == []  # it is no project of uv's
    (project / "pyproject.toml").write_text("")
    assert imported_folders(project, "/opt/bin/uv", project / "src") == [f"{project}/src"]


@pytest.mark.parametrize(
    "name", ["log/log.hpp", "output/write.f", "runs/solve.m", "logs/Logger.java", "out/plot.pl", "results/tests.lua"]
)
def test_without_git_a_folder_with_source_in_it_is_code_in_any_language(
    name: str, project: Path, places: Places
) -> None:
    fill(project, name)

    tree = read_work_tree(project, places)

    assert (names_of(tree), tree.empty) == ({name}, [])
