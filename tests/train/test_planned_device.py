"""A GPU that was planned and is not there ends a recipe in one line, which is the reason of the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from hpcml.model.failure_causes import ended_because
from hpcml.paths import resource_dir

pytestmark = pytest.mark.torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "run.json"
    config.write_text(json.dumps({"run": {"data": {"name": "line"}}, "plan": {"device": "cuda"}}))
    environ = {**os.environ, "HPCML_RUN_DIR": str(tmp_path), "HPCML_CONFIG": str(config)}
    program = [sys.executable, str(resource_dir("recipes") / "linear_mse" / "train.py")]

    done = subprocess.run(program, env=environ, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    reason = ended_because(line)
    assert reason is not None
    assert reason.startswith(f"the plan says cuda, but torch {torch.__version__} sees no GPU: is it built for CUDA, ")
