import os
from pathlib import Path

import pytest

from hpcml.agent import host
from tests.agent.test_gpu import GPUS


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [("max 100000", None), ("100000 100000", 1), ("150000 100000", 1), ("50000 100000", 1), ("", None)],
)
def test_a_cgroup_quota_limits_the_cores(tmp_path: Path, cpu_max: str, cores: int | None) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(cpu_max)

    assert host.usable_cores(file) == (cores or len(os.sched_getaffinity(0)))


def test_without_cgroups_the_affinity_counts(tmp_path: Path) -> None:
    assert host.usable_cores(tmp_path / "absent") == len(os.sched_getaffinity(0))


def test_facts_are_flat_and_name_the_gpus_by_uuid() -> None:
    facts = host.facts(GPUS)

    assert all(isinstance(value, str | int | float) for value in facts.values())
    assert facts["gpu_uuids"] == "GPU-aaaa-1,GPU-bbbb-2,GPU-bbbb-3"
    assert facts["gpu_model"] == "NVIDIA A100"


def test_a_machine_without_gpus_has_no_gpu_facts() -> None:
    assert not [name for name in host.facts([]) if name.startswith(("gpu", "n_gpu"))]
