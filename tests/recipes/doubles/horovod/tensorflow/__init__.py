"""Horovod for TensorFlow over a real MPI: the operations by name, one after the other in a graph's order."""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf
from mpi4py import MPI

Sum = "sum"
_world = MPI.COMM_WORLD


def init() -> None:
    """Begin; MPI has begun when it was imported."""
    assert os.environ["HOROVOD_CONTROLLER"] == os.environ["HOROVOD_CPU_OPERATIONS"] == "mpi"


def mpi_built() -> bool:
    """Tell that there is MPI."""
    return True


def nccl_built() -> int:
    """Return the version of NCCL, 0 without."""
    return 0


def size() -> int:
    """Return the number of all ranks."""
    return int(_world.Get_size())


def allreduce(tensor: tf.Tensor, *, op: str, name: str) -> tf.Tensor:
    """Sum *tensor* over all ranks, which must be at the same operation."""
    assert op == Sum

    def exchange(mine: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        names = _world.allgather(name)
        assert set(names) == {name}, names
        total = np.empty_like(mine)
        _world.Allreduce(np.ascontiguousarray(mine), total, op=MPI.SUM)
        return total

    found = tf.numpy_function(exchange, [tensor], tensor.dtype)
    found.set_shape(tensor.shape)
    return found


def shutdown() -> None:
    """End it, and MPI."""
    MPI.Finalize()
