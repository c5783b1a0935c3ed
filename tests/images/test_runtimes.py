"""enroot on a double made from its documentation, and what is refused of pyxis: the real ones were never run here.

The double (tests/cluster/runtimes) starts programs in an image for real, as root, by namespaces and mounts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml.errors import ConfigError, ImageError
from hpcml.images.readiness import ready_for_images
from hpcml.images.runtime import find_builder, find_runtime
from hpcml.images.runtimes import CONTAINER_RUNTIMES, Start, runtime_named
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.model.container import RUNTIMES, Bind, ContainerGpu
from tests.cli.command_line import Hpcml, said_in_one_line
from tests.commands.planning import planned_for
from tests.images.inside import make_tree
from tests.parts import require

SLURM = ["+cluster=karolina", "resources.account=OPEN-0-0"]
NAMED = [*SLURM, "container.runtime=pyxis", "+container=ngc_pytorch", "container.tag=24.12-py3", "precision=fp32"]
DOUBLE = Path(__file__).parents[1] / "cluster" / "runtimes" / "doubles.py"
PROBE = """
echo "cwd $(pwd) home $HOME"
echo "word $WORD two $TWO"
echo "image $OF_IMAGE switch $NVIDIA_TF32_OVERRIDE"
echo "shell ${OF_SHELL:-none} prefixed $(env | grep -c HPCMLENV_)"
echo "run $HPCML_RUN_ID gpus ${NVIDIA_VISIBLE_DEVICES:-unset} login ${DOUBLE_READ_A_LOGIN_PROFILE:-no}"
touch written-here && echo written
touch /etc/changed 2>/dev/null && echo changed-the-image
touch {data}/x 2>/dev/null && echo changed-the-data
exit 3
"""


def lacking() -> str | None:
    if os.geteuid() != 0:
        return "namespaces are made by root in this test"
    programs = ("/usr/bin/unshare", "/usr/bin/unsquashfs", "/usr/bin/mksquashfs", "/usr/bin/python3", "/bin/busybox")
    missing = [path for path in programs if not Path(path).exists()]
    return f"not installed: {', '.join(missing)}" if missing else None


@pytest.fixture(scope="module")
def squashfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of busybox as enroot keeps them, which sets variables of its own."""
    require("squashfs", lacking())
    folder = tmp_path_factory.mktemp("squashfs")
    tree = make_tree(folder / "tree")
    (tree / "etc" / "environment").write_text("OF_IMAGE=yes\nWORD=of the image\nNVIDIA_TF32_OVERRIDE=1\n")
    subprocess.run(["mksquashfs", tree, folder / "image.sqsh", "-quiet", "-no-progress"], check=True)
    return folder / "image.sqsh"


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    """A user who has enroot."""
    programs, project = tmp_path / "bin", tmp_path / "project"
    for folder in (programs, project):
        folder.mkdir()
    (programs / "enroot").symlink_to(DOUBLE)
    (project / "probe.sh").write_text(PROBE.replace("{data}", str(tmp_path / "data")))
    (tmp_path / "data").mkdir()
    environ = {
        **hpcml_environ,
        "PATH": f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "OF_SHELL": "outside",
    }
    return Hpcml(environ, project)


