"""The loop of all JAX recipes: reproducible, in any precision that JAX has, on one device, and able to go on."""

from __future__ import annotations

import functools
import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Mapping, Tuple

import jax
import numpy as np

from hpcml_client.jax_failures import said_in_one_line
from hpcml_client.jax_loss_scale import Tree
from hpcml_client.jax_progress import Progress, digest, read, write
from hpcml_client.jax_recipe import Recipe
from hpcml_client.jax_work import count_step
from hpcml_client.loss_watch import LossWatch
from hpcml_client.numpy_twister import Twister
from hpcml_client.recipe_task import RecipeError, Task
from hpcml_client.step_clock import StepClock

if TYPE_CHECKING:
    from hpcml_client.checkpoints import Checkpoints
    from hpcml_client.client import Client
    from hpcml_client.jax_arithmetic import Arithmetic

Array = Any  # numpy.ndarray, which old NumPys cannot say more of
_MIB = 1 << 20


@dataclass(frozen=True)
class Session:
    """What the steps of a training work with."""

    run: Client
    task: Task
    recipe: Recipe
    arithmetic: Arithmetic
    checkpoints: Checkpoints

    def batch(self, indices: Array, step: int) -> Tuple[jax.Array, ...]:
        """Return the samples *indices* on the device; first, for each part of the batch, *step* and its number."""
        parts = np.arange(self.task.accumulate)
        draws = np.stack([np.full_like(parts, step), parts], axis=1).astype(np.uint32)
        batch = (draws, *self.recipe.batch(indices))
        placed: Tuple[jax.Array, ...] = jax.device_put(batch, self.arithmetic.device.device)
        jax.block_until_ready(placed)
        return placed


def train(run: Client, task: Task, checkpoints: Checkpoints, make: Callable[[Task, Arithmetic], Recipe]) -> bool:
    """Train as *task* says and report to *run*; return False where it left at a checkpoint, as it was asked to.

    The last step is always evaluated. Raises `RecipeError` where the request cannot be met, `TrainingFailed` where the
    loss is no number any more or the memory is used up.
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
        recipe = make(task, arithmetic)
        return _train(Session(run=run, task=task, recipe=recipe, arithmetic=arithmetic, checkpoints=checkpoints))


def _train(session: Session) -> bool:
    run, task, arithmetic, recipe = session.run, session.task, session.arithmetic, session.recipe
    optimizer = recipe.optimizer(learning_rate=task.learning_rate, eps=arithmetic.optimizer_eps())
    weights = arithmetic.prepare(recipe.first_weights())
    progress = Progress(weights, optimizer.begin(weights), arithmetic.loss_scale())

    def loss_of(weights: Tree, draws: jax.Array, *batch: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.PRNGKey(task.seed), draws[0, 0]), draws[0, 1])
        return recipe.loss(weights, key, *batch)

    gradients_of = arithmetic.value_and_grad(loss_of, parts=task.accumulate)

    def step(before: Progress, *batch: jax.Array) -> Tuple[Progress, jax.Array]:
        loss, gradients, finite, scale = gradients_of(before.weights, before.scale, *batch)
        updated = optimizer.step(before.weights, gradients, before.moments)
        if arithmetic.loss_scaling:
            updated = arithmetic.keep(finite, updated, (before.weights, before.moments))
        return Progress(*updated, scale), loss

    example = session.batch(np.arange(task.batch_size) % recipe.samples, 0)
    _say_what_is_trained(session, step, progress, example)
    saved = session.checkpoints.latest()
    if saved is not None:
        progress = read(saved, progress, arithmetic.precision)
        run.event("resumed", step=saved.step, path=run.relative(saved.path))
    # compiled before the first step, of which it is no part; what a step was given is not needed after it
    compiled = jax.jit(step, donate_argnums=0).lower(progress, *example).compile()
    return _train_steps(session, compiled, progress, done=saved.step if saved else 0)


def _train_steps(session: Session, compiled: Callable[..., Any], progress: Progress, *, done: int) -> bool:
    """Do the steps after the first *done*; return False where it left at a checkpoint."""
    run, task, arithmetic, checkpoints = session.run, session.task, session.arithmetic, session.checkpoints
    clock = StepClock(lambda: None)  # what a block makes is waited for in it
    watch = LossWatch(is_scaled=arithmetic.loss_scaling)
    orders = itertools.islice(sample_orders(session.recipe.samples, task), done, None)
    finished = True
    for step in range(done + 1, task.steps + 1):
        with clock.data():
            batch = session.batch(next(orders), step)
        with clock.step():
            progress, computed = jax.block_until_ready(compiled(progress, *batch))
        loss = float(computed)
        values = {"loss": loss, "step_time_s": clock.step_time_s, "data_time_s": clock.data_time_s}
        values.update(arithmetic.scaling(progress.scale))
        if step % task.eval_every == 0 or step == task.steps:
            with arithmetic.evaluation(progress.weights) as examined:
                values.update(session.recipe.evaluate(examined))
            print(_as_line(step, values), flush=True)  # noqa: T201 - a program's own words
        run.metrics(values, step)
        watch.see(loss, step)
        asked = checkpoints.asked
        if checkpoints.due(step) and step < task.steps:
            saved = checkpoints.save(step, functools.partial(write, progress, arithmetic.precision))
            if asked and saved:
                finished = False
                break
    run.event("memory", **_memory(arithmetic))
    if finished:
        run.event("final", step=task.steps, sha256=digest(progress.weights))
        checkpoints.clear()
    return finished


def sample_orders(count: int, task: Task) -> Iterator[Array]:
    """Yield the samples of each step, in the order that torch's loop takes them in for the same seed."""
    twister = Twister(task.seed)
    order = np.empty(0, dtype=np.int64)
    while True:
        while len(order) < task.batch_size:
            order = np.concatenate([order, twister.permutation(count)])
        batch, order = order[: task.batch_size], order[task.batch_size :]
        yield batch


def _say_what_is_trained(
    session: Session, step: Callable[..., object], progress: Progress, example: Tuple[jax.Array, ...]
) -> None:
    run, task, recipe = session.run, session.task, session.recipe
    run.event(
        "training",
        steps=task.steps,
        parameters=sum(leaf.size for leaf in jax.tree_util.tree_leaves(progress.weights)),
        batch_size=task.batch_size,
        **recipe.facts(),
    )
    count, tokens = count_step(step, progress, *example), recipe.tokens_per_sample
    run.event(
        "work",
        devices=1,
        model_flops=count.flops,
        flops_method="jaxpr",
        flops_doubt=count.doubt,
        samples=float(task.batch_size),
        tokens=None if tokens is None else float(tokens * task.batch_size),
    )


def _memory(arithmetic: Arithmetic) -> Dict[str, object]:
    """Return the details of the event ``memory``, evaluations included; unknown on a CPU, where nobody counts."""
    device = arithmetic.device.device
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return {
        "device": str(device),
        "peak_allocated_mb": None if peak is None else peak / _MIB,
        "peak_reserved_mb": None,
    }


def _as_line(step: int, values: Mapping[str, float]) -> str:
    return f"step {step}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items())
