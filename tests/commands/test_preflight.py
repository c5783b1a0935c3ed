from pathlib import Path

import pytest

from hpcml.commands.machine import Machine
from hpcml.commands.submit.preflight import warnings
from hpcml.commands.submit.validate import plan_all
from hpcml.config.compose import compose_from_cli
from hpcml.mounts import file_system_of
from hpcml.paths import Places

MACHINE = Machine(cores=2, gpus=[])


def warned(tmp_path: Path, *words: str) -> list[str]:
    (item,) = plan_all(compose_from_cli(words, project=tmp_path), MACHINE)
    return list(warnings(item, Places(home=tmp_path / "home", store_url="")))


def test_runs_on_this_machine_need_no_warning(tmp_path: Path) -> None:
    assert warned(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (("workload.env.OMP_NUM_THREADS=2",), 1),
        (("workload.env.OPENBLAS_NUM_THREADS=4", "resources.cpus_per_task=2"), 1),
        (("workload.env.OMP_NUM_THREADS=2", "resources.cpus_per_task=2"), 0),
        (("workload.env.OMP_NUM_THREADS=1",), 0),
        (("workload.env.OMP_NUM_THREADS='2,1'",), 0),
    ],
)
def test_more_threads_than_cores_are_warned_about(tmp_path: Path, words: tuple[str, ...], lines: int) -> None:
    found = warned(tmp_path, "workload.command=true", *words)

    assert len(found) == lines
    assert all("its threads take turns; resources.cpus_per_task=" in line for line in found)


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
