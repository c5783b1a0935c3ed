"""A run put into an image: the words that start it, what is seen inside, and what a job loads for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.commands.submit.containers import check_binds, put_inside
from hpcml.commands.submit.plan import Planned
from hpcml.commands.submit.snapshot import keep_code
from hpcml.errors import ConfigError
from hpcml.paths import Places
from hpcml.runs.layout import RunDir
from hpcml.runs.plan import Image
from tests.commands.planning import planned_for

IMAGE = Image(path="/images/a.sif", key="a", sha256="0" * 64)


@pytest.fixture
def sif(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image by name, and something called apptainer on PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "apptainer").write_text("#!/bin/sh\n")
    (programs / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    (tmp_path / "a.sif").write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0")
    return tmp_path / "a.sif"


def planned(folder: Path, sif: Path, *words: str) -> Planned:
    (item,) = planned_for(folder, "+container=sif", f"container.path={sif}", *words)
    return item


def binds(argv: list[str]) -> list[str]:
    return [argv[index + 1] for index, word in enumerate(argv) if word == "--bind"]


def inside(item: Planned, run_dir: Path, *, code: Path | None = None, packages: Path | None = None) -> list[str]:
    return put_inside(
        item.plan, item.run, IMAGE, RunDir(run_dir), folder=Path(item.plan.cwd), code=code, packages=packages
    ).argv


def test_a_recipe_is_started_by_the_images_own_python(tmp_path: Path, sif: Path) -> None:
    item = planned(tmp_path, sif, "model=mnist_mlp", "precision=fp32")

    argv = inside(item, tmp_path / "run", packages=tmp_path / "kept")

    recipe = Path(item.plan.argv[1])
    assert argv[-2:] == ["python3", str(recipe)]
    assert argv[:3] == ["apptainer", "exec", "--cleanenv"]
    assert "--nv" not in argv
    assert argv[argv.index("--pwd") + 1] == str(tmp_path)
    assert set(binds(argv)) == {
        f"{tmp_path}:{tmp_path}:rw",
        f"{tmp_path}/run:{tmp_path}/run:rw",
        f"{tmp_path}/kept:{tmp_path}/kept:ro",
        f"{recipe.parent}:{recipe.parent}:ro",
    }


def test_a_program_of_ones_own_writes_to_its_run_alone(tmp_path: Path, sif: Path) -> None:
    (tmp_path / "project" / "data").mkdir(parents=True)
    (tmp_path / "project" / "train.py").touch()
    item = planned(tmp_path / "project", sif, "workload.command=true")
    places, run_dir = Places(home=tmp_path / "home", store_url=""), RunDir(tmp_path / "run")
    kept = keep_code(places)(item, run_dir)

    argv = put_inside(kept.plan, item.run, IMAGE, run_dir, folder=item.code_folder, code=kept.code, packages=None).argv

    assert argv[argv.index("--pwd") + 1] == f"{run_dir.work}/project"
    writable = [bind for bind in binds(argv) if bind.endswith(":rw")]
    assert writable == [f"{run_dir.path}:{run_dir.path}:rw"]
    project = tmp_path / "project"
    assert {f"{place}:{place}:ro" for place in (project, project / "data", kept.code)} <= set(binds(argv))


def test_the_arguments_say_the_switches_and_nothing_of_the_user(tmp_path: Path, sif: Path) -> None:
    item = planned(tmp_path, sif, "precision=fp32", "+workload.env.WORD=private", "workload.command=true")

    text = " ".join(inside(item, tmp_path / "run"))

    assert "export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=0" in text
    assert "private" not in text


def test_links_are_seen_under_both_names_and_folders_before_what_is_in_them(tmp_path: Path, sif: Path) -> None:
    (tmp_path / "far" / "data").mkdir(parents=True)
    (tmp_path / "data").symlink_to(tmp_path / "far" / "data")
    words = [f"data.path={tmp_path}/data", "workload.command=true", f"container.binds=[{tmp_path}/run/deep]"]
    item = planned(tmp_path, sif, *words, "data.ships_with=null")

    found = [bind.split(":")[1] for bind in binds(inside(item, tmp_path / "run"))]

    assert {str(tmp_path / "data"), str(tmp_path / "far" / "data")} <= set(found)
    assert found.index(str(tmp_path)) < found.index(str(tmp_path / "run")) < found.index(f"{tmp_path}/run/deep")


def test_who_wants_to_write_to_the_data_may(tmp_path: Path, sif: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    words = [f"data.path={data}", "data.ships_with=null", "workload.command=true"]

    own = planned(tmp_path, sif, *words, f"container.binds=[{data}]")

    assert f"{data}:{data}:ro" in binds(inside(planned(tmp_path, sif, *words), tmp_path / "run"))
    assert [bind for bind in binds(inside(own, tmp_path / "run")) if str(data) in bind] == [f"{data}:{data}:rw"]


def test_a_bind_that_hides_the_working_directory_is_refused_when_planned(tmp_path: Path, sif: Path) -> None:
    item = planned(tmp_path, sif, "workload.command=true")
    hiding = replace(item.run, container=replace(item.run.container, binds=[f"/etc:{tmp_path}"]))

    with pytest.raises(ConfigError, match="choose another destination"):
        check_binds(item.plan, hiding)
    with pytest.raises(ConfigError, match="choose another destination"):
        planned(tmp_path, sif, "workload.command=true", f"container.binds=['/etc:{tmp_path}']")


@pytest.mark.parametrize("name", ["ngc_cuda", "ngc_rapids", "ngc_tensorflow", "ngc_tensorrt"])
def test_a_recipe_whose_framework_the_image_has_not_is_refused_when_planned(
    tmp_path: Path, sif: Path, name: str
) -> None:
    assert sif.exists()
    with pytest.raises(ConfigError, match="has no torch, which the recipe needs: choose container=ngc_pytorch"):
        planned_for(tmp_path, f"+container={name}", "model=mnist_mlp", "precision=fp32")


@pytest.mark.parametrize("words", [("+container=ngc_pytorch",), ("+container=ngc_cuda", "container.pip=[torch==2.6]")])
def test_a_recipe_whose_framework_the_image_has_or_gets_is_planned(
    tmp_path: Path, sif: Path, words: tuple[str, ...]
) -> None:
    assert sif.exists()
    (item,) = planned_for(tmp_path, *words, "model=mnist_mlp", "precision=fp32")

    assert item.run.model.framework == "torch"
