"""Who carries the messages between the ranks: torch's backend (gloo, NCCL), or MPI by mpi4py."""

from __future__ import annotations

import torch
from torch import distributed

from hpcml_client import Client
from hpcml_train.errors import RecipeError


class Exchange:
    """The operations of the recipe by torch's backend; by all ranks."""

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def sum_up(self, tensor: torch.Tensor) -> None:
        """Sum *tensor* over all ranks, in place."""
        distributed.all_reduce(tensor)

    def largest(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the largest of each number over all ranks, in place."""
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
        return tensor

    def barrier(self) -> None:
        """Wait for all ranks."""
        distributed.barrier()


class MpiExchange(Exchange):
    """The same by the MPI that started the ranks.

    Tensors in the host's memory are handed over as they lie; those of a GPU need an MPI that takes them (CUDA-aware),
    which ends the program otherwise. BF16, of which MPI knows nothing, is refused.
    """

    def __init__(self, run: Client, device: torch.device, dtype: torch.dtype) -> None:
        try:
            from mpi4py import MPI  # noqa: PLC0415 - it starts MPI, and few have it
        except (ImportError, RuntimeError) as error:
            raise RecipeError(f"strategy=mpi needs mpi4py for the MPI of this job: {error}") from error
        if dtype not in (torch.float32, torch.float64):
            raise RecipeError(f"precision of {dtype} with strategy=mpi: MPI sums no such numbers: use fp32 or fp64")
        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        if self._world.Get_size() != run.world_size:
            raise RecipeError(
                f"MPI has {self._world.Get_size()} process(es) and the run {run.world_size}: mpi4py was built for "
                "another MPI than the one that started them"
            )
        name = MPI.Get_library_version().split(",")[0].split("\n")[0].strip()
        super().__init__(f"mpi: {name}")
        self._on_gpu = device.type == "cuda"

    def sum_up(self, tensor: torch.Tensor) -> None:
        """Sum *tensor* over all ranks, in place."""
        self._reduce(tensor, self._mpi.SUM)

    def largest(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the largest of each number over all ranks."""
        kept = tensor.cpu()
        self._world.Allreduce(self._mpi.IN_PLACE, kept.numpy(), op=self._mpi.MAX)
        return kept

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._world.Barrier()

    def finish(self) -> None:
        """Leave MPI, which all ranks do together: a program that ends without has failed, to its launcher."""
        self._world.Barrier()
        self._mpi.Finalize()

    def _reduce(self, tensor: torch.Tensor, operation: object) -> None:
        # of a GPU mpi4py takes the tensor itself (__cuda_array_interface__)
        self._world.Allreduce(self._mpi.IN_PLACE, tensor if self._on_gpu else tensor.numpy(), op=operation)
