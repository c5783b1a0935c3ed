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


def test_variables_that_change_how_a_program_computes_are_facts_and_no_others() -> None:
    given = {
        "NCCL_ALGO": "Ring",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "OMP_NUM_THREADS": "4",
        "XLA_FLAGS": "--xla_gpu_deterministic_ops=true",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "NVIDIA_TF32_OVERRIDE": "0",
        "PATH": "/bin",
        "HOME": "/home/somebody",
    }

    assert host.telling_variables(given) == {
        f"env.{name}": value for name, value in sorted(given.items()) if name not in ("PATH", "HOME")
    }


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA_API_KEY", "TF_TOKEN_app_terraform_io", "TORCH_HUB_TOKEN", "MKL_PASSWORD", "CUDA_AUTH"),
        *("WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_NCCL_ALGO", "NVIDIA_SOMETHING", "TF_CONFIG"),
    ],
)
def test_what_may_be_a_secret_is_no_fact(name: str) -> None:
    assert host.telling_variables({name: "value"}) == {}
