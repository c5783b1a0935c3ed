"""Packed runs on MIG slices: side by side, each with one slice alone."""

from __future__ import annotations

import signal
from pathlib import Path

from hpcml.runs.layout import RunDir
from tests.agent.node import ON_SLURM, MakeRun, agent, began, start_agent, told, wait_for
from tests.agent.test_packs import batch

SLICES = "MIG-GPU-1/1/0,MIG-GPU-1/2/0"
ON_SLICES = (*ON_SLURM, "cluster.mig_type='a100_{mig}'", "cluster.gpu_model=A100-SXM4-40GB", "resources.mig=1g.5gb",
             "resources.gpus_per_node=2", "schedule.pack=all")  # fmt: skip
# Waits for the other: who runs alone never ends
MEETS = """
import os, time
own, runs = os.environ["HPCML_RUN_DIR"], os.path.dirname(os.environ["HPCML_RUN_DIR"])
open(own + "/here", "w").write(os.environ["CUDA_VISIBLE_DEVICES"])
until = time.monotonic() + 200
while not os.path.exists(os.path.join(runs, OTHER, "here")):
    assert time.monotonic() < until, "the other run has not begun"
    time.sleep(0.05)
"""
SAYS = """
import os
open(os.environ["HPCML_RUN_DIR"] + "/here", "w").write(os.environ["CUDA_VISIBLE_DEVICES"])
assert "HPCML_LANE" not in os.environ
raise SystemExit(int(os.environ["HPCML_RUN_ID"] == "d"))
"""
WAITS = """
import os, time
open(os.environ['HPCML_RUN_DIR'] + '/began', 'w').close()
time.sleep(600)
"""


def pack(make_run: MakeRun, codes: dict[str, str]) -> list[RunDir]:
    environment: dict[str, str | None] = {}  # nothing that hides the slices, as a run on the CPU would
    return [make_run(code, *ON_SLICES, uid=uid, environment=environment) for uid, code in codes.items()]


def test_two_runs_compute_at_once_each_on_its_own_slice_and_the_others_follow(
    make_run: MakeRun, tmp_path: Path
) -> None:
    meets = {"a": MEETS.replace("OTHER", "'b'"), "b": MEETS.replace("OTHER", "'a'")}
    runs = pack(make_run, {**meets, "c": SAYS, "d": SAYS, "e": SAYS})

    process = start_agent("--batch", batch(tmp_path, runs), CUDA_VISIBLE_DEVICES=SLICES, SLURM_JOB_ID="7")
    status = process.wait(300)

    seen = [(run.path / "here").read_text() for run in runs]
    first, second = SLICES.split(",")
    assert seen == [first, second, first, second, first]
    assert [told(run, "attempt_ended")[0]["state"] for run in runs] == [*["COMPLETED"] * 3, "FAILED", "COMPLETED"]
    assert status == 1
    assert {told(run, "attempt_started")[0]["pack"] for run in runs} == {"20261121-083015-sub-1/0"}


def test_a_signal_of_the_job_reaches_every_lane(make_run: MakeRun, tmp_path: Path) -> None:
    runs = pack(make_run, {"a": WAITS, "b": WAITS, "c": SAYS})
    process = start_agent("--batch", batch(tmp_path, runs), CUDA_VISIBLE_DEVICES=SLICES, SLURM_JOB_ID="7")
    wait_for(lambda: began(runs[0]) and began(runs[1]), "both programs")

    process.send_signal(signal.SIGTERM)
    process.wait(300)

    assert all(told(run, "attempt_interrupted") for run in runs[:2])
    assert told(runs[2], "attempt_started") == []


def test_with_one_slice_they_run_one_after_the_other(make_run: MakeRun, tmp_path: Path) -> None:
    runs = pack(make_run, {"a": SAYS, "b": SAYS})

    done = agent("--batch", batch(tmp_path, runs), CUDA_VISIBLE_DEVICES="MIG-GPU-1/1/0", SLURM_JOB_ID="7")

    assert done.returncode == 0, done.stderr
    assert [(run.path / "here").read_text() for run in runs] == ["MIG-GPU-1/1/0"] * 2
