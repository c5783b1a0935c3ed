"""The definitions in containers/, built from a registry on this machine in NVIDIA's place, and read without any.

What stands for NVIDIA's images is one of Busybox, in which python3, nvcc and mpirun only say how they were called.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcml.config.compose import compose_from_cli
from hpcml.images import releases
from hpcml.paths import resource_dir
from tests.cli.command_line import Hpcml
from tests.cluster.apptainer.registry import Registry, make_base
from tests.images.test_registry import closed_port
from tests.images.user import ImageUser

_FOLDER = resource_dir("containers")
NAMES = sorted(path.stem for path in _FOLDER.glob("ngc_*.def"))


def base_of(name: str) -> str:
    found = re.search(r"^From: nvcr\.io/(\S+)$", (_FOLDER / f"{name}.def").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_definition_and_the_configuration_name_the_same_image(name: str, tmp_path: Path) -> None:
    (point,) = compose_from_cli([f"+container={name}"], project=tmp_path, most=1)
    container = point.run.container

    assert container.image is not None
    tag = container.tag or releases.newest(container.image, None, None).tag
    assert f"{container.image}:{tag}" == base_of(name)


def test_each_shipped_configuration_of_an_image_to_build_has_its_definition() -> None:
    assert sorted(path.stem for path in resource_dir("conf").glob("container/ngc_*.yaml")) == NAMES


@pytest.mark.apptainer
def test_apptainer_builds_each_as_it_is_and_hpcml_the_same(
    user: ImageUser, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> None:
    layout = make_base(tmp_path_factory.mktemp("ngc"), words="in NVIDIA's place\n", says=("python3", "nvcc", "mpirun"))
    for name in NAMES:
        registry.push(layout, "base", base_of(name))

    built = user("build", "-m", f"+container={','.join(NAMES)}", f"container.registry={registry.url}")
    assert built.returncode == 0, built.stderr
    found = {item["base"].partition("/")[2]: item for item in user.listed()}
    assert sorted(found) == sorted(base_of(name) for name in NAMES)

    by_hand = user.folder / "by_hand.def"
    text = (_FOLDER / "ngc_pytorch_horovod.def").read_text(encoding="utf-8")
    by_hand.write_text(text.replace("nvcr.io", registry.host), encoding="utf-8")
    done = user.account.run(
        ["apptainer", "build", "by_hand.sif", str(by_hand)],
        cwd=user.folder,
        environ=user.variables(APPTAINER_NOHTTPS="1"),
    )
    assert done.returncode == 0, done.stderr
    look = ("sh", "-c", "cat /etc/words /said; echo $PYTHONNOUSERSITE")
    ours = found[base_of("ngc_pytorch_horovod")]["path"]
    assert user.inside(str(user.folder / "by_hand.sif"), *look) == user.inside(ours, *look)
    assert "pip install --no-cache-dir --no-build-isolation horovod==" in user.inside(ours, "cat", "/said")


def test_a_dry_run_shows_the_whole_definition_without_a_network(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    host = closed_port()
    hpcml = Hpcml(environ=hpcml_environ, cwd=tmp_path)

    shown = hpcml("build", "-n", "+container=ngc_cuda", f"container.registry=http://{host}")

    assert shown.returncode == 0, shown.stderr
    assert f"From: {host}/nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04\n" in shown.stdout
    assert "%test\n" in shown.stdout
    assert re.search(r"^base    \S+ unresolved: ", shown.stdout, re.MULTILINE)
