"""The loop of all TensorFlow recipes: reproducible, in any precision, on one device or several, and able to go on."""

from __future__ import annotations

import contextlib
import tempfile
from typing import TYPE_CHECKING, Callable, Dict, Iterator, Union

import numpy as np
import tensorflow as tf

from hpcml_client import tensorflow_parameter_server
from hpcml_client.loss_watch import LossWatch
from hpcml_client.recipe_task import RecipeError, Task, TrainingFailed
from hpcml_client.tensorflow_progress import digest
from hpcml_client.tensorflow_recipe import Recipe
from hpcml_client.tensorflow_session import Session, StepEnd
from hpcml_client.tensorflow_steps import SynchronousSteps
from hpcml_client.tensorflow_strategies import Team, form
from hpcml_client.tensorflow_work import count_step

if TYPE_CHECKING:
    from hpcml_client.checkpoints import Checkpoints
    from hpcml_client.client import Client
    from hpcml_client.tensorflow_arithmetic import Arithmetic

Steps = Union[SynchronousSteps, tensorflow_parameter_server.AsynchronousSteps]
_MIB = 1 << 20


def train(run: Client, task: Task, checkpoints: Checkpoints, make: Callable[[Task, Arithmetic], Recipe]) -> bool:
    """Train as *task* says and report to *run*; return False where it left at a checkpoint, as it was asked to.

    The last step is always evaluated. Raises `RecipeError` where the request cannot be met, `TrainingFailed` where the
    loss is no number any more or the memory is used up.
    """
    if task.compile:
        raise RecipeError("training.compile=true is torch.compile: set it to false")
    team = form(run, task)
    with _said_in_one_line(), _temporary_files_removed():
        try:
            arithmetic = run.apply_precision("tensorflow")
        except ValueError as error:  # what the plan refuses, asked for by hand
            raise RecipeError(str(error)) from error
        if task.strategy == "parameter_server" and run.rank > 0:
            return tensorflow_parameter_server.serve(run, team)
        finished = _train(_prepare(run, task, checkpoints, team, arithmetic, make))
    team.part(run, finished=finished)
    return finished


@contextlib.contextmanager
def _temporary_files_removed() -> Iterator[None]:
    """Have TensorFlow's AutoGraph write in a folder of its own: its files go at an end that recipes do not wait for."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="hpcml-tensorflow-") as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


def _prepare(
    run: Client,
    task: Task,
    checkpoints: Checkpoints,
    team: Team,
    arithmetic: Arithmetic,
    make: Callable[[Task, Arithmetic], Recipe],
) -> Steps:
    recipe = make(task, arithmetic)
    if task.strategy == "parameter_server":
        strategy = tensorflow_parameter_server.connect(run, team)
        session = Session.begin(run, task, checkpoints, strategy, arithmetic, recipe)
        return tensorflow_parameter_server.AsynchronousSteps(session)
    return SynchronousSteps(Session.begin(run, task, checkpoints, team.strategy, arithmetic, recipe))


def _train(steps: Steps) -> bool:
    session = steps.session
    run, task = session.run, session.task
    if run.rank == 0:
        _say_what_is_trained(session)
    saved = session.checkpoints.latest()
    if saved is not None:
        session.progress.read(saved)
        if run.rank == 0:
            run.event("resumed", step=saved.step, path=run.relative(saved.path))
    finished = _train_steps(steps, done=saved.step if saved else 0)
    if finished and run.rank == 0:
        run.event("final", step=task.steps, sha256=digest(session.progress.model))
        session.checkpoints.clear()
    return finished


def _train_steps(steps: Steps, *, done: int) -> bool:
    """Do the steps after the first *done*; return False where it left at a checkpoint."""
    session = steps.session
    run, task = session.run, session.task
    watch = LossWatch(is_scaled=session.arithmetic.loss_scaling)
    finished = True
    for end in steps.after(done):
        if run.rank == 0:
            _report(session, end)
        watch.see(end.loss, end.step)
        if end.due and end.step < task.steps:
            saved = session.checkpoints.save(end.step, session.progress.write)
            if end.asked and steps.everywhere(saved):
                finished = False
                break
    run.event("memory", **_memory(session.arithmetic))
    return finished


def _report(session: Session, end: StepEnd) -> None:
    task, arithmetic = session.task, session.arithmetic
    values: Dict[str, float] = {
        "loss": end.loss,
        "step_time_s": end.step_time_s,
        "data_time_s": end.data_time_s,
        **arithmetic.scaling(session.progress.optimizer, end.step),
    }
    if end.step % task.eval_every == 0 or end.step == task.steps:
        with session.examination.of(session.progress.model) as examined:
            values.update(session.recipe.evaluate(examined))
        said = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        print(f"step {end.step}: {said}", flush=True)  # noqa: T201 - a program's own words
    session.run.metrics(values, end.step)


def _say_what_is_trained(session: Session) -> None:
    run, task, recipe = session.run, session.task, session.recipe
    run.event(
        "training",
        steps=task.steps,
        parameters=int(session.progress.model.count_params()),
        batch_size=task.batch_size,
        is_synchronous=task.strategy != "parameter_server",
        **recipe.facts(),
    )
    parts = session.shares * task.accumulate
    example = recipe.batch(np.arange(task.batch_size // parts) % recipe.samples)
    # of the model that is examined: it has the same layers, and belongs to no strategy
    count = count_step(session.examination.model, example, recipe.loss)
    run.event(
        "work",
        devices=run.world_size - 2 if task.strategy == "parameter_server" else session.shares,
        model_flops=None if count.flops is None else count.flops * parts,
        flops_method=None if count.flops is None else "graph",
        flops_doubt=count.doubt,
        samples=float(task.batch_size),
        tokens=None,
    )


def _memory(arithmetic: Arithmetic) -> Dict[str, object]:
    """Return the details of the event ``memory``, evaluations included; unknown on a CPU, where nobody counts."""
    known = arithmetic.device.type == "cuda"
    peak = tf.config.experimental.get_memory_info(arithmetic.device.name)["peak"] / _MIB if known else None
    return {"device": arithmetic.device.name, "peak_allocated_mb": peak, "peak_reserved_mb": None}


@contextlib.contextmanager
def _said_in_one_line() -> Iterator[None]:
    """Turn TensorFlow's words for exhausted memory, and for what it lacks, into one line."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise TrainingFailed(
            f"out of memory ({_first_line(error)}): "
            "set training.accumulate=2 or more for the same batch in parts, or a smaller training.batch_size"
        ) from error
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        if "NHWC" not in str(error):
            raise
        # on CPUs such convolutions are oneDNN's, which has none in FP64, and is not everywhere
        raise RecipeError("layout=nchw: TensorFlow has no such convolution here: set layout=nhwc") from error


def _first_line(error: Exception) -> str:
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), type(error).__name__)
