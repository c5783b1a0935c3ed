"""An Open MPI inside of an Apptainer image, started by srun on two nodes of a real Slurm: the hybrid way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.apptainer import registry as registries
from tests.cluster.apptainer.registry import PATH, Registry
from tests.cluster.mpi import building
from tests.cluster.slurm.account import Account
from tests.schedulers.slurm.test_slurm_containers import words
from tests.schedulers.slurm.user import Hpcml

pytestmark = [pytest.mark.slurm, pytest.mark.apptainer]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, account: Account) -> Iterator[Registry]:  # noqa: ARG001 - it runs
    for reason in (registries.missing(), building.missing()):
        if reason:
            assert os.environ.get("CI") != "true", reason
            pytest.skip(reason)
    layout = registries.make_base(tmp_path_factory.mktemp("base"), words="the base of a run\n")
    with registries.running(tmp_path_factory.mktemp("registry"), needs_login=False) as found:
        found.push(layout, "base", "nvidia/pytorch:24.12-py3")
        yield found


def test_ranks_in_images_find_each_other_by_the_schedulers_pmix(
    slurm: Account, folder: Path, registry: Registry
) -> None:
    places = {"HPCML_IMAGES": str(folder / "images"), "PATH": f"{slurm.python.parent}:{PATH}"}
    hpcml = Hpcml(slurm, folder, environ={"HPCML_POLL_INTERVAL_S": "0", "HOME": str(folder / "me"), **places})
    program = building.build(folder)
    # The image has no libraries of its own: Debian's Open MPI is put into it where it lies
    openmpi = [f"{path}:{path}:ro" for path in (program, "/usr/share/openmpi", "/etc/openmpi")]
    tmpfs = slurm.cluster.root / "pmix"  # the site's TmpFS: ranks make folders in it; where it is /tmp, it is there
    image = words(registry, *openmpi, f"{tmpfs}:{tmpfs}")
    ranks = ["strategy=mpi", "strategy.processes_per_node=2", "resources.nodes=2", "resources.partition=qgpu"]

    hpcml.submit(
        *image,
        *ranks,
        "cluster.mpi=pmix",
        *building.settings(),
        f"workload.command='{program} sum'",
        "resources.mem=1G",
    )

    (run,) = hpcml.runs_once_ended()
    logs = [path.read_text() for path in sorted(Path(run["path"]).glob("logs/*"))]
    assert run["state"] == "COMPLETED", (run["reason"], logs)
    said = [(Path(run["path"]) / "logs" / f"0-rank{rank}.out").read_text() for rank in range(4)]
    assert [line.partition(" on ")[0] for line in said] == [
        f"rank {rank} of 4 sum 10 as {rank} of 4" for rank in range(4)
    ]
    assert run["facts"]["image_sha256"]