def refusal_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the only line that is no warning: the Slurm of this machine need not run."""
    (line,) = (each for each in done.stderr.splitlines() if not each.startswith("hpcml: warning: "))
    return line


def in_image(squashfs: Path) -> list[str]:
    return ["container.runtime=enroot", "+container=sif", f"container.path={squashfs}", "precision=fp32"]


def test_a_program_runs_in_the_image_as_it_would_by_apptainer(hpcml: Hpcml, squashfs: Path) -> None:
    data = hpcml.cwd.parent / "data"
    words = [f"data.path={data}", "data.ships_with=null", "+workload.env.WORD='a $HOME \"b\"'"]

    done = hpcml("run", *in_image(squashfs), *words, "+workload.env.TWO=2", "workload.command='sh probe.sh'")

    (run,) = hpcml.runs()
    printed = (Path(run["path"]) / "logs" / "0-rank0.out").read_text().splitlines()
    assert (run["state"], run["exit_code"]) == ("FAILED", 3), (done.stderr, printed)
    assert printed == [
        f"cwd {run['path']}/work/project home {hpcml.environ['HOME']}",
        'word a $HOME "b" two 2',
        "image yes switch 0",  # fp32 has the last word
        "shell none prefixed 0",
        f"run {run['uid']} gpus void login no",
        "written",
    ]
    assert run["facts"]["image"] == str(squashfs)


def test_an_image_may_be_written_to_where_that_is_asked_for(hpcml: Hpcml, squashfs: Path) -> None:
    hpcml("run", *in_image(squashfs), "container.writable_tmpfs=true", "workload.command='touch /etc/changed'")
    (run,) = hpcml.runs()

    assert run["state"] == "COMPLETED"


def test_a_dry_run_says_by_what_name_the_image_is_found(hpcml: Hpcml) -> None:
    done = hpcml("run", "-n", *NAMED, "workload.command=true")

    assert "image: nvcr.io#nvidia/pytorch:24.12-py3, which pyxis finds by that name" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["enroot", "+container=ngc_pytorch"], "enroot import -o pytorch.sqsh 'docker://nvcr.io#nvidia"),
        (["enroot", "+container=ngc_pytorch", "container.pip=[timm]"], "container.pip: enroot takes"),
        (["pyxis", *SLURM, "+container=ngc_pytorch", "container.apt=[git]"], "container.apt: pyxis"),
        (["pyxis", *SLURM, "+container=ngc_cuda", "container.build=job"], "container.build=job"),
        (["enroot", "+container=local", "container.path=/bin"], "container.path: enroot takes squashfs files"),
        (["pyxis", *SLURM, "+container=ngc_pytorch_horovod"], "nothing of what ngc_pytorch_horovod.def puts upon its"),
        (["enroot", "+container=sif", "container.path=/bin/sh", "container.options=[--env=A=b]"], "set workload.env"),
        (["pyxis", *SLURM, "+container=docker", "container.image=a", "container.tag=b",
          "container.registry=http://127.0.0.1:5"], "asks registries by https only"),
        (["enroot", "+container=sandbox", "container.path=/bin"], "enroot takes squashfs files"),
        (["pyxis", "+container=ngc_pytorch"], "is a part of slurm, and the run is for local"),
        (["pyxis", *SLURM, "+container=ngc_pytorch", "container.options=[--container-mounts=/a:/b]"],
         "set container.binds"),
        (["pyxis", *SLURM, "+container=ngc_pytorch", "container.gpu=rocm"], "brings no such driver inside"),
        (["podman", "+container=ngc_pytorch"], "choose apptainer, singularity, enroot, pyxis"),
    ],
)  # fmt: skip
def test_what_a_runtime_cannot_do_is_refused_in_one_line(hpcml: Hpcml, words: list[str], says: str) -> None:
    done = hpcml("run", f"container.runtime={words[0]}", *words[1:], "workload.command=true", "precision=fp32")

    assert done.returncode == 2
    assert says in refusal_of(done)
    assert hpcml.runs() == []


def test_a_sif_is_no_image_for_enroot(hpcml: Hpcml) -> None:
    (hpcml.cwd / "a.sif").write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0")

    done = hpcml("run", "container.runtime=enroot", "+container=sif", f"container.path={hpcml.cwd}/a.sif",
                 "workload.command=true", "precision=fp32")  # fmt: skip

    assert done.returncode == 2
    assert "enroot takes squashfs files as they are (.sqsh), and this is none" in said_in_one_line(done)


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
    with pytest.raises(ConfigError, match=r"enroot import -o pytorch\.sqsh"):
        planned_for(tmp_path, *words, "container.runtime=enroot")


@pytest.mark.parametrize(("name", "path"), [("enroot", "/with space"), ("enroot", "/a:b"), ("pyxis", "/a,b")])
def test_a_path_at_which_a_runtime_splits_is_refused(name: str, path: str) -> None:
    start = Start(image="/i.sqsh", command=["true"], cwd="/w", home="/h", binds=[Bind(source=path, destination="/d")])

    with pytest.raises(ConfigError, match="at which it splits"):
        CONTAINER_RUNTIMES[name].words_for(start, {})


def test_enroot_would_cut_a_value_of_several_lines() -> None:
    start = Start(image="/i.sqsh", command=["true"], cwd="/w", home="/h")

    with pytest.raises(ConfigError, match=r"workload\.env\.A holds a line break"):
        CONTAINER_RUNTIMES["enroot"].words_for(start, {"A": "1\n2"})


@pytest.mark.parametrize("name", ["enroot", "pyxis"])
def test_the_driver_is_asked_for_as_each_runtime_wants_it(name: str) -> None:
    start = Start(image="x", command=["true"], cwd="/w", home="/h", gpu=ContainerGpu.nv)

    text = " ".join(CONTAINER_RUNTIMES[name].words_for(start, {}))

    assert "NVIDIA_VISIBLE_DEVICES=all" in text


def test_enroot_is_found_and_asked_for_its_version_and_builds_nothing(hpcml: Hpcml) -> None:
    assert find_runtime(hpcml.environ, "enroot").version == "4.0.1"
    with pytest.raises(ImageError, match="enroot takes squashfs files as they are"):
        find_builder(hpcml.environ, "enroot")


def test_srun_without_pyxis_is_no_pyxis(tmp_path: Path) -> None:
    for name, text in (("with", "--container-image=X"), ("without", "--nodes=N")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "srun").write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / name / "srun").chmod(0o755)

    assert find_runtime({"PATH": f"{tmp_path}/with:/usr/bin:/bin"}, "pyxis").name == "pyxis"
    with pytest.raises(ImageError, match="srun does not work here"):
        find_runtime({"PATH": f"{tmp_path}/without:/usr/bin:/bin"}, "pyxis")


def test_every_name_of_the_settings_has_an_entry() -> None:
    assert [runtime_named(name).name for name in RUNTIMES] == list(RUNTIMES)


def test_doctor_looks_for_what_the_site_starts_images_with_and_no_further(hpcml: Hpcml) -> None:
    site = Cluster(name="here", scheduler=SchedulerName.slurm, container_runtime="enroot")

    found = list(ready_for_images(site, hpcml.environ, network=False))

    assert [(what, is_well) for what, is_well, _ in found] == [("containers", True), ("images", True)]
    assert found[0][2].startswith("enroot 4.0.1, ")
    assert "hpcml builds none" in found[1][2]
