"""Training with JAX: reproducible, in any precision that JAX has, on one device, resumable from checkpoints."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hpcml_client.checkpoints import Checkpoints, Saved
from hpcml_client.client import Client
from hpcml_train import loop
from hpcml_train.errors import RecipeError, first_line, out_of_memory
from hpcml_train.jax.arithmetic import Arithmetic, LossScale, Tree
from hpcml_train.jax.flops import count_step
from hpcml_train.jax.recipe import Moments, Recipe
from hpcml_train.loop import StepClock, StepEnd, Work
from hpcml_train.progress import Array, digest, read_arrays, sample_orders, write_arrays
from hpcml_train.task import Task

_MIB = 1 << 20
_NO_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory")


class Progress(NamedTuple):
    """The state of a training, besides samples and random numbers, which only the seed decides."""

    weights: Mapping[str, jax.Array]
    moments: Moments
    scale: LossScale


def train(run: Client, task: Task, checkpoints: Checkpoints, make: Callable[[Task, Arithmetic], Recipe]) -> bool:
    """Train as *task* says and report to *run*; return False where a signal asked it to leave at a checkpoint.

    *make* builds the recipe. The last step is always evaluated. Raises `RecipeError` where the request cannot be met,
    `TrainingFailed` where the loss stays nan or infinite, or the memory is exhausted.
    """
    if task.compile:
        raise RecipeError("training.compile=true is torch.compile: set it to false, since JAX always compiles")
    task.choose("strategy", ("single",))
    task.part_size(run.world_size)
    if task.deterministic and (run.config.get("plan") or {}).get("device") == "cuda":
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true".strip()  # read when JAX starts
    try:
        arithmetic = run.apply_precision("jax")
    except ValueError as error:  # what the plan refuses, asked for by hand
        raise RecipeError(str(error)) from error
    with said_in_one_line(), arithmetic.context():
        return loop.train(JaxTraining(run, task, checkpoints, make(task, arithmetic), arithmetic))


class JaxTraining(loop.Training):
    """Weights in JAX on one device, trained by one compiled function."""

    flops_method = "jaxpr"

    def __init__(
        self, run: Client, task: Task, checkpoints: Checkpoints, recipe: Recipe, arithmetic: Arithmetic
    ) -> None:
        super().__init__(run, task, checkpoints)
        self._recipe = recipe
        self._arithmetic = arithmetic
        optimizer = recipe.optimizer(learning_rate=task.learning_rate, eps=arithmetic.optimizer_eps())
        weights = arithmetic.prepare(recipe.first_weights())
        self._progress = Progress(weights, optimizer.begin(weights), arithmetic.loss_scale())

        def loss_of(weights: Tree, draws: jax.Array, *batch: jax.Array) -> jax.Array:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.PRNGKey(task.seed), draws[0, 0]), draws[0, 1])
            return recipe.loss(weights, key, *batch)

        gradients_of = arithmetic.value_and_grad(loss_of, parts=task.accumulate)

        def step(before: Progress, *batch: jax.Array) -> tuple[Progress, jax.Array]:
            loss, gradients, finite, scale = gradients_of(before.weights, before.scale, *batch)
            updated = optimizer.step(before.weights, gradients, before.moments)
            if arithmetic.loss_scaling:
                updated = arithmetic.keep(finite, updated, (before.weights, before.moments))
            return Progress(*updated, scale), loss

        self._step = step
        self._example = self._batch(np.arange(task.batch_size) % recipe.samples, 0)

    @property
    def is_scaled(self) -> bool:
        """As JAX's arithmetic says."""
        return self._arithmetic.loss_scaling

    def parameters(self) -> int:
        """Count the weights."""
        return sum(leaf.size for leaf in jax.tree_util.tree_leaves(self._progress.weights))

    def facts(self) -> Mapping[str, object]:
        """Return the recipe's."""
        return self._recipe.facts()

    def work(self) -> Work:
        """Count the step that will be compiled."""
        count = count_step(self._step, self._progress, *self._example)
        return Work(1, count, self._recipe.tokens_per_sample)

    def restore(self, saved: Saved) -> None:
        """Take up weights, moments and the scale of the loss."""
        self._progress = read(saved, self._progress, self._arithmetic.precision)

    def steps(self, done: int) -> Iterator[StepEnd]:
        """Run the compiled step."""
        # compiled before the first step, of which it is no part; what a step was given is not needed after it
        compiled: Callable[..., Any] = (
            jax.jit(self._step, donate_argnums=0).lower(self._progress, *self._example).compile()
        )
        clock = StepClock()  # what a block makes is waited for in it
        orders = itertools.islice(sample_orders(self._recipe.samples, self.task), done, None)
        for step in range(done + 1, self.task.steps + 1):
            with clock.data:
                batch = self._batch(next(orders), step)
            with clock.step:
                self._progress, computed = jax.block_until_ready(compiled(self._progress, *batch))
            asked = self.checkpoints.asked
            due = self.checkpoints.due(step)
            yield StepEnd(step, float(computed), due, asked, clock.step.took_s, clock.data.took_s)

    def metrics(self, end: StepEnd) -> Mapping[str, float]:
        """Return what the scaling of the loss has come to."""
        del end
        return self._arithmetic.scaling(self._progress.scale)

    def examine(self) -> Mapping[str, float]:
        """Measure the weights in real FP32 (fp64: FP64)."""
        with self._arithmetic.evaluation(self._progress.weights) as examined:
            return self._recipe.evaluate(examined)

    def writer(self) -> Callable[[str], object]:
        """Return what writes the progress."""
        return functools.partial(write, self._progress, self._arithmetic.precision)

    def memory(self) -> list[Mapping[str, object]]:
        """Return the peak of allocated memory, evaluations included; unknown on a CPU."""
        device = self._arithmetic.device.device
        peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
        details: dict[str, object] = {
            "device": str(device),
            "peak_allocated_mb": None if peak is None else peak / _MIB,
            "peak_reserved_mb": None,
        }
        return [details]

    def weights(self) -> Mapping[str, jax.Array]:
        """Return the weights by their names."""
        return self._progress.weights

    def outcome(self, weights: Mapping[str, jax.Array]) -> loop.Events:
        """Return the digest of the weights, and what the recipe found."""
        yield "final", {"step": self.task.steps, "sha256": digest_of(weights)}
        with self._arithmetic.evaluation(weights) as examined:
            yield from self._recipe.results(examined).items()

    def _batch(self, indices: Array, step: int) -> tuple[jax.Array, ...]:
        """Return the samples *indices* on the device; first, for each part of the batch, *step* and its number."""
        parts = np.arange(self.task.accumulate)
        draws = np.stack([np.full_like(parts, step), parts], axis=1).astype(np.uint32)
        batch = (draws, *self._recipe.batch(indices))
        placed: tuple[jax.Array, ...] = jax.device_put(batch, self._arithmetic.device.device)
        jax.block_until_ready(placed)
        return placed


