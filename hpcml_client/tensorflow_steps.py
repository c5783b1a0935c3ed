"""Synchronous steps in TensorFlow: each device computes the gradients of its share of a batch, and all add them up."""

from __future__ import annotations

import itertools
from typing import Any, Iterator

import tensorflow as tf

from hpcml_client.step_clock import StepClock
from hpcml_client.tensorflow_session import Session, StepEnd, sample_orders


class SynchronousSteps:
    """The steps of `single`, `mirrored`, `central_storage` and `multi_worker_mirrored`."""

    def __init__(self, session: Session) -> None:
        self.session = session
        strategy = session.strategy

        # What the processes know of checkpoints goes along with the loss: all save, or leave, after the same step.
        def step(parts: Any, known: Any) -> tf.Tensor:  # noqa: ANN401 - values for each replica
            def replica(mine: Any, flags: tf.Tensor) -> tf.Tensor:  # noqa: ANN401
                loss = session.update(mine) / session.shares
                return tf.concat([tf.reshape(loss, [1]), flags], axis=0)

            return strategy.reduce("SUM", strategy.run(replica, args=(parts, known)), axis=None)

        self._step = tf.function(step)
        self._sum = tf.function(lambda value: strategy.reduce("SUM", strategy.run(tf.identity, (value,)), axis=None))

    def after(self, done: int) -> Iterator[StepEnd]:
        """Do the steps after the first *done*."""
        session = self.session
        task, checkpoints = session.task, session.checkpoints
        clock = StepClock(lambda: None)  # what a step returns is read, which waits for the device
        orders = itertools.islice(sample_orders(session.recipe.samples, task), done, None)
        for step in range(done + 1, task.steps + 1):
            with clock.data():
                indices = next(orders)
                parts = self._each(lambda share, indices=indices: session.parts(indices, share))
                known = self._flags(checkpoints.due(step), checkpoints.asked)
            with clock.step():
                loss, due, asked = self._step(parts, known).numpy().tolist()
            yield StepEnd(step, loss, due > 0, asked > 0, clock.step_time_s, clock.data_time_s)

    def everywhere(self, saved: bool) -> bool:  # noqa: FBT001 - what it is about
        """Tell whether all processes could save: where the disk of the first is full, nobody leaves."""
        if self.session.run.world_size == 1:
            return saved
        return float(self._sum(self._flags(not saved))[0]) == 0.0

    def _flags(self, *known: bool) -> Any:  # noqa: ANN401 - a value for each replica
        return self._each(lambda _: tf.constant(known, tf.float64))

    def _each(self, value_of: Any) -> Any:  # noqa: ANN401 - a value for each replica
        strategy = self.session.strategy
        return strategy.experimental_distribute_values_from_function(
            lambda context: value_of(context.replica_id_in_sync_group)
        )
