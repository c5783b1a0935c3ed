import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcml.commands.submit.advice import all_warnings, preview_submission, warnings
from hpcml.commands.submit.backends import Backends, Machine
from hpcml.commands.submit.check import plan_all
from hpcml.commands.submit.plan import Planned
from hpcml.commands.submit.run import RunReporter, submit_points
from hpcml.config.compose import compose_command, compose_from_cli
from hpcml.errors import ConfigError, ImageError
from hpcml.mounts import file_system_of
from hpcml.paths import Places

MACHINE = Machine(cores=2, gpus=[])
IMAGES = {"HPCML_IMAGES": "/nowhere"}


def warned(tmp_path: Path, *words: str) -> list[str]:
    (item,) = plan_all(compose_from_cli(words, project=tmp_path), MACHINE)
    return list(warnings(item, Places(home=tmp_path / "home", store_url="")))


class Reporter(RunReporter):
    """Keeps the warnings of a submission."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def submit(planned: Sequence[Planned], places: Places, project: Path, reporter: Reporter) -> None:
    backends = Backends(places=places, machine=lambda: MACHINE)
    submit_points(
        planned, places, backends, reporter, environ=IMAGES, project=project, command_line=["hpcml"], only_missing=False
    )


def test_runs_on_this_machine_need_no_warning(tmp_path: Path) -> None:
    assert warned(tmp_path) == []


def test_directives_of_a_job_script_are_said_not_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text, directive in (
        ("#!/bin/bash\n#SBATCH -J x -t 5\n\n#SBATCH --array=1-3\nsrun x\n", "#SBATCH"),
        ("#PBS -l select=1\necho\n", "#PBS"),
        ("#BSUB -n 4\n", "#BSUB"),
        ("#!/bin/bash\ncat > job <<EOF\n#SBATCH --nodes=2\nEOF\n", None),
        ("#!/bin/bash\n# SBATCH\necho\n", None),
    ):
        (tmp_path / "job.sh").write_text(text)
        (tmp_path / "job.sh").chmod(0o755)
        for command in ("bash job.sh", "./job.sh"):
            words = ("-m", "seed=1,2", f"workload.command='{command}'")
            planned = plan_all(compose_from_cli(words, project=tmp_path), MACHINE)
            found = all_warnings(planned, Places(home=tmp_path / "home", store_url=""))
            named = [line.partition(" are not read: resources.* in front of the -- asks")[0] for line in found]
            assert named == ([] if directive is None else [f"the {directive} lines of {command.split()[-1]}"]), text


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("+container=sif", "container.path=/scratch/x/tensorflow.sif"),
            "container.path=/scratch/x/tensorflow.sif does ",
        ),
        (("+container=sandbox", "container.path=/scratch/x"), "container.path=/scratch/x does not exist"),
        (("data=mnist", "data.path=/scratch/mnist"), "data.path=/scratch/mnist does not exist"),
        (("resources.account=YOUR-ACCOUNT",), "resources.account=YOUR-ACCOUNT stands for an account of yours: "),
    ],
)
def test_what_a_site_may_have_is_a_warning_of_a_dry_run_and_refused_before_submission(
    tmp_path: Path, words: tuple[str, ...], line: str
) -> None:
    places = Places(home=tmp_path / "home", store_url=f"sqlite:///{tmp_path}/home/store.db")
    planned = plan_all(
        compose_from_cli(["cluster=salomon", "resources.account=DD-1-1", *words], project=tmp_path), MACHINE
    )
    backends = Backends(places=places, machine=lambda: MACHINE)

    preview = preview_submission(planned, places, backends, environ=IMAGES, project=tmp_path)
    with pytest.raises(ConfigError) as refused:
        submit(planned, places, tmp_path, Reporter())

    assert str(refused.value).startswith(line)
    assert [warning for warning in preview.warnings if warning.startswith(line)] == [str(refused.value)]


def test_what_looks_wrong_is_said_before_an_image_is_built(tmp_path: Path) -> None:
    image = ("container.image=a/b", "container.tag='1'", "container.registry=127.0.0.1:1")
    words = ("cluster=salomon", "resources.account=DD-1-1", "resources.walltime=null", "+container=docker", *image)
    places = Places(home=tmp_path / "home", store_url=f"sqlite:///{tmp_path}/home/store.db")
    reporter = Reporter()

    with pytest.raises(ImageError):
        submit(plan_all(compose_from_cli(words, project=tmp_path), MACHINE), places, tmp_path, reporter)

    assert any("no resources.walltime" in line for line in reporter.warnings)


def test_a_decommissioned_site_is_said(tmp_path: Path) -> None:
    assert "cluster=salomon is decommissioned according to its profile" in warned(tmp_path, "cluster=salomon")


def test_an_account_that_looks_wrong_is_only_warned_about(tmp_path: Path) -> None:
    words = ("cluster=karolina", "cluster.account_pattern='[A-Z]+-[0-9]+-[0-9]+'")

    assert any("looks like no account" in line for line in warned(tmp_path, *words, "resources.account=typo"))
    assert not any("looks like no account" in line for line in warned(tmp_path, *words, "resources.account=OPEN-1-2"))


def test_a_run_directory_on_a_file_system_of_this_machine_is_said(tmp_path: Path) -> None:
    kind = file_system_of(tmp_path)
    lines = warned(tmp_path, "cluster=karolina")

    assert kind is not None
    assert any(f"HPCML_HOME ({tmp_path / 'home'}) is on {kind}" in line for line in lines)


@pytest.mark.parametrize(("kind", "lines"), [("jfs", 2), ("bcachefs", 2), ("lustre", 0), (None, 0)])
def test_what_is_local_is_what_it_is_for_the_store(tmp_path: Path, kind: str | None, lines: int) -> None:
    (item,) = plan_all(compose_from_cli(["cluster=karolina"], project=tmp_path), MACHINE)
    found = warnings(item, Places(home=tmp_path / "home", store_url=""), lambda _: kind)

    assert sum(f"is on {kind}, a file system of this machine" in line for line in found) == lines


def test_a_job_without_a_walltime_is_said(tmp_path: Path) -> None:
    lines = warned(tmp_path, "cluster=karolina", "resources.walltime=null")

    assert any("no resources.walltime" in line for line in lines)


@pytest.mark.parametrize("name", ["there", "not/yet/there"])
def test_the_file_system_of_a_path_is_that_of_its_nearest_parent(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").touch()

    assert file_system_of(tmp_path / name) == file_system_of(tmp_path)


def test_proc_is_told_from_a_disk() -> None:
    assert file_system_of(Path("/proc/self")) == "proc"


def test_git_is_asked_no_more_often_for_many_runs_than_for_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = shutil.which("git"), tmp_path / "asked"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(f'#!/bin/sh\necho "$@" >> {asked}\nexec {real} "$@"\n')
    (tmp_path / "bin" / "git").chmod(0o755)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def questions(seeds: str) -> list[str]:
        points, _ = compose_command(["-m"], ["true", "--seed", seeds], project=Path(), is_literal=False, most=100)
        asked.write_text("")
        all_warnings(plan_all(points, MACHINE), Places(home=tmp_path / "home", store_url=""))
        return asked.read_text().splitlines()

    assert len(questions("0..59")) == len(questions("0..1")) > 0


def test_a_python_is_asked_once_for_all_runs_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, python = tmp_path / "asked", tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
    python.chmod(0o755)
    (tmp_path / "newer.py").write_text("what only a newer Python compiles\n")
    monkeypatch.chdir(tmp_path)

    points, _ = compose_command(
        ["-m"], [str(python), "newer.py", "--seed", "0..19"], project=Path(), is_literal=False, most=100
    )
    plan_all(points, MACHINE)

    assert len(points) == 20
    assert asked.read_text().count("compile(") == 1