def write(progress: Progress, precision: str, path: str) -> None:
    """Save *progress* as the file *path*."""
    write_arrays(path, "leaf", (np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(progress)), precision)


def read(saved: Saved, like: Progress, precision: str) -> Progress:
    """Return the saved progress with the shapes and the device of *like*.

    Raises `RecipeError` where it does not fit.
    """
    wanted, shape = jax.tree_util.tree_flatten(like)
    found = read_arrays(saved, "leaf", [leaf.shape for leaf in wanted], precision)
    leaves: list[jax.Array] = []
    for array, leaf in zip(found, wanted, strict=True):
        kept = array if array.dtype == leaf.dtype else array.view(leaf.dtype)
        leaves.append(jax.device_put(jnp.array(kept), leaf.sharding))
    restored: Progress = jax.tree_util.tree_unflatten(shape, leaves)
    return restored


def digest_of(weights: Mapping[str, jax.Array]) -> str:
    """Return the SHA-256 of all *weights*, bit by bit: equal for equal trainings."""
    return digest((name, np.asarray(value)) for name, value in sorted(weights.items()))


@contextlib.contextmanager
def said_in_one_line() -> Iterator[None]:
    """Raise one-line errors for exhausted memory, as XLA and NumPy report it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # XLA's own error is a RuntimeError, whatever its name
        said = first_line(error)
        if not isinstance(error, MemoryError) and not any(words in said for words in _NO_MEMORY):
            raise
        raise out_of_memory(said) from error
