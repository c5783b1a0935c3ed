"""Synchronous training of Keras models: in each step every device computes the gradients of its share of the batch."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from hpcml_client.checkpoints import Checkpoints, Saved
from hpcml_client.client import Client
from hpcml_train import loop
from hpcml_train.errors import RecipeError, first_line, out_of_memory
from hpcml_train.loop import StepClock, StepEnd, Work
from hpcml_train.progress import digest, read_arrays, sample_orders, write_arrays
from hpcml_train.task import Task
from hpcml_train.tensorflow.arithmetic import Arithmetic
from hpcml_train.tensorflow.flops import count_step
from hpcml_train.tensorflow.recipe import Batch, Recipe
from hpcml_train.tensorflow.strategies import Team, form

Indices = Any  # numpy.ndarray of int64, which old NumPys cannot say
_MIB = 1 << 20


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
        finished = loop.train(TensorflowTraining(run, task, checkpoints, team, arithmetic, make(task, arithmetic)))
    team.part(run)
    return finished


class TensorflowTraining(loop.Training):
    """A Keras model under a strategy of ``tf.distribute``: each device has a share of each step."""

    flops_method = "graph"

    def __init__(
        self,
        run: Client,
        task: Task,
        checkpoints: Checkpoints,
        team: Team,
        arithmetic: Arithmetic,
        recipe: Recipe,
    ) -> None:
        """Build the model; raise `RecipeError` where a batch cannot be divided."""
        super().__init__(run, task, checkpoints)
        self._team, self._strategy, self._recipe = team, team.strategy, recipe
        self._first_share = run.rank if task.strategy == "horovod" else 0  # of this process
        # that a batch is divided into
        self._shares = run.world_size if task.strategy == "horovod" else int(team.strategy.num_replicas_in_sync)
        if task.batch_size % (self._shares * task.accumulate):
            raise RecipeError(
                f"training.batch_size={task.batch_size} cannot be shared by {self._shares} replica(s) in "
                f"{task.accumulate} part(s) each (training.accumulate)"
            )
        self._arithmetic = arithmetic
        self._examination = Examination(recipe.build, policy=arithmetic.policy, seed=task.seed)
        tf.keras.utils.set_random_seed(task.seed)
        with team.strategy.scope():
            self._model = recipe.build()
            plain = recipe.optimizer(learning_rate=task.learning_rate, eps=arithmetic.optimizer_eps(1e-8))
            try:
                self._optimizer = arithmetic.optimizer(plain)
            except ValueError as error:
                raise RecipeError(f"precision={arithmetic.precision}: {error}") from error
            self._optimizer.build(self._model.trainable_variables)
        self._model.set_weights(self._examination.first_weights)
        self._step = tf.function(self._distributed_step)
        self._sum = tf.function(self._summed_over_all)

    @property
    def is_scaled(self) -> bool:
        """As TensorFlow's arithmetic says."""
        return self._arithmetic.loss_scaling

    def parameters(self) -> int:
        """Return the number of trained parameters: BatchNorm's running means are none."""
        return sum(int(np.prod(tuple(variable.shape))) for variable in self._model.trainable_variables)

    def facts(self) -> Mapping[str, object]:
        """Return the recipe's."""
        return self._recipe.facts()

    def work(self) -> Work:
        """Count a part of a batch, and multiply by the parts of all replicas."""
        task, recipe = self.task, self._recipe
        parts = self._shares * task.accumulate
        example = recipe.batch(np.arange(task.batch_size // parts) % recipe.samples)
        # of models that belong to no strategy, and have the same layers
        count = count_step(self._examination.counted(recipe.build_counted), example, recipe.loss)
        if count.flops is not None:
            count = count._replace(flops=count.flops * parts)
        return Work(self._shares, count, recipe.tokens_per_sample)

    def restore(self, saved: Saved) -> None:
        """Load all variables, whichever strategy trained them: replicas hold the same."""
        variables = self._variables()
        shapes = [tuple(variable.shape) for variable in variables]
        for variable, array in zip(
            variables, read_arrays(saved, "variable", shapes, self._arithmetic.precision), strict=True
        ):
            kept_in = tf.as_dtype(variable.dtype).as_numpy_dtype
            variable.assign(array if array.dtype == kept_in else array.view(kept_in))

    def steps(self, done: int) -> Iterator[StepEnd]:
        """Give each replica its share, and read what they have added up."""
        task, checkpoints = self.task, self.checkpoints
        clock = StepClock()  # what a step returns is read, which waits for the device
        orders = itertools.islice(sample_orders(self._recipe.samples, task), done, None)
        for step in range(done + 1, task.steps + 1):
            with clock.data:
                indices = next(orders)
                parts = self._each(lambda share, indices=indices: self._parts(indices, share))
                known = self._flags(checkpoints.due(step), checkpoints.asked)
            with clock.step:
                loss, due, asked = self._step(parts, known).numpy().tolist()
            yield StepEnd(step, loss, due > 0, asked > 0, clock.step.took_s, clock.data.took_s)

    def metrics(self, end: StepEnd) -> Mapping[str, float]:
        """Return what the scaling of the loss has come to."""
        return self._arithmetic.scaling(self._optimizer, end.step)

    def examine(self) -> Mapping[str, float]:
        """Measure a copy of the model in real FP32 (fp64: FP64)."""
        if self.run.rank > 0:
            return {}
        with self._examination.of(self._model) as examined:
            return self._recipe.evaluate(examined)

    def writer(self) -> Callable[[str], object]:
        """Return what writes all variables."""
        return self._write

    def everywhere(self, saved: bool) -> bool:  # noqa: FBT001 - what it is about
        """Return whether all processes *saved*; where the disk of the first is full, no process leaves."""
        if self.run.world_size == 1:
            return saved
        return float(self._sum(self._flags(not saved))[0]) == 0.0

    def memory(self) -> list[Mapping[str, object]]:
        """Return the peak of allocated memory, evaluations included; unknown on a CPU."""
        device = self._arithmetic.device
        known = device.type == "cuda"
        peak = tf.config.experimental.get_memory_info(device.name)["peak"] / _MIB if known else None
        return [{"device": device.name, "peak_allocated_mb": peak, "peak_reserved_mb": None}]

    def weights(self) -> Any:  # noqa: ANN401 - NumPy's arrays
        """Return the weights in the order of the layers."""
        return self._model.get_weights() if self.run.rank == 0 else None

    def outcome(self, weights: Any) -> loop.Events:  # noqa: ANN401 - NumPy's arrays
        """Return the digest of the weights, and what the recipe found."""
        yield "final", {"step": self.task.steps, "sha256": digest(enumerate(weights))}
        with self._examination.of(self._model) as examined:
            yield from self._recipe.results(examined).items()

    def _parts(self, indices: Indices, share: int) -> list[Batch]:
        """Return the samples of replica *share* in a step, in the parts that it computes one after the other."""
        mine = np.split(indices, self._shares)[share]
        return [self._recipe.batch(part) for part in np.split(mine, self.task.accumulate)]

    def _update(self, parts: list[Batch]) -> tf.Tensor:
        """Do this replica's share of a step, inside a graph; return the mean loss of its samples.

        Keras' optimisers add up the gradients of all replicas, so that each is divided by their number first.
        """
        model, optimizer = self._model, self._optimizer
        losses: list[Any] = []
        total: Any = None
        for batch in parts:
            with tf.GradientTape() as tape:
                loss = self._recipe.loss(model, batch)
                scaled = optimizer.scale_loss(loss / (self._shares * len(parts)))
            # dense: an embedding's lists the rows that were looked up, one of them as often as it was
            gradients = list(map(tf.convert_to_tensor, tape.gradient(scaled, model.trainable_variables)))
            total = gradients if total is None else [one + other for one, other in zip(total, gradients, strict=True)]
            losses.append(tf.cast(loss, tf.float64))
        optimizer.apply(self._summed(total), model.trainable_variables)
        return tf.add_n(losses) / len(losses)

    def _distributed_step(self, parts: Any, known: Any) -> tf.Tensor:  # noqa: ANN401 - values for each replica
        """Return the mean loss, and what the processes know of checkpoints: all save, or leave, after the same step."""

        def replica(mine: Any, flags: tf.Tensor) -> tf.Tensor:  # noqa: ANN401
            loss = self._update(mine) / self._shares
            return tf.concat([tf.reshape(loss, [1]), flags], axis=0)

        return self._summed(
            [self._strategy.reduce("SUM", self._strategy.run(replica, args=(parts, known)), axis=None)]
        )[0]

    def _summed_over_all(self, value: Any) -> tf.Tensor:  # noqa: ANN401 - a value for each replica
        return self._summed([self._strategy.reduce("SUM", self._strategy.run(tf.identity, (value,)), axis=None)])[0]

    def _summed(self, tensors: list[Any]) -> list[Any]:
        """Return the sums over all processes of Horovod; other strategies have added up already."""
        return tensors if self._team.horovod is None else self._team.horovod.summed(tensors)

    def _flags(self, *known: bool) -> Any:  # noqa: ANN401 - a value for each replica
        return self._each(lambda _: tf.constant(known, tf.float64))

    def _each(self, value_of: Any) -> Any:  # noqa: ANN401 - a value for each replica
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: value_of(self._first_share + context.replica_id_in_sync_group)
        )

    def _write(self, path: str) -> None:
        write_arrays(path, "variable", map(np.asarray, self._variables()), self._arithmetic.precision)

    def _variables(self) -> list[Any]:
        return [*self._model.variables, *self._optimizer.variables]  # of the model also the state of its random numbers


class Examination:
    """A copy of the model that computes in FP32, and in FP64 where that was trained in; 16-bit weights fit into it.

    Keras' own metrics are not used: under CentralStorageStrategy Keras 3.15 reports a wrong loss.
    """

    def __init__(self, build: Callable[[], Any], *, policy: str, seed: int) -> None:
        self._seed = seed
        self._policy = "float64" if policy == "float64" else "float32"
        first = _build(build, "float32", seed)
        self.first_weights = first.get_weights()  # drawn in FP32: the same for every precision and strategy
        self.model = first if self._policy == "float32" else _build(build, self._policy, seed)

    def counted(self, build: Callable[[], Any]) -> Any:  # noqa: ANN401 - Keras has no types
        """Return the model whose operations are counted: what *build* makes, where it makes another one."""
        other = _build(build, self._policy, self._seed)
        return self.model if other is None else other

    @contextlib.contextmanager
    def of(self, model: Any) -> Iterator[Any]:  # noqa: ANN401 - Keras has no types
        """Yield the copy with the weights that *model* has now, TF32 being switched off meanwhile."""
        self.model.set_weights(model.get_weights())
        tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        tf.config.experimental.enable_tensor_float_32_execution(False)  # noqa: FBT003 - TensorFlow's own signature
        try:
            yield self.model
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(tf32)


def _build(build: Callable[[], Any], policy: str, seed: int) -> Any:  # noqa: ANN401 - Keras has no types
    before = tf.keras.mixed_precision.dtype_policy()
    tf.keras.mixed_precision.set_dtype_policy(policy)
    try:
        tf.keras.utils.set_random_seed(seed)
        return build()
    finally:
        tf.keras.mixed_precision.set_dtype_policy(before)


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
