"""Runs to exchange, as hpcml leaves them in a home, and what a user types to exchange them."""

from __future__ import annotations

import importlib
import json
import math
import os
from pathlib import Path
from types import ModuleType

import pytest

from tests.store.building import T0, Journal, make_run_dir

EVIL = "a\"b\\c\nd, <i>'; DROP TABLE run;-- \u202e ü"  # of quotes, lines, markup, SQL, reversed writing
PLAIN, ODD, OPEN = (f"20260528-20264{number}-{letter * 6}" for number, letter in enumerate("abc"))


def real(package: str) -> ModuleType:
    """Return the real tool; where it is missing the test is skipped, in CI it fails."""
    if os.environ.get("CI") == "true":
        return importlib.import_module(package)
    module: ModuleType = pytest.importorskip(package)
    return module


def make_runs(home: Path) -> None:
    """Leave a run as most are, one with odd words and values that ended badly, and one that goes on."""
    plain = make_run_dir(home / "runs", PLAIN, seed=1, name="baseline", tags=["paper"])
    agent, rank0 = Journal(plain, writer="agent", attempt=0), Journal(plain, attempt=0, t0=T0 + 1)
    agent.event("attempt_started", hostname="n1")
    agent.event("facts", gpu_model="NVIDIA A100", cores=8, hostname="n1", torch="2.13.0")
    for step in range(5):
        rank0.metrics(step, step / 4, loss=1 / (step + 1), **{"val/accuracy": step / 10})
    logged = plain.path / "model.txt"
    logged.write_text("weights")
    rank0.event("artifact", 3.0, path="model.txt", kind="model", bytes=7)
    plain.logs.mkdir()
    plain.stdout(0, 0).write_text("hello\n")
    plain.git_diff.write_text("--- a\n+++ b\n")
    gpu = {"uuid": "GPU-1", "scope": "gpu", "energy_j": 2500.0, "energy_covered_s": 10.0, "energy_method": "counter"}
    of_gpu = {f"gpu0_{name}": value for name, value in gpu.items()}
    agent.event("telemetry", 10.0, node=0, gpus=1, wall_s=10.0, energy_j=2500.0, host_cpu_s=4.0, **of_gpu)
    rank0.event("work", devices=1, model_flops=2e9, samples=64.0)
    agent.event("attempt_ended", 10.0, state="COMPLETED", exit_code=0, wall_s=10.0)

    odd = make_run_dir(home / "runs", ODD, seed=2, name=EVIL, tags=[EVIL, "final"], experiment="other")
    agent, rank0 = Journal(odd, writer="agent", attempt=0), Journal(odd, attempt=0)
    agent.event("attempt_started")
    agent.event("facts", gpu_model=EVIL, cores="many")
    for step, value in enumerate((1.5, math.nan, math.inf, -math.inf, 1e300)):
        rank0.metrics(step, step, **{EVIL: value, "loss@1": step, "loss_1": step * 2.0, "n" * 10_000: 1.0})
    rank0.metrics(2**60, 9.0, loss=math.nan)
    agent.event("attempt_ended", 10.0, state="FAILED", exit_code=1, wall_s=10.0, reason=EVIL, cause="program")

    going = make_run_dir(home / "runs", OPEN, seed=3)
    agent, rank0 = Journal(going, writer="agent", attempt=0), Journal(going, attempt=0)
    agent.event("submitted", scheduler="slurm", job_id="4711")
    agent.event("attempt_started", hostname="elsewhere", job_id="4711")
    rank0.metrics(0, 0.5, loss=2.0)


def goes_on(home: Path, *, until: int) -> None:
    """Let the open run report the steps up to *until*, and end."""
    journals = home / "runs" / "default" / OPEN / "journal"
    with (journals / "0-node7-rank0.jsonl").open("a") as file:
        for step in range(1, until + 1):
            file.write(json.dumps({"k": "m", "s": step, "t": step, "i": step, "v": {"loss": 2.0 - step / 10}}) + "\n")
    with (journals / "0-node7-agent.jsonl").open("a") as file:
        end = {"state": "COMPLETED", "exit_code": 0, "wall_s": 60.0}
        file.write(json.dumps({"k": "e", "s": 2, "t": 60.0, "n": "attempt_ended", "d": end}) + "\n")
