"""Synchronous training in TensorFlow: in each step every device computes the gradients of its share of the batch."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from hpcml_client.checkpoints import Checkpoints
from hpcml_client.client import Client
from hpcml_train import loop
from hpcml_train.errors import RecipeError, first_line, out_of_memory
from hpcml_train.loop import StepClock, StepEnd
from hpcml_train.progress import sample_orders
from hpcml_train.task import Task
from hpcml_train.tensorflow.arithmetic import Arithmetic
from hpcml_train.tensorflow.recipe import Recipe
from hpcml_train.tensorflow.session import TensorflowTraining
from hpcml_train.tensorflow.strategies import Team, form


def train(run: Client, task: Task, checkpoints: Checkpoints, make: Callable[[Task, Arithmetic], Recipe]) -> bool:
    """Train as *task* says and report to *run*; return False where a signal asked it to leave at a checkpoint.

    *make* builds the recipe. The last step is always evaluated. Raises `RecipeError` where the request cannot be met,
    `TrainingFailed` where the loss stays nan or infinite, or the memory is exhausted.
    """
    if task.compile:
        raise RecipeError("training.compile=true is torch.compile: set it to false")
    team = form(run, task)
    with _said_in_one_line(), _temporary_files_removed():
        try:
            arithmetic = run.apply_precision("tensorflow")
        except ValueError as error:  # what the plan refuses, asked for by hand
            raise RecipeError(str(error)) from error
        finished = loop.train(SynchronousTraining(run, task, checkpoints, team, arithmetic, make(task, arithmetic)))
    team.part(run)
    return finished


class SynchronousTraining(TensorflowTraining):
    """Each device has a share of each step."""

    def __init__(
        self,
        run: Client,
        task: Task,
        checkpoints: Checkpoints,
        team: Team,
        arithmetic: Arithmetic,
        recipe: Recipe,
    ) -> None:
        strategy, self._team = team.strategy, team
        self._first_share = run.rank if task.strategy == "horovod" else 0  # of this process
        super().__init__(run, task, checkpoints, strategy, arithmetic, recipe)

        # What the processes know of checkpoints goes along with the loss: all save, or leave, after the same step.
        def step(parts: Any, known: Any) -> tf.Tensor:  # noqa: ANN401 - values for each replica
            def replica(mine: Any, flags: tf.Tensor) -> tf.Tensor:  # noqa: ANN401
                loss = self.update(mine) / self.shares
                return tf.concat([tf.reshape(loss, [1]), flags], axis=0)

            return self.summed([strategy.reduce("SUM", strategy.run(replica, args=(parts, known)), axis=None)])[0]

        self._step = tf.function(step)
        self._sum = tf.function(
            lambda value: self.summed([strategy.reduce("SUM", strategy.run(tf.identity, (value,)), axis=None)])[0]
        )

    def summed(self, tensors: list[Any]) -> list[Any]:
        """Return the sums over all processes of Horovod; other strategies have added up already."""
        return tensors if self._team.horovod is None else self._team.horovod.summed(tensors)

    def steps(self, done: int) -> Iterator[StepEnd]:
        """Give each replica its share, and read what they have added up."""
        task, checkpoints = self.task, self.checkpoints
        clock = StepClock()  # what a step returns is read, which waits for the device
        orders = itertools.islice(sample_orders(self.recipe.samples, task), done, None)
        for step in range(done + 1, task.steps + 1):
            with clock.data:
                indices = next(orders)
                parts = self._each(lambda share, indices=indices: self.parts(indices, share))
                known = self._flags(checkpoints.due(step), checkpoints.asked)
            with clock.step:
                loss, due, asked = self._step(parts, known).numpy().tolist()
            yield StepEnd(step, loss, due > 0, asked > 0, clock.step.took_s, clock.data.took_s)

    def everywhere(self, saved: bool) -> bool:  # noqa: FBT001 - what it is about
        """Return whether all processes *saved*; where the disk of the first is full, no process leaves."""
        if self.run.world_size == 1:
            return saved
        return float(self._sum(self._flags(not saved))[0]) == 0.0

    def _flags(self, *known: bool) -> Any:  # noqa: ANN401 - a value for each replica
        return self._each(lambda _: tf.constant(known, tf.float64))

    def _each(self, value_of: Any) -> Any:  # noqa: ANN401 - a value for each replica
        strategy = self.strategy
        return strategy.experimental_distribute_values_from_function(
            lambda context: value_of(self._first_share + context.replica_id_in_sync_group)
        )


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


@contextlib.contextmanager
def _said_in_one_line() -> Iterator[None]:
    """Raise one-line errors for TensorFlow's errors about memory and missing kernels."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise out_of_memory(first_line(error)) from error
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        if "NHWC" not in str(error):
            raise
        # on CPUs such convolutions are oneDNN's, which has none in FP64, and is not everywhere
        raise RecipeError("layout=nchw: TensorFlow has no such convolution here: set layout=nhwc") from error
