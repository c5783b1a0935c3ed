"""`make gpu-check` as far as a machine without a GPU can go: all its parts, with tiny sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hpcml.model.precision import CAPABILITIES  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.torch


def _script(theirs: Mapping[str, str], name: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / name), *words]
    environ = {**theirs, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, env=environ)


@pytest.mark.nightly("long")
def test_it_goes_the_whole_way_and_lists_what_is_unknown(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    done = _script(hpcml_environ, "gpu_check.py", "--on-cpu", "--out", str(tmp_path))

    assert done.returncode == 0, done.stderr
    answer = json.loads((tmp_path / "gpu-check.json").read_text(encoding="utf-8"))
    parts = {part["title"]: part for part in answer["parts"]}
    assert not [fault for part in parts.values() for fault in part["faults"]]
    probed = parts["Probe of every precision"]["answer"]
    assert {row["precision"] for row in probed if row["framework"].startswith("torch ")} == {
        name.name for name, row in CAPABILITIES.items() if row.trains
    }
    native = {row["precision"] for row in probed if row.get("numerics") == "native" and row["precision"][:3] == "fp8"}
    assert native == {"fp8_e4m3", "fp8_hybrid"}  # a CPU has their products too
    (int8,) = {row["measured"] for row in probed if row["precision"] == "int8" and row["framework"] == "torch"}
    assert int8 == "refused: model=inference deploys networks in it"
    assert not any("int8" in one for part in parts.values() for one in part["unknown"])
    scaled = parts["FP8, against the emulation"]["answer"]
    assert {row["precision"] for row in scaled} == native
    assert all(0.01 < row["error"] < 0.2 and row["left"] < 1e-5 for row in scaled)
    rounded = {row["precision"]: row["rounded"] for row in parts["Rounding of inputs, against the emulation"]["answer"]}
    assert rounded == {"tf32": "rna", "amp_fp16": "rne", "amp_bf16": "rne", "bf16": "rne", "fp16": "rne"}
    assert {row["precision"] for row in parts["Precision study"]["answer"]} == {"fp32", "tf32", "fp64"}
    assert "torch's best: its clock is a GPU's" in parts["Products of matrices, against torch's best"]["unknown"]
    assert "figures say nothing" in (tmp_path / "gpu-check.md").read_text(encoding="utf-8")


def test_without_a_gpu_it_says_so_in_a_line_and_writes_nothing(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = _script(hpcml_environ, "gpu_check.py", "--out", str(tmp_path / "out"))

    assert done.returncode == 2
    assert done.stderr == "gpu_check: torch sees no GPU here: use a machine that has one, or --on-cpu\n"
    assert not (tmp_path / "out").exists()


def test_the_list_of_wheels_is_what_hpcml_asks_for(hpcml_environ: dict[str, str]) -> None:
    done = _script(hpcml_environ, "gpu_check_wheels.py", "--list")

    wanted = {line.split(">")[0] for line in done.stdout.splitlines()}
    assert {"hydra-core", "scipy", "sqlalchemy", "pytest", "hypothesis"} < wanted
    assert not wanted & {"torch", "plotly"}
