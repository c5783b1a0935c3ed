"""Horovod between the processes of one Keras training: sums inside of TensorFlow's graphs, in ranks of an MPI job."""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any

import tensorflow as tf

from hpcml_client.client import Client
from hpcml_train.errors import RecipeError
from hpcml_train.task import by_mpi


class Horovod:
    """The sums that Horovod computes over all ranks; made by `begin_horovod`."""

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - Horovod has no types
        self._library = library
        self._numbers = itertools.count()  # tensors meet by name: all ranks build the same graph in the same order

    def summed(self, tensors: list[Any]) -> list[Any]:
        """Return the sums of *tensors* over all ranks, in a graph or outside; by all ranks, in the same order."""
        hvd = self._library
        return [
            hvd.allreduce(tf.convert_to_tensor(one), op=hvd.Sum, name=f"hpcml.{next(self._numbers)}") for one in tensors
        ]

    def leave(self) -> None:
        """End it for all ranks, once they have come so far."""
        self.summed([tf.zeros([1])])
        self._library.shutdown()


def begin_horovod(run: Client) -> Horovod:
    """Start Horovod in a process that an MPI launcher has started.

    Raises `RecipeError` where it is not installed for this TensorFlow, was built without MPI, or finds other processes
    than those of *run*.
    """
    if not by_mpi(run):
        raise RecipeError("strategy=horovod in TensorFlow is started by MPI: set workload.launcher=mpirun or srun")
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise RecipeError(
            f"strategy=horovod needs Horovod for TensorFlow in {sys.executable}: {error}: see docs/horovod.md, or use "
            "strategy=multi_worker_mirrored"
        ) from error
    if not hvd.mpi_built():
        raise RecipeError("strategy=horovod needs a Horovod that was built with MPI here: HOROVOD_WITH_MPI=1")
    os.environ.update(HOROVOD_CONTROLLER="mpi", HOROVOD_CPU_OPERATIONS="mpi")
    hvd.init()
    if hvd.size() != run.world_size:
        raise RecipeError(f"strategy=horovod: MPI has {hvd.size()} process(es), and the run {run.world_size}")
    run.event("strategy", backend="nccl" if hvd.nccl_built() else "mpi", horovod=_version())
    return Horovod(hvd)


def _version() -> str:
    import horovod

    return str(horovod.__version__)
