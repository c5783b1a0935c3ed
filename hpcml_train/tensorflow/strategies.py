"""The strategies of TensorFlow (``tf.distribute``) by hpcml's names, and the meeting of their processes.

A strategy is made before the first tensor: TensorFlow fixes threads, logical devices and collectives when it starts.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hpcml_client.client import Client
from hpcml_client.rendezvous import Rendezvous, RendezvousError, meet
from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.tensorflow.arithmetic import choose_device
from hpcml_train.tensorflow.horovod import Horovod, begin_horovod

IN_ONE_PROCESS = ("single", "cpu_threads", "mirrored", "central_storage")
IN_SEVERAL = ("multi_worker_mirrored", "horovod")
_FEWEST_REPLICAS = 2


@dataclass(frozen=True)
class Team:
    """The devices that train one model together."""

    strategy: Any  # of tf.distribute
    rendezvous: Rendezvous | None  # with the other processes, where there are any
    horovod: Horovod | None = None

    def part(self, run: Client) -> None:
        """Leave together: the others go when the first no longer needs them, and the first goes last."""
        if self.horovod is not None:
            self.horovod.leave()
        if self.rendezvous is None:
            return
        if run.rank == 0:
            self.rendezvous.dismiss()
        else:
            self.rendezvous.wait_until_dismissed()


def form(run: Client, task: Task) -> Team:
    """Connect the processes of *run*, and make the strategy.

    TensorFlow must not have computed anything yet. Raises `RecipeError` where the strategy is not possible here.
    """
    task.choose("strategy", (*IN_ONE_PROCESS, *IN_SEVERAL))
    if task.strategy in IN_ONE_PROCESS and run.world_size > 1:
        raise RecipeError(f"strategy={task.strategy} does not fit {run.world_size} process(es)")
    _set_threads(task)
    if task.deterministic:
        tf.config.experimental.enable_op_determinism()
    if task.strategy == "horovod":
        horovod = begin_horovod(run)
        device = choose_device((run.config.get("plan") or {}).get("device"), run.local_rank)
        return Team(strategy=tf.distribute.OneDeviceStrategy(device.name), rendezvous=None, horovod=horovod)
    rendezvous = None if run.world_size == 1 else _meet(run, task)
    return Team(strategy=_make(run, task, rendezvous), rendezvous=rendezvous)


def tell_tensorflow(run: Client, rendezvous: Rendezvous) -> None:
    """Set TF_CONFIG, from which MultiWorkerMirroredStrategy reads the addresses of all workers."""
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": rendezvous.addresses}, "task": {"type": "worker", "index": run.rank}}
    )


def _meet(run: Client, task: Task) -> Rendezvous:
    try:
        return meet(run)
    except RendezvousError as error:
        raise RecipeError(f"strategy={task.strategy}: {error}") from error


def _make(run: Client, task: Task, rendezvous: Rendezvous | None) -> Any:  # noqa: ANN401 - TensorFlow has no types
    if task.strategy == "multi_worker_mirrored":
        if rendezvous is not None:
            tell_tensorflow(run, rendezvous)
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        if strategy.num_replicas_in_sync < _FEWEST_REPLICAS:
            raise RecipeError(
                "strategy=multi_worker_mirrored needs two replicas or more: one for each GPU, or without GPUs one for "
                "each process (strategy.processes_per_node)"
            )
        return strategy
    kind = (run.config.get("plan") or {}).get("device")
    if task.strategy in ("single", "cpu_threads"):
        return tf.distribute.OneDeviceStrategy(choose_device(kind, run.local_rank).name)
    devices = _devices(task, kind)
    if task.strategy == "mirrored":
        return tf.distribute.MirroredStrategy(devices)
    return tf.distribute.experimental.CentralStorageStrategy(devices)


def _devices(task: Task, kind: str | None) -> list[str]:
    """Return the devices of this process: its GPUs, or as many logical ones of the CPU as were asked for."""
    gpus = tf.config.list_physical_devices("GPU") if kind in (None, "cuda") else []
    count = task.devices or len(gpus)
    if count < _FEWEST_REPLICAS or (gpus and count > len(gpus)):
        raise RecipeError(
            f"strategy={task.strategy} needs two devices or more and finds {len(gpus)} GPU(s): "
            "set resources.gpus_per_node, or strategy.devices where there is no GPU"
        )
    if gpus:
        return [f"GPU:{index}" for index in range(count)]
    (cpu,) = tf.config.list_physical_devices("CPU")
    if len(tf.config.get_logical_device_configuration(cpu) or ()) != count:  # else a training before this one did it
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)])
    return [f"CPU:{index}" for index in range(count)]


def _set_threads(task: Task) -> None:
    threading, wanted = tf.config.threading, os.environ.get("OMP_NUM_THREADS", "")
    # Told the same twice, TensorFlow complains that it has started.
    if wanted.isdigit() and int(wanted) not in (0, threading.get_intra_op_parallelism_threads()):
        threading.set_intra_op_parallelism_threads(int(wanted))
    if task.strategy == "cpu_threads" and threading.get_inter_op_parallelism_threads() != task.inter_op_threads:
        threading.set_inter_op_parallelism_threads(task.inter_op_threads)
