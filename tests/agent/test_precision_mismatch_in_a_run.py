"""A run whose device computes in another precision: a real agent, a real program, a real probe."""

from __future__ import annotations

import pytest

from tests.agent.node import MakeRun, agent, told

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# TF32 on a CPU that claims to have it is FP32; no plan says so, hence the program changes what it was asked for.
PROGRAM = """
import os
os.environ["HPCML_PRECISION"] = "tf32"
import hpcml_client
with hpcml_client.connect() as run:
    run.apply_precision("torch")
    run.metric("loss", 1.0)
"""
WORDS = "precision=tf32 was asked for, but fp32 was measured on cpu"


def test_the_run_has_failed_for_it_and_says_both_precisions(make_run: MakeRun) -> None:
    run_dir = make_run(PROGRAM, "precision=fp32")

    done = agent(str(run_dir.path))

    (end,) = told(run_dir, "attempt_ended")
    assert (end["state"], end["cause"], end["reason"]) == ("FAILED", "precision_mismatch", WORDS)
    assert (done.returncode, end["exit_code"]) == (2, 2)


def test_a_run_that_shall_only_be_warned_completes(make_run: MakeRun) -> None:
    run_dir = make_run(PROGRAM, "precision=fp32", "precision.on_mismatch=warn")

    done = agent(str(run_dir.path))

    (end,) = told(run_dir, "attempt_ended")
    assert (done.returncode, end["state"], end["cause"]) == (0, "COMPLETED", None)
