"""Frameworks in images: their versions against what recipes ask, and the drivers and GPUs that images are for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from hpcml.commands.submit.containers import put_inside
from hpcml.commands.submit.plan import Planned
from hpcml.errors import ConfigError
from hpcml.model.recipe import OLDEST
from hpcml.model.strategy import KINDS, StrategyName
from hpcml.runs.layout import RunDir
from hpcml.runs.plan import Image
from tests.commands.planning import planned_for

_TORCH = ("+container=ngc_pytorch", "model=transformer_tiny", "precision=fp32")
_FSDP = (*_TORCH, "strategy=fsdp", "strategy.processes_per_node=2")
_KERAS = ("+container=ngc_tensorflow", "model=lstm", "model.framework=tensorflow", "precision=fp32")
_SITE = ("resources.account=me", "container.build=never")


@pytest.fixture(autouse=True)
def _runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put something called apptainer on PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "apptainer").write_text("#!/bin/sh\n")
    (programs / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")


def started(item: Planned, folder: Path) -> list[str]:
    image, run_dir = Image(path="/i.sif"), RunDir(folder / "run")
    return put_inside(item.plan, item.run, image, run_dir, folder=folder, code=None, packages=None).argv


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            (*_FSDP, "container.tag=24.10-py3"),
            "strategy=fsdp needs torch 2.6 or newer, and nvidia/pytorch:24.10-py3 has torch 2.5.0a0+e000cf0ad9: choose",
        ),
        ((*_FSDP, "container.tag=24.08-py3"), "has torch 2.5.0a0+b465a5843b or older: choose"),  # a month nobody read
        (
            (*_TORCH, "container.tag=23.05-py3"),
            "model=transformer_tiny needs torch 2.3 or newer, and nvidia/pytorch:23.05-py3 has torch 2.0.0: choose c",
        ),
        (
            (*_KERAS, "cluster=dgx2", *_SITE),
            "21.06-tf2-py3 has tensorflow 2.5: 21.06-tf2-py3 is the newest that runs on dgx2, for programs of your own",
        ),
        (
            (*_KERAS, "cluster=bridges", *_SITE),
            "and nvidia/tensorflow:21.12-tf2-py3 has tensorflow 2.15 or older: 21.12-tf2-py3 is the newest that",
        ),
        (
            (*_KERAS, "container.tag=21.12-tf2-py3"),
            "has tensorflow 2.15 or older: choose container.tag=25.02-tf2-py3, or container.pip=[tensorflow] with a",
        ),
    ],
)
def test_a_framework_that_is_too_old_is_refused_before_the_queue(
    tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        planned_for(tmp_path, *words)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        (*_FSDP, "container.tag=24.12-py3"),  # 2.6.0a0, of shortly before that release
        (*_TORCH, "container.tag=24.01-py3"),  # which one is not known, but 2.2 or newer
        ("+container=ngc_tensorflow", "model=mnist_mlp", "model.framework=tensorflow", "precision=fp32"),
        (*_FSDP, "container.tag=25.04-py3"),
        (*_FSDP, "container.tag=26.09-py3"),  # no older than the last that was read
        (*_FSDP, "container.tag=24.10-py3", "container.pip=[torch==2.6.0]"),
    ],
)
def test_what_is_not_known_to_be_too_old_is_left_to_the_program(tmp_path: Path, words: tuple[str, ...]) -> None:
    (item,) = planned_for(tmp_path, *words)

    assert item.run.container.tag is not None


def test_the_oldest_versions_are_those_of_the_package_and_of_the_strategies() -> None:
    sources = Path(__file__).parents[2]
    extras = tomllib.loads((sources / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for framework, version in OLDEST.items():
        assert f"{framework}>={version}" in extras[framework]
    words = (sources / "hpcml_train" / "torch" / "strategies.py").read_text()
    for name, version in re.findall(r"strategy=(\w+) needs torch (\S+) or newer", words):
        assert KINDS[StrategyName[name]].oldest == version


@pytest.mark.parametrize("site", ["lumi_g", "frontier"])
def test_where_gpus_are_amds_an_image_of_nvidias_is_refused_with_the_way_out(tmp_path: Path, site: str) -> None:
    with pytest.raises(ConfigError, match=f"is for GPUs of NVIDIA, and {site} has AMD's: take one with ROCm, as "):
        planned_for(tmp_path, f"+cluster={site}", *_TORCH, "resources.account=project_1")


def test_an_old_driver_gets_the_image_that_it_runs_and_the_images_own_libcuda(tmp_path: Path) -> None:
    (item,) = planned_for(tmp_path, "+cluster=bridges", "+container=ngc_pytorch", "workload.command=true", *_SITE)
    (other,) = planned_for(
        tmp_path,
        "+cluster=bridges",
        "cluster.gpu_model=GTX 1080",
        "+container=ngc_pytorch",
        "workload.command=true",
        *_SITE,
    )

    assert item.run.container.tag == "21.12-py3"  # for 495, and for 440.33 by forward compatibility
    assert "440.*" in " ".join(started(item, tmp_path))
    assert other.run.container.tag == "20.03-py3"
    assert "libcuda" not in " ".join(started(other, tmp_path))


def test_a_program_on_the_cpu_meets_no_libcuda(tmp_path: Path) -> None:
    (item,) = planned_for(tmp_path, "+container=ngc_pytorch", "container.tag=24.12-py3", "workload.command=true")

    assert "libcuda" not in " ".join(started(item, tmp_path))
