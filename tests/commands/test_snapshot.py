"""What is kept of the code at submission, and that the run executes that and nothing newer."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcml.commands.submit import code_store
from hpcml.commands.submit.code_store import File, Link
from hpcml.commands.submit.provenance import describe_code
from hpcml.commands.submit.snapshot import CodeSource, KeptCode, check, foreseen, keep_code, read_tree
from hpcml.errors import ConfigError
from hpcml.model.run import Schedule
from hpcml.paths import Places
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import read_manifest
from hpcml.runs.plan import Staging
from hpcml.runs.working_directory import stage
from tests.cli.command_line import Hpcml, said_in_one_line
from tests.commands.planning import planned_for

IN_AN_IMAGE = ("+cluster=karolina", "resources.account=a", "container=ngc_pytorch", "container.tag=24.12-py3")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text("data/\n*.log\n")
    (folder / "train.py").write_text("print('first')\n")
    (folder / "lib").mkdir()
    (folder / "lib" / "part.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\necho from a script\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link.py").symlink_to("train.py")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (folder / "data").mkdir()
    (folder / "data" / "numbers").write_text("42\n")
    (folder / "lib" / "debug.log").write_text("...\n")
    (folder / "new.py").write_text("print('not yet added')\n")
    return folder


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(home=tmp_path / "home" / "hpcml", store_url="")


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], repository: Path) -> Hpcml:
    return Hpcml(environ=hpcml_environ, cwd=repository)


def git(folder: Path, *words: str) -> None:
    own = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True)


def kept_by(places: Places, folder: Path, command: str, *words: str) -> tuple[Path, Sequence[str], str]:
    """Return the snapshot, the command as it is started, and where."""
    kept = kept_code(places, folder, command, *words)
    assert kept.code is not None
    return kept.code, kept.plan.argv, kept.plan.cwd


def kept_code(places: Places, folder: Path, command: str, *words: str) -> KeptCode:
    (item,) = planned_for(folder, f"workload.command={command}", *words)
    return keep_code(places)(item, run_of(places))


def run_of(places: Places) -> RunDir:
    return RunDir(places.runs / "default" / "20261121-083015-222abcde")


def staging_of(places: Places, folder: Path, *words: str) -> Staging:
    staging = kept_code(places, folder, "true", *words).plan.staging
    assert staging is not None
    return staging


def test_a_copy_has_what_git_tracks_or_would_add_and_small_files_that_it_ignores(
    places: Places, repository: Path
) -> None:
    code, _, cwd = kept_by(places, repository, "python train.py")

    assert cwd == str(run_of(places).work / "project")
    assert (code / "train.py").read_text() == "print('first')\n"
    assert (code / "new.py").read_text() == "print('not yet added')\n"
    assert not (code / "data").exists()
    assert staging_of(places, repository).shared == {"project/data": str(repository / "data")}
    assert (code / "lib" / "debug.log").read_text() == "...\n"
    assert (code / "link.py").readlink() == Path("train.py")
    assert not (code / ".git").exists()
    modes = {name: stat.S_IMODE((code / name).stat().st_mode) for name in ("train.py", "run.sh", "lib")}
    assert modes == {"train.py": 0o400, "run.sh": 0o500, "lib": 0o700}


def test_equal_code_is_kept_once_and_a_change_apart(places: Places, repository: Path) -> None:
    first, _, _ = kept_by(places, repository, "python train.py")
    (repository / "data" / "more").write_text("ignored files are no code")
    assert kept_by(places, repository, "python lib/part.py")[0] == first

    (repository / "run.sh").chmod(0o644)
    second, _, _ = kept_by(places, repository, "python train.py")
    (repository / "train.py").write_text("print('second')\n")
    third, _, _ = kept_by(places, repository, "python train.py")

    assert len({first, second, third}) == 3
    assert (first / "train.py").read_text() == "print('first')\n"
    assert sorted(path.name for path in places.code.iterdir() if path.name.startswith(".")) == []


def test_a_file_that_was_removed_is_not_missed(places: Places, repository: Path) -> None:
    (repository / "link.py").unlink()

    code, _, _ = kept_by(places, repository, "python train.py")

    assert not (code / "link.py").is_symlink()


def test_paths_into_the_tree_lead_into_the_copy(places: Places, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "beside").touch()
    (tmp_path / "alias").symlink_to(repository)
    script, data = repository / "train.py", repository / "data"
    words = [str(script), f"--config={script}", str(data), "lib/part.py", "../beside", str(tmp_path / "alias" / "lib")]

    _, argv, _ = kept_by(places, repository, f"python {' '.join(words)} ../project/new.py /nowhere")

    own = run_of(places).work / "project"
    copied = [str(own / "train.py"), f"--config={own}/train.py", str(data), "lib/part.py", str(tmp_path / "beside")]
    assert argv[1:] == [*copied, str(own / "lib"), str(own / "new.py"), "/nowhere"]


def test_a_search_path_into_the_tree_leads_into_the_copy(places: Places, repository: Path) -> None:
    kept = kept_code(places, repository, "true", f'workload.env.PYTHONPATH="{repository}/lib:/usr/lib:{repository}"')

    own = run_of(places).work / "project"
    assert kept.plan.environment["PYTHONPATH"] == f"{own}/lib:/usr/lib:{own}"


def test_a_program_that_starts_in_a_folder_of_the_tree_starts_in_that_of_the_copy(
    places: Places, repository: Path
) -> None:
    (repository / "empty").mkdir()

    _, _, cwd = kept_by(places, repository, "true", f"workload.cwd={repository}/lib")
    assert cwd == str(run_of(places).work / "project" / "lib")
    plan = kept_code(places, repository, "true", f"workload.cwd={repository}/empty").plan
    assert plan.cwd == str(run_of(places).work / "project" / "empty")
    assert plan.staging is not None
    run_of(places).path.mkdir(parents=True)
    stage(run_of(places), plan.staging, Path(plan.cwd))
    assert Path(plan.cwd).is_dir()


def test_links_that_leave_the_tree_still_lead_there(places: Places, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "beside").touch()
    (repository / "out").symlink_to("../beside")
    (repository / "in").symlink_to(repository / "lib" / "part.py")
    (repository / "gone").symlink_to("../gone")

    code, _, _ = kept_by(places, repository, "true")

    assert staging_of(places, repository).shared["project/out"] == str(tmp_path / "beside")
    assert (code / "in").readlink() == Path("lib/part.py")
    assert (code / "gone").readlink() == tmp_path / "gone"


def test_submodules_and_repositories_inside_are_copied_too(places: Places, repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(repository, other, symlinks=True)
    git(repository, "submodule", "add", "-q", str(other), "module")
    shutil.copytree(other, repository / "cloned", symlinks=True)

    code, _, _ = kept_by(places, repository, "true")

    assert (code / "module" / "train.py").read_text() == "print('first')\n"
    assert (code / "cloned" / "lib" / "part.py").read_text() == "x = 1\n"
    assert staging_of(places, repository).shared["project/cloned/data"] == str(repository / "cloned" / "data")


def test_a_submodule_that_is_not_checked_out_is_named_and_the_changes_of_one_that_is_are_recorded(
    places: Places, repository: Path, tmp_path: Path
) -> None:
    other, clone = tmp_path / "other", tmp_path / "clone"
    shutil.copytree(repository, other, symlinks=True)
    git(repository, "submodule", "add", "-q", str(other), "module")
    git(repository, "commit", "-qm", "module")
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    (repository / "module" / "train.py").write_text("print('changed')\n")

    (absent,) = check(planned_for(clone, "-m", "workload.command=true", "seed=0,1"), places)

    assert absent.startswith("module: not checked out, and each run lacks it: git submodule update --init")
    assert not check(planned_for(repository, "workload.command=true"), places)
    assert b"+++ b/module/train.py\n" in describe_code(repository).diff
    assert b"+print('changed')\n" in describe_code(repository).diff


def test_names_in_any_bytes_are_copied(places: Places, repository: Path) -> None:
    for name in (b"with space", b"\xc3\xa4", b"\xff\xfe", b"new\nline", b'"quoted"'):
        (repository / os.fsdecode(name)).write_bytes(name)

    code, _, _ = kept_by(places, repository, "true")

    copied = {os.fsencode(path.name) for path in code.iterdir()}
    assert {b"with space", b"\xc3\xa4", b"\xff\xfe", b"new\nline", b'"quoted"'} <= copied


@pytest.mark.parametrize("home", [".", "..", "lib/.."])
def test_code_in_hpcmls_own_home_is_copied_without_what_hpcml_keeps_there(repository: Path, home: str) -> None:
    around = Places(home=(repository / home).resolve(), store_url="")
    for own in around.own:
        own.mkdir(exist_ok=True)
        (own / "big").write_text("x")
    (around.home / "store.db").write_text("x")

    first, _, _ = kept_by(around, repository, "true")
    second, _, _ = kept_by(around, repository, "true")

    assert first == second
    assert first is not None
    names = {path.name for path in first.iterdir()}
    assert {"train.py", "lib", "run.sh", "link.py", "new.py", ".gitignore"} == names


def test_code_in_a_folder_that_hpcml_keeps_is_refused(tmp_path: Path) -> None:
    around = Places(home=tmp_path, store_url="")
    folder = around.runs / "default" / "20261121-080000-22222222"
    folder.mkdir(parents=True)
    git(folder, "init", "-q")

    with pytest.raises(ConfigError, match=r"lies in .*/runs, which is hpcml's: start from a folder of your own"):
        read_tree(CodeSource(folder=folder, rules=Schedule()), around)


def test_hpcmls_own_home_inside_the_tree_is_not_copied(repository: Path) -> None:
    inside = Places(home=repository / "results", store_url="")
    first, _, _ = kept_by(inside, repository, "true")
    second, _, _ = kept_by(inside, repository, "true")

    assert first == second
    assert not (first / "results").exists()


def test_what_is_too_large_is_refused_by_name(places: Places, repository: Path) -> None:
    with (repository / "weights.bin").open("wb") as file:
        file.truncate(300 << 20)

    with pytest.raises(ConfigError, match=r"too large .* weights\.bin \(300\.0 MiB\).*\.gitignore"):
        kept_by(places, repository, "true")
    assert not places.code.exists()


def test_several_may_keep_the_same_code_at_once(places: Places, repository: Path) -> None:
    tree = read_tree(CodeSource(folder=repository, rules=Schedule()), places)
    assert tree is not None
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(code_store.keep(places.code, tree.files, tree.links)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert [path.name for path in places.code.iterdir()] == [found[0].name]


def test_a_copy_that_was_interrupted_is_cleared_away_later(places: Places, tmp_path: Path) -> None:
    old, young = places.code / ".new-old", places.code / ".new-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    (tmp_path / "x").write_text("x")

    code_store.keep(places.code, [File(path="x", source=tmp_path / "x", is_executable=False, size=1)])

    assert not old.exists()
    assert young.exists()


def test_the_name_says_what_is_inside(places: Places, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    one = File(path="x", source=tmp_path / "x", is_executable=False, size=1)
    executable = File(path="x", source=tmp_path / "x", is_executable=True, size=1)
    elsewhere = File(path="y", source=tmp_path / "x", is_executable=False, size=1)

    kept = [code_store.keep(places.code, [file]) for file in (one, executable, elsewhere)]
    kept += [code_store.keep(places.code, [one], [Link(path="l", target=target)]) for target in ("a", "b")]

    assert len(set(kept)) == 5


def test_none_keeps_nothing(places: Places, repository: Path) -> None:
    (item,) = planned_for(repository, "workload.command=python train.py", "schedule.snapshot=none")

    kept = keep_code(places)(item, run_of(places))

    assert (kept.plan, kept.code, kept.packages) == (item.plan, None, None)
    assert not places.home.exists()


def test_a_repository_of_another_user_of_which_git_tells_nothing_is_said(
    places: Places, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = check(planned_for(repository, "workload.command='python train.py'"), places)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "true")  # git's own tests have it

    (line,) = check(planned_for(repository, "workload.command='python train.py'"), places)

    assert mine == []
    assert line.startswith(f"git tells nothing of {repository}, which belongs to somebody else: no commit is recorded")
    assert line.endswith(f"git config --global --add safe.directory {repository} says that you trust them")


def test_several_runs_in_one_folder_are_warned_about(places: Places, repository: Path) -> None:
    def lines(*words: str) -> list[str]:
        return check(planned_for(repository, *words), places)

    assert lines("-m", "seed=1,2", "workload.command=true") == []
    assert lines("workload.command=true", "schedule.snapshot=none") == []
    (line,) = lines("-m", "seed=1,2", "workload.command=true", "schedule.snapshot=none")
    assert f"2 runs start in {repository} and share what they write there" in line


def test_a_run_starts_in_the_users_home_itself_and_several_do_not(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "me"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    alone = planned_for(home, "workload.command=true")
    together = planned_for(home, "-m", "seed=1,2", "workload.command=true")

    with pytest.raises(ConfigError, match=rf"2 runs would start in {home} and share .*cd to the folder of the program"):
        check(together, places)
    (warning,) = check(alone, places)
    kept = keep_code(places)(alone[0], run_of(places))

    assert f"the program starts in {home} itself, of which no copy is made" in warning
    assert (kept.plan, kept.code) == (alone[0].plan, None)
    assert foreseen(alone, places) == [f"code: what lies in {home} when the job starts"]


def test_code_that_is_too_large_is_refused_before_an_image_is_built_for_it(places: Places, repository: Path) -> None:
    with (repository / "weights.bin").open("wb") as file:
        file.truncate(300 << 20)
    planned = planned_for(repository, "workload.command=true", *IN_AN_IMAGE)

    with pytest.raises(ConfigError, match="is too large"):
        check(planned, places)


def test_a_dry_run_says_where_the_code_would_come_from(places: Places, repository: Path, tmp_path: Path) -> None:
    def said(folder: Path, *words: str) -> list[str]:
        return foreseen(planned_for(folder, *words), places)

    (repository / ".gitignore").write_text("data/\n*.log\nout*\n")
    (repository / "outputs").mkdir()
    assert said(repository, "workload.command=true") == [
        f"code: a copy of 6 files of {repository}, kept in {places.code}; each run starts in a copy of its own",
        "code: shared by all runs (links to your own): data",
        "code: empty in each run: outputs",
    ]
    assert said(repository, "workload.command=true", "schedule.snapshot=none") == [
        f"code: what lies in {repository} when the job starts"
    ]
    (line,) = said(tmp_path)
    assert "image_classification" in line
    assert not places.home.exists()


def test_what_is_edited_while_a_run_waits_does_not_reach_it(hpcml: Hpcml, repository: Path) -> None:
    (repository / "train.py").write_text(
        "import lib.part, mine; print('as submitted', lib.part.x, mine.y, open('config.yaml').read(), "
        "open('data/numbers').read())"
    )
    (repository / "src").mkdir()
    (repository / "src" / "mine.py").write_text("y = 1")  # as if pip install -e had put src/ where Python looks
    (repository / "config.yaml").write_text("lr: 1")
    (repository / "wait.py").write_text(
        "import os, runpy, sys, time\n"
        "while not os.path.exists('data/go'): time.sleep(0.05)\n"
        "for script in sys.argv[1:]: runpy.run_path(script)"
    )

    done = hpcml("run", f"workload.command={sys.executable} wait.py train.py {repository}/train.py", "--json")
    assert done.returncode == 0, done.stderr
    (submitted,) = json.loads(done.stdout)
    (repository / "train.py").write_text("print('edited')")
    (repository / "lib" / "part.py").write_text("x = 2")
    (repository / "src" / "mine.py").write_text("y = 2")
    (repository / "config.yaml").write_text("lr: 2")
    (repository / "data" / "go").touch()
    assert hpcml("wait", submitted["uid"]).returncode == 0

    run_dir = RunDir(Path(submitted["path"]))
    assert run_dir.stdout(0, 0).read_text() == "as submitted 1 1 lr: 1 42\n\n" * 2
    origin = read_manifest(run_dir.manifest).provenance
    assert origin.code is not None
    assert run_dir.code.readlink() == Path(origin.code)
    assert run_dir.client_path.readlink().parent == hpcml.home / "code"
    assert sorted(path.name for path in run_dir.client_path.iterdir()) == ["hpcml_client", "hpcml_train"]


def test_a_recipe_runs_as_it_was_at_submission(hpcml: Hpcml) -> None:
    done = hpcml("run", "training.steps=2", "--json")
    assert done.returncode == 0, done.stderr
    (submitted,) = json.loads(done.stdout)

    run_dir = RunDir(Path(submitted["path"]))
    manifest = read_manifest(run_dir.manifest)
    assert manifest.plan.argv[1] == f"{run_dir.code.readlink()}/image_classification/train.py"
    assert Path(manifest.plan.argv[1]).is_relative_to(hpcml.home / "code")
    assert manifest.plan.cwd == str(hpcml.cwd)
    assert hpcml("wait", submitted["uid"]).returncode == 0


def test_a_tree_that_cannot_be_kept_is_one_line_and_leaves_no_run(hpcml: Hpcml, repository: Path) -> None:
    with (repository / "weights.bin").open("wb") as file:
        file.truncate(300 << 20)

    done = hpcml("run", "workload.command=true")

    assert done.returncode == 2
    assert "weights.bin (300.0 MiB)" in said_in_one_line(done)
    assert not list(hpcml.home.glob("runs/*/*"))


def test_what_cannot_be_kept_is_answered_by_what_would_help(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    (tmp_path / "a").write_text("a")
    there, gone = (File(path="a", source=tmp_path / name, is_executable=False, size=1) for name in ("a", "gone"))

    with pytest.raises(ConfigError, match=r"Not a directory \(choose another HPCML_HOME\)"):
        code_store.keep(tmp_path / "home" / "code", [there])
    with pytest.raises(ConfigError, match=r"gone: No such file or directory \(or set schedule.snapshot=none\)"):
        code_store.keep(tmp_path / "code", [gone])
