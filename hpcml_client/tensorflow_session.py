"""One TensorFlow training: its model, its state and what its steps work with, made under a strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator, List

import numpy as np
import tensorflow as tf

from hpcml_client.recipe_task import RecipeError, Task
from hpcml_client.tensorflow_examination import Examination
from hpcml_client.tensorflow_progress import Progress
from hpcml_client.tensorflow_recipe import Batch, Recipe

if TYPE_CHECKING:
    from hpcml_client.checkpoints import Checkpoints
    from hpcml_client.client import Client
    from hpcml_client.tensorflow_arithmetic import Arithmetic

Indices = Any  # numpy.ndarray of int64, which old NumPys cannot say


@dataclass(frozen=True)
class StepEnd:
    """What is known after a step."""

    step: int
    loss: float  # the mean over all replicas
    due: bool  # some process finds a checkpoint due, and the weights are those after this step
    asked: bool  # some process was asked to leave
    step_time_s: float
    data_time_s: float


@dataclass(frozen=True)
class Session:
    """What the steps of a training work with."""

    run: Client
    task: Task
    checkpoints: Checkpoints
    strategy: Any  # of tf.distribute
    shares: int  # that a batch is divided into: one for each replica
    arithmetic: Arithmetic
    recipe: Recipe
    examination: Examination
    progress: Progress

    @classmethod
    def begin(
        cls,
        run: Client,
        task: Task,
        checkpoints: Checkpoints,
        strategy: Any,  # noqa: ANN401 - of tf.distribute
        arithmetic: Arithmetic,
        recipe: Recipe,
    ) -> Session:
        """Build the model under *strategy*; raise `RecipeError` where a batch cannot be divided."""
        # each worker of a parameter server computes whole steps of its own
        shares = 1 if task.strategy == "parameter_server" else int(strategy.num_replicas_in_sync)
        if task.batch_size % (shares * task.accumulate):
            raise RecipeError(
                f"training.batch_size={task.batch_size} cannot be shared by {shares} replica(s) in "
                f"{task.accumulate} part(s) each (training.accumulate)"
            )
        examination = Examination(recipe.build, policy=arithmetic.policy, seed=task.seed)
        tf.keras.utils.set_random_seed(task.seed)
        with strategy.scope():
            model = recipe.build()
            plain = recipe.optimizer(learning_rate=task.learning_rate, eps=arithmetic.optimizer_eps(1e-8))
            try:
                optimizer = arithmetic.optimizer(plain)
            except ValueError as error:
                raise RecipeError(f"precision={arithmetic.precision}: {error}") from error
            optimizer.build(model.trainable_variables)
        model.set_weights(examination.first_weights)
        return cls(
            run=run,
            task=task,
            checkpoints=checkpoints,
            strategy=strategy,
            shares=shares,
            arithmetic=arithmetic,
            recipe=recipe,
            examination=examination,
            progress=Progress(model=model, optimizer=optimizer, precision=arithmetic.precision),
        )

    def parts(self, indices: Indices, share: int) -> List[Batch]:
        """Return the samples that replica *share* works on in a step, in as many parts as it takes them in."""
        mine = np.split(indices, self.shares)[share]
        return [self.recipe.batch(part) for part in np.split(mine, self.task.accumulate)]

    def update(self, parts: List[Batch]) -> tf.Tensor:
        """Do this replica's share of a step, inside a graph; return the mean loss of its samples.

        Keras' optimisers add up the gradients of all replicas, so that each is divided by their number first.
        """
        model, optimizer = self.progress.model, self.progress.optimizer
        losses, total = [], None
        for batch in parts:
            with tf.GradientTape() as tape:
                loss = self.recipe.loss(model, batch)
                scaled = optimizer.scale_loss(loss / (self.shares * len(parts)))
            gradients = tape.gradient(scaled, model.trainable_variables)
            total = gradients if total is None else [one + other for one, other in zip(total, gradients)]  # noqa: B905
            losses.append(tf.cast(loss, tf.float64))
        optimizer.apply(total, model.trainable_variables)
        return tf.add_n(losses) / len(losses)


def sample_orders(count: int, task: Task) -> Iterator[Indices]:
    """Yield the samples of each step: epoch after epoch, in an order that only the seed decides."""
    generator = np.random.RandomState(task.seed)  # whose numbers NumPy has promised not to change
    order = np.empty(0, dtype=np.int64)
    while True:
        while len(order) < task.batch_size:
            order = np.concatenate([order, generator.permutation(count)])
        batch, order = order[: task.batch_size], order[task.batch_size :]
        yield batch
