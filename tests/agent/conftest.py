"""Runs for the agent, with programs of the test's own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcml.commands.submit.plan import Software, build_plan
from hpcml.model.precision import CPU, Device
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import Manifest, write_manifest
from hpcml.runs.run_json import FORMAT
from tests.agent.node import MakeRun
from tests.cluster.nvml.building import build_library
from tests.conftest import ORIGIN, ComposeOne


@pytest.fixture
def make_run(compose_one: ComposeOne, tmp_path: Path) -> MakeRun:
    """Write the directory of a run whose program is *code*; keywords replace parts of its plan and provenance."""

    def make(
        code: str,
        *overrides: str,
        uid: str = "20261121-083015-222abcde",
        device: Device = CPU,
        **changes: Any,  # noqa: ANN401 - of whatever part of a plan
    ) -> RunDir:
        run = compose_one("workload.command=replaced", *overrides)
        software = Software(python=sys.executable, recipes=tmp_path, cwd=tmp_path)
        plan = build_plan(run, device, software, cpus_per_task=1)
        plan.argv[:] = [sys.executable, "-c", code]
        origin = ORIGIN
        if "submission_size" in changes:
            origin = replace(ORIGIN, submission="20261121-083015-sub", submission_size=changes.pop("submission_size"))
        run_dir = RunDir(tmp_path / "home" / "runs" / "default" / uid)
        run_dir.journals.mkdir(parents=True)
        manifest = Manifest(
            format=FORMAT,
            uid=uid,
            spec_hash=run.spec_hash,
            run=run,
            plan=replace(plan, **changes),
            provenance=origin,
        )
        write_manifest(run_dir.manifest, manifest)
        return run_dir

    return make


@pytest.fixture
def requeue(tmp_path: Path) -> Callable[..., str]:
    """Write a program that stands where the scheduler's is; it leaves its words in the file asked."""

    def write(body: str) -> str:
        program = tmp_path / "requeue.sh"
        program.write_text(f'#!/bin/bash\necho "$@" >> {shlex.quote(str(tmp_path))}/asked\n{body}\n')
        program.chmod(0o755)
        return shlex.join([str(program), "two words"])

    return write


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake NVML, built once."""
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(nvml_library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Make this process, and those it starts, see the GPUs of a configuration, with faults; return the variables."""

    def use(config: str = "gpu\ngpu\n", **faults: str) -> dict[str, str]:
        (tmp_path / "gpus.txt").write_text(config)
        variables = {"HPCML_NVML_LIBRARY": str(nvml_library), "FAKE_NVML_CONFIG": str(tmp_path / "gpus.txt")}
        return _set_variables(monkeypatch, variables, faults)

    return use


def _set_variables(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], faults: dict[str, str]
) -> dict[str, str]:
    variables |= {f"FAKE_NVML_{name.upper()}": words for name, words in faults.items()}
    for name in ("CUDA_VISIBLE_DEVICES", "FAKE_NVML_FAIL", "FAKE_NVML_SLOW", *_OF_JOBS):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


_OF_JOBS = ("SLURM_JOB_ID", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "PBS_JOBID", "GPU_DEVICE_ORDINAL", "CUDA_DEVICE_ORDER")
