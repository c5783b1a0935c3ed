"""Asynchronous training in TensorFlow: workers take steps of their own, on weights that one process keeps for all.

The first process gives out the work, the second keeps the variables, all others compute. A worker's gradient may belong
to weights that others have changed meanwhile, and which, only the moment decides: no two runs are alike bit for bit.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Iterator, NamedTuple

import tensorflow as tf

from hpcml_train.errors import TrainingFailed
from hpcml_train.loop import StepEnd
from hpcml_train.tensorflow.recipe import Recipe
from hpcml_train.tensorflow.session import TensorflowTraining, sample_orders
from hpcml_train.tensorflow.strategies import Team, roles

if TYPE_CHECKING:
    from hpcml_client.checkpoints import Checkpoints
    from hpcml_client.client import Client
    from hpcml_train.task import Task
    from hpcml_train.tensorflow.arithmetic import Arithmetic

_PROTOCOL = "grpc"


class _Given(NamedTuple):
    """A step that a worker has been given."""

    step: int
    loss: Any  # a RemoteValue
    data_time_s: float


def serve(run: Client, team: Team) -> bool:
    """Keep variables, or compute, until the first process says that all is done; return whether it was finished."""
    assert team.rendezvous is not None  # noqa: S101 - our own logic
    resolver = _resolver(run, team)
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=_PROTOCOL,
        start=True,
    )
    finished = team.rendezvous.wait_until_dismissed()
    team.rendezvous.close()
    del server
    if finished is None:
        raise TrainingFailed("the first process, which gives out the work, has gone")
    return finished


def connect(run: Client, team: Team) -> Any:  # noqa: ANN401 - TensorFlow has no types
    """Return the strategy, in the first process, once all servers answer."""
    return tf.distribute.ParameterServerStrategy(_resolver(run, team))


class AsynchronousTraining(TensorflowTraining):
    """Steps given out to the workers, as many at once as there are workers; the first process saves, and decides."""

    def __init__(
        self,
        run: Client,
        task: Task,
        checkpoints: Checkpoints,
        strategy: Any,  # noqa: ANN401 - of tf.distribute
        arithmetic: Arithmetic,
        recipe: Recipe,
    ) -> None:
        super().__init__(run, task, checkpoints, strategy, arithmetic, recipe)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._workers = run.world_size - 2
        self._step = tf.function(lambda parts: strategy.run(self.update, args=(parts,)))

    def steps(self, done: int) -> Iterator[StepEnd]:
        """Do the steps after the first *done*; nothing is under way where one is evaluated or saved.

        ``step_time_s`` is from the end of one step to the end of the next, of whichever worker.
        """
        task, checkpoints = self.task, self.checkpoints
        orders = itertools.islice(sample_orders(self.recipe.samples, task), done, None)
        given: Deque[_Given] = deque()
        following = done + 1
        ended = time.perf_counter()
        while following <= task.steps or given:
            pauses = bool(given) and (self._stops(given[-1].step) or checkpoints.asked)
            while len(given) < self._workers and following <= task.steps and not pauses:
                given.append(self._give(following, next(orders)))
                pauses = self._stops(following)
                following += 1
            first = given.popleft()
            loss = float(first.loss.fetch())
            now = time.perf_counter()
            settled = not given
            due = settled and checkpoints.due(first.step)
            yield StepEnd(first.step, loss, due, due and checkpoints.asked, now - ended, first.data_time_s)
            ended = time.perf_counter() if settled else now  # evaluations and checkpoints are no part of a step

    def _stops(self, step: int) -> bool:
        task = self.task
        saves = task.checkpoint_every is not None and step % task.checkpoint_every == 0
        return saves or step % task.eval_every == 0 or step == task.steps

    def _give(self, step: int, indices: Any) -> _Given:  # noqa: ANN401 - NumPy's array
        began = time.perf_counter()
        parts = self.parts(indices, 0)
        data_time_s = time.perf_counter() - began
        return _Given(step, self._coordinator.schedule(self._step, args=(parts,)), data_time_s)


def _resolver(run: Client, team: Team) -> Any:  # noqa: ANN401 - TensorFlow has no types
    assert team.rendezvous is not None  # noqa: S101 - our own logic
    cluster = roles(team.rendezvous.addresses)
    kind, index = ("chief", 0) if run.rank == 0 else ("ps", 0) if run.rank == 1 else ("worker", run.rank - 2)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type=kind, task_id=index, rpc_layer=_PROTOCOL
    )
