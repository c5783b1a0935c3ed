from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcml_train.errors import RecipeError
from hpcml_train.task import Task


def config(**training: object) -> dict[str, Any]:
    return {
        "run": {
            "model": {"name": "net", "framework": "torch", "options": {"depth": 3}},
            "data": {"name": "digits", "path": None, "holdout": 0.25},
            "strategy": {"name": "ddp"},
            "layout": {"name": "nhwc"},
            "training": training,
            "seed": 7,
        }
    }


def test_a_task_is_what_the_run_says_and_hpcmls_defaults_for_the_rest() -> None:
    task = Task.from_config(config(steps=5, accumulate=2, compile=True, checkpoint_every=None))

    assert task == Task(
        model="net",
        framework="torch",
        options={"depth": 3},
        data="digits",
        holdout=0.25,
        layout="nhwc",
        strategy="ddp",
        seed=7,
        steps=5,
        accumulate=2,
        compile=True,
    )
    assert Task.from_config({}) == Task()


@pytest.mark.parametrize("name", ["steps", "batch_size", "eval_every", "checkpoint_every", "accumulate"])
def test_counts_below_one_are_refused(name: str) -> None:
    with pytest.raises(RecipeError, match=rf"^training\.{name}=0 must be at least 1"):
        Task.from_config(config(**{name: 0}))


@pytest.mark.parametrize("share", [0, 1.0, -0.2])
def test_a_share_that_holds_out_nothing_or_everything_is_refused(share: float) -> None:
    with pytest.raises(RecipeError, match=rf"^data\.holdout={share:g} must lie between 0 and 1$"):
        Task(holdout=share)


def test_what_a_recipe_does_not_have_is_refused_with_what_it_has() -> None:
    with pytest.raises(RecipeError, match=r"^layout=nhwc is not in this recipe: choose nchw$"):
        Task(layout="nhwc").choose("layout", ("nchw",))
    assert Task().choose("model", ("first", "second")) == "first"
    assert Task(model="second").choose("model", ("first", "second")) == "second"


@pytest.mark.parametrize(
    ("task", "world_size", "reason"),
    [
        (Task(strategy="ddp"), 1, "strategy=ddp does not fit 1 process(es)"),
        (Task(strategy="cpu_threads"), 2, "strategy=cpu_threads does not fit 2 process(es)"),
        (Task(strategy="ddp", batch_size=9), 2, "training.batch_size=9 cannot be shared by 2 processes"),
        (
            Task(strategy="ddp", batch_size=12, accumulate=4),
            2,
            "training.accumulate=4 does not divide the 6 samples of a process (training.batch_size=12, 2 process(es))",
        ),
    ],
)
def test_a_batch_that_cannot_be_shared_is_refused(task: Task, world_size: int, reason: str) -> None:
    with pytest.raises(RecipeError) as refused:
        task.part_size(world_size)

    assert str(refused.value) == reason


def test_a_batch_is_divided_by_processes_and_parts() -> None:
    assert Task(strategy="ddp", batch_size=48, accumulate=3).part_size(4) == 4


def test_a_planned_batch_is_divided_as_planned_and_nobody_computes_it_again() -> None:
    run = {"training": {"batch_size": 63, "accumulate": 3}}
    planned = Task.from_config({"run": run, "plan": {"part_size": 21, "stages": 3}})

    assert (planned.planned_part_size, planned.planned_stages) == (21, 3)
    assert planned.part_size(1) == 21
    assert replace(planned, batch_size=12).part_size(1) == 4  # another batch than was planned
    with pytest.raises(RecipeError, match=r"^strategy=single does not fit 2 process\(es\)$"):
        planned.part_size(2)


TRAINING = """
from hpcml_train.errors import RecipeError, TrainingFailed
def train(run, task, checkpoints):
    {body}
"""


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("return True", 0, ""),
        ("return False", 75, ""),
        ("raise RecipeError('no such thing')", 2, "mine: no such thing\n"),
        ("raise TrainingFailed('loss is nan')", 1, "hpcml_client: ended, because loss is nan\n"),
        ("import tensorflow", 2, "mine: tensorflow is missing: pip install 'hpcml[tensorflow]'\n"),
    ],
)
def test_a_recipe_ends_as_its_training_does(tmp_path: Path, body: str, status: int, said: str) -> None:
    (tmp_path / "training.py").write_text(TRAINING.format(body=body))
    (tmp_path / "train.py").write_text("from hpcml_train.start import start\nstart('mine')\n")
    (tmp_path / "tensorflow.py").write_text("raise ModuleNotFoundError('gone', name='tensorflow')")
    environ = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}

    done = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")], env=environ, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (status, said)
