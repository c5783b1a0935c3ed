"""Collective operations by name, in Horovod's words; strict where Horovod is."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from datetime import timedelta

import torch
from torch import distributed

Average, Sum = "average", "sum"
_WORDS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
_TYPES = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)

_groups: list[distributed.ProcessGroupGloo | None] = [None]  # the last is now's: None without; none is ever destroyed
_numbers = itertools.count()
_under_way: dict[int, tuple[str, Callable[[], torch.Tensor]]] = {}


def init() -> None:
    """Find the others as the environment says."""
    if os.environ.get("HOROVOD_CONTROLLER") == "mpi":
        _init_by_mpi()
        return
    told = {word: int(os.environ[f"HOROVOD_{word}"]) for word in _WORDS}
    assert told["RANK"] == told["CROSS_RANK"] * told["LOCAL_SIZE"] + told["LOCAL_RANK"]
    assert told["SIZE"] == told["CROSS_SIZE"] * told["LOCAL_SIZE"]
    assert os.environ["HOROVOD_HOSTNAME"]
    assert os.environ["HOROVOD_CONTROLLER"] == os.environ["HOROVOD_CPU_OPERATIONS"] == "gloo"
    host, port = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    store = distributed.TCPStore(host, port, None, is_master=False)
    _groups.append(distributed.ProcessGroupGloo(store, told["RANK"], told["SIZE"], timedelta(minutes=5)))


def _init_by_mpi() -> None:
    from mpi4py import MPI  # noqa: PLC0415 - it starts MPI

    assert os.environ["HOROVOD_CPU_OPERATIONS"] == "mpi"
    rank, count = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    assert (str(rank), str(count)) == (os.environ["RANK"], os.environ["WORLD_SIZE"])
    store = distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), count, rank == 0)
    _groups.append(distributed.ProcessGroupGloo(store, rank, count, timedelta(minutes=5)))


def mpi_built() -> bool:
    """Tell that there is MPI."""
    return True


def size() -> int:
    """Return the number of all ranks."""
    return int(_group().size())


def is_initialized() -> bool:
    """Tell whether `init` was called, and not `shutdown` since."""
    return _groups[-1] is not None


def shutdown() -> None:
    """End it for all ranks, which may begin again."""
    assert not _under_way
    _groups.append(None)
    if os.environ.get("HOROVOD_CONTROLLER") == "mpi":
        from mpi4py import MPI  # noqa: PLC0415 - it starts MPI

        MPI.Finalize()


def nccl_built() -> int:
    """Return the version of NCCL, 0 without."""
    return 0


def allreduce_async_(tensor: torch.Tensor, *, name: str, op: str) -> int:
    """Sum or average *tensor* over all ranks, in place."""
    work = _group().allreduce([_checked(tensor)])

    def end() -> torch.Tensor:
        work.wait()
        return tensor.div_(_group().size()) if op == Average else tensor

    return _begin(name, end)


def allreduce(tensor: torch.Tensor, *, op: str) -> torch.Tensor:
    """Return the sum or average over all ranks."""
    return synchronize(allreduce_async_(tensor.clone(), name="allreduce.noname", op=op))


def broadcast_async_(tensor: torch.Tensor, root_rank: int, *, name: str) -> int:
    """Set *tensor* to what one rank has."""
    work = _group().broadcast([_checked(tensor)], _options(root_rank))

    def end() -> torch.Tensor:
        work.wait()
        return tensor

    return _begin(name, end)


def synchronize(handle: int) -> torch.Tensor:
    """Wait for what was begun."""
    return _under_way.pop(handle)[1]()


def barrier() -> None:
    """Wait for all ranks."""
    _group().barrier().wait()


def _begin(name: str, end: Callable[[], torch.Tensor]) -> int:
    if any(name == other for other, _ in _under_way.values()):
        raise ValueError(f"Duplicate tensor name {name} in queue")
    handle = next(_numbers)
    _under_way[handle] = name, end
    return handle


def _checked(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in _TYPES:
        raise ValueError(f"Tensor type {tensor.type()} is not supported.")
    if not tensor.is_contiguous():
        raise ValueError("Tensor is required to be contiguous.")
    return tensor


def _group() -> distributed.ProcessGroupGloo:
    if _groups[-1] is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _groups[-1]


def _options(root_rank: int) -> distributed.BroadcastOptions:
    options = distributed.BroadcastOptions()
    options.rootRank = root_rank
    options.rootTensor = 0
    return options
