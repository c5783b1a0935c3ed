"""What is refused of pyxis, and how it is found; tests/schedulers/slurm/test_pyxis.py starts programs by a double."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcml.commands.submit.containers import runtime_for
from hpcml.errors import ConfigError, ImageError
from hpcml.images.readiness import ready_for_images
from hpcml.images.runtime import find_builder, find_runtime
from hpcml.images.runtimes import CONTAINER_RUNTIMES, Start, runtime_named
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.model.container import RUNTIMES, Bind, ContainerGpu
from tests.cli.command_line import Hpcml
from tests.commands.planning import planned_for

SLURM = ["+cluster=karolina", "resources.account=OPEN-0-0"]
NAMED = [*SLURM, "container.runtime=pyxis", "+container=ngc_pytorch", "container.tag=24.12-py3", "precision=fp32"]


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    """A user with an empty project."""
    (tmp_path / "project").mkdir()
    return Hpcml(hpcml_environ, tmp_path / "project")


def refusal_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the only line that is no warning: the Slurm of this machine need not run."""
    (line,) = (each for each in done.stderr.splitlines() if not each.startswith("hpcml: warning: "))
    return line


def test_a_dry_run_says_by_what_name_the_image_is_found(hpcml: Hpcml) -> None:
    done = hpcml("run", "-n", *NAMED, "workload.command=true")

    assert "image: nvcr.io#nvidia/pytorch:24.12-py3, which pyxis finds by that name" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pyxis", *SLURM, "+container=ngc_pytorch", "container.apt=[git]"], "container.apt: pyxis"),
        (["pyxis", *SLURM, "+container=ngc_pytorch_horovod"], "nothing of what ngc_pytorch_horovod.def puts upon its"),
        (["pyxis", *SLURM, "+container=docker", "container.image=a", "container.tag=b",
          "container.registry=http://127.0.0.1:5"], "asks registries by https only"),
        (["pyxis", *SLURM, "+container=sandbox", "container.path=/bin"], "pyxis takes squashfs files"),
        (["pyxis", *SLURM, "+container=local", "container.path=/bin"], "container.path: pyxis takes squashfs files"),
        (["pyxis", "+container=ngc_pytorch"], "is a part of slurm, and the run is for local"),
        (["pyxis", *SLURM, "+container=ngc_pytorch", "container.options=[--container-mounts=/a:/b]"],
         "set container.binds"),
        (["pyxis", *SLURM, "+container=ngc_pytorch", "container.gpu=rocm"], "brings no such driver inside"),
        (["podman", "+container=ngc_pytorch"], "choose apptainer, singularity, pyxis"),
    ],
)  # fmt: skip
def test_what_a_runtime_cannot_do_is_refused_in_one_line(hpcml: Hpcml, words: list[str], says: str) -> None:
    done = hpcml("run", f"container.runtime={words[0]}", *words[1:], "workload.command=true", "precision=fp32")

    assert done.returncode == 2
    assert says in refusal_of(done)
    assert hpcml.runs() == []


def test_a_sif_is_no_image_for_pyxis(hpcml: Hpcml) -> None:
    (hpcml.cwd / "a.sif").write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0")

    done = hpcml("run", *SLURM, "container.runtime=pyxis", "+container=sif", f"container.path={hpcml.cwd}/a.sif",
                 "workload.command=true", "precision=fp32")  # fmt: skip

    assert done.returncode == 2
    assert "pyxis takes squashfs files (.sqsh) and images of registries as they are, and this is none" in refusal_of(
        done
    )


def test_a_definition_of_the_project_is_not_silently_left_out(hpcml: Hpcml) -> None:
    (hpcml.cwd / "containers").mkdir()
    (hpcml.cwd / "containers" / "ngc_pytorch.def").write_text("Bootstrap: docker\nFrom: nvcr.io/nvidia/pytorch\n")

    done = hpcml("run", *NAMED, "workload.command=true")

    assert done.returncode == 2
    assert "reads no definition" in refusal_of(done)


def test_a_site_chooses_its_runtime_and_the_user_another(tmp_path: Path) -> None:
    words = [
        *SLURM,
        "cluster.container_runtime=pyxis",
        "+container=ngc_pytorch",
        "precision=fp32",
        "workload.command=true",
    ]

    (item,) = planned_for(tmp_path, *words)

    assert item.run.container.tag is not None
    assert runtime_for(item.run) == "pyxis"
    (item,) = planned_for(tmp_path, *words, "container.runtime=apptainer")
    assert runtime_for(item.run) == "apptainer"


@pytest.mark.parametrize("path", ["/a:b", "/a,b"])
def test_a_path_at_which_a_runtime_splits_is_refused(path: str) -> None:
    start = Start(image="/i.sqsh", command=["true"], cwd="/w", home="/h", binds=[Bind(source=path, destination="/d")])

    with pytest.raises(ConfigError, match="at which it splits"):
        CONTAINER_RUNTIMES["pyxis"].words_for(start)


def test_the_driver_is_asked_for_as_pyxis_wants_it() -> None:
    start = Start(image="x", command=["true"], cwd="/w", home="/h", gpu=ContainerGpu.nv)

    text = " ".join(CONTAINER_RUNTIMES["pyxis"].words_for(start))

    assert "NVIDIA_VISIBLE_DEVICES=all" in text


def test_srun_without_pyxis_is_no_pyxis(tmp_path: Path) -> None:
    for name, text in (("with", "--container-image=X"), ("without", "--nodes=N")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "srun").write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / name / "srun").chmod(0o755)

    environ = {"PATH": f"{tmp_path}/with:/usr/bin:/bin"}
    assert find_runtime(environ, "pyxis").name == "pyxis"
    with pytest.raises(ImageError, match="pyxis takes squashfs files"):
        find_builder(environ, "pyxis")
    with pytest.raises(ImageError, match="srun does not work here"):
        find_runtime({"PATH": f"{tmp_path}/without:/usr/bin:/bin"}, "pyxis")


def test_every_name_of_the_settings_has_an_entry() -> None:
    assert [runtime_named(name).name for name in RUNTIMES] == list(RUNTIMES)


def test_doctor_looks_for_what_the_site_starts_images_with_and_no_further(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\necho --container-image=X\n")
    (tmp_path / "srun").chmod(0o755)
    site = Cluster(name="here", scheduler=SchedulerName.slurm, container_runtime="pyxis")

    found = list(ready_for_images(site, {"PATH": f"{tmp_path}:/usr/bin:/bin"}, network=False))

    assert [(what, is_well) for what, is_well, _ in found] == [("containers", True), ("images", True)]
    assert found[0][2].startswith("pyxis ")
    assert "hpcml builds none" in found[1][2]
