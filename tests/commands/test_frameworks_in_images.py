"""Frameworks in images: their versions against what recipes ask, and the drivers and GPUs that images are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.commands.submit.containers import put_inside
from hpcml.commands.submit.plan import Planned
from hpcml.errors import ConfigError
from hpcml.runs.layout import RunDir
from hpcml.runs.plan import Image
from tests.commands.planning import planned_for

_TORCH = ("+container=ngc_pytorch", "model=transformer_tiny", "precision=fp32")
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
