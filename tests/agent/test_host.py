import os
from pathlib import Path

import pytest

from hpcml.agent import host


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


def test_facts_are_flat() -> None:
    facts = host.facts()

    assert facts["cores"] >= 1
    assert all(isinstance(value, str | int | float) for value in facts.values())
