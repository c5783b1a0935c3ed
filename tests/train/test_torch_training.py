from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import hpcml_client
from hpcml.model.failure_causes import Cause, classify
from hpcml.model.state import State
from hpcml.runs.journal import Event, Metrics, read_journal
from hpcml_train.errors import RecipeError, TrainingFailed
from hpcml_train.loop import LossWatch
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.recipe import Recipe
from hpcml_train.torch.team import _Waiting
from hpcml_train.torch.training import PeakMemory, _make_reproducible, said_in_one_line, train

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.mark.parametrize(("deterministic", "told"), [(True, ":4096:8"), (False, None)])
def test_only_deterministic_trainings_pay_for_what_cublas_is_told(
    monkeypatch: pytest.MonkeyPatch, *, deterministic: bool, told: str | None
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is put back
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")

    _make_reproducible(Task(deterministic=deterministic))

    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == told


class Line(Recipe):
    """Ten points on a line."""

    tokens_per_sample = 3

    def __init__(self, _: Task, arithmetic: Arithmetic) -> None:
        self.x = arithmetic.cast(torch.arange(10.0).reshape(10, 1))
        self.samples = 10
        self.model = nn.Linear(1, 1)

    def batch(self, indices: torch.Tensor) -> torch.Tensor:
        torch.rand(1)  # augmentation
        return self.x[indices]

    def loss(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return ((model(batch) - 2 * batch) ** 2).float().mean()

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return {"val_loss": float(self.loss(model, self.x))}

    def optimizer(
        self, parameters: Iterable[nn.Parameter], *, learning_rate: float, eps: float
    ) -> torch.optim.Optimizer:
        assert eps == 1e-8
        return torch.optim.SGD(parameters, lr=learning_rate)


def run_line(run_dir: Path, task: Task, make: type[Recipe] = Line, precision: str = "fp32") -> list[Metrics | Event]:
    environ = {"HPCML_RUN_DIR": str(run_dir), "HPCML_PRECISION": precision}
    with hpcml_client.connect(environ) as run:
        assert train(run, task, run.checkpoints(), make)
    (path,) = (run_dir / "journal").iterdir()
    return list(read_journal(path).records)


def test_a_recipe_is_its_model_its_samples_and_its_loss(tmp_path: Path) -> None:
    task = Task(steps=4, batch_size=5, eval_every=2, learning_rate=1e-3)

    records = run_line(tmp_path, task)

    metrics = [record for record in records if isinstance(record, Metrics)]
    events = {record.name: record.details for record in records if isinstance(record, Event)}
    assert [metric.step for metric in metrics] == [1, 2, 3, 4]
    assert [metric.step for metric in metrics if "val_loss" in metric.values] == [2, 4]
    assert events["training"] == {"steps": 4, "parameters": 2, "batch_size": 5, "training_samples": 10}
    assert events["work"] == {
        "devices": 1,
        "model_flops": 2 * 2 * 5,  # forward, and the gradient of the weight
        "flops_method": "meta",
        "flops_doubt": None,
        "samples": 5.0,
        "tokens": 15.0,
    }
    of_the_loop = [name for name in events if not name.startswith("precision_observe")]
    assert of_the_loop[-3:] == ["memory", "final", "closed"]


def test_a_model_that_cannot_be_counted_is_trained_all_the_same(tmp_path: Path) -> None:
    class Curious(Line):
        def loss(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return super().loss(model, batch) * (1.0 if float(batch.sum()) > -1 else 2.0)

    counted = run_line(tmp_path / "counted", Task(steps=3, batch_size=5))
    records = run_line(tmp_path / "curious", Task(steps=3, batch_size=5), Curious)

    (work,) = (r.details for r in records if isinstance(r, Event) and r.name == "work")
    assert (work["model_flops"], work["flops_method"]) == (None, None)
    assert work["flops_doubt"].startswith("not counted: ")
    # the same numbers too: counting draws none at random
    assert [r.details for r in records if isinstance(r, Event) and r.name == "final"] == [
        r.details for r in counted if isinstance(r, Event) and r.name == "final"
    ]


def test_a_loss_may_be_no_number_for_a_moment() -> None:
    watch = LossWatch(is_scaled=False)

    for step, loss in enumerate((1.0, math.inf, math.nan, 1.0, math.nan, math.inf), start=1):
        watch.see(loss, step)

    with pytest.raises(TrainingFailed, match=r"^loss is nan at step 5 and the 2 after it: "):
        watch.see(math.nan, 7)


def test_a_scaled_loss_may_overflow_until_its_scale_is_one() -> None:
    watch = LossWatch(is_scaled=True)
    scale = 2.0**16
    step = 0

    while scale >= 1:
        step += 1
        watch.see(math.inf, step)
        scale /= 2
    assert step == 17
    for later in (18, 19):
        watch.see(math.inf, later)
    with pytest.raises(TrainingFailed):
        watch.see(math.inf, 20)


def test_exhausted_host_memory_is_one_line_with_what_to_do() -> None:
    with pytest.raises(TrainingFailed) as failed, said_in_one_line():
        torch.empty(2**50)

    said = f"hpcml_client: ended, because {failed.value}\n"
    assert said.count("\n") == 1
    assert "training.accumulate=2" in said
    assert cause(said) is Cause.HOST_MEMORY


def test_exhausted_gpu_memory_is_one_line_with_what_to_do() -> None:
    words = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which ..."

    with pytest.raises(TrainingFailed) as failed, said_in_one_line():
        raise torch.cuda.OutOfMemoryError(words)

    assert str(failed.value) == (
        "out of memory (CUDA out of memory. Tried to allocate 2.00 GiB): "
        "set training.accumulate=2 or more for the same batch in parts, or a smaller training.batch_size"
    )
    assert cause(f"hpcml_client: ended, because {failed.value}\n") is Cause.GPU_MEMORY


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(RuntimeError, match="shapes"), said_in_one_line():
        raise RuntimeError("shapes")


def cause(log_tail: str) -> Cause:
    return classify(State.FAILED, reason=None, exit_code=1, signal=None, log_tail=log_tail)


def test_compiled_code_would_escape_the_emulation(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"training\.compile=true: compiled code escapes the emulation of tf32"):
        run_line(tmp_path, Task(compile=True), precision="tf32")


def test_memory_on_a_cpu_is_unknown_and_not_zero() -> None:
    memory = PeakMemory(torch.device("cpu"))

    with memory.passed_over():
        pass

    assert memory.details() == {"device": "cpu", "peak_allocated_mb": None, "peak_reserved_mb": None}


def test_waiting_for_gradients_is_timed_from_the_last_of_them_and_never_made_up() -> None:
    first, last = nn.Linear(2, 2), nn.Linear(2, 2)  # the first layer's gradients come last
    waiting = _Waiting(nn.Sequential(first, last), torch.device("cpu"))
    x = torch.ones(1, 2)

    with waiting.watched():
        last(first(x)).sum().backward()
    assert waiting.seconds() is not None
    assert len(waiting._hooks) == 1  # one call a step is all that it costs
    with waiting.watched():
        last(x).sum().backward()  # a graph without the layer that was last
    assert waiting.seconds() is None
    with waiting.watched():
        last(first(x)).sum().backward()
    seconds = waiting.seconds()
    assert seconds is not None
    assert seconds >= 0
