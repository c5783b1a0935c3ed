"""Sums over all processes, made of messages between two: around a ring, and up and down a tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import distributed


def backend(tensor: torch.Tensor) -> None:
    """Sum *tensor* over all ranks, in place, as gloo or NCCL does it."""
    distributed.all_reduce(tensor)


def ring(tensor: torch.Tensor) -> None:
    """Sum *tensor* over all ranks, in place: 2 (n-1) rounds in which each rank sends an n-th of it to the next one.

    No algorithm sends less (Patarasuk and Yuan, 2009); the number of rounds grows with the ranks.
    """
    rank, count = distributed.get_rank(), distributed.get_world_size()
    after, before = (rank + 1) % count, (rank - 1) % count
    parts = tensor.tensor_split(count)
    arrived = torch.empty_like(parts[0])  # the first is the largest
    for round_ in range(count - 1):
        part = parts[(rank - round_ - 1) % count]
        _exchange(parts[(rank - round_) % count], after, arrived[: part.numel()], before)
        part += arrived[: part.numel()]
    for round_ in range(count - 1):
        _exchange(parts[(rank + 1 - round_) % count], after, parts[(rank - round_) % count], before)


def tree(tensor: torch.Tensor) -> None:
    """Sum *tensor* over all ranks, in place: up a binomial tree to rank 0 and down again, log2(n) rounds each.

    Few rounds, in each of which the whole tensor is sent.
    """
    rank, count = distributed.get_rank(), distributed.get_world_size()
    arrived = torch.empty_like(tensor)
    distances = [1 << power for power in range((count - 1).bit_length())]
    for distance in distances:
        if rank % (2 * distance) == distance:
            _send(tensor, rank - distance)
            break
        if rank + distance < count:
            _receive(arrived, rank + distance)
            tensor += arrived
    for distance in reversed(distances):
        if rank % (2 * distance) == distance:
            _receive(tensor, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < count:
            _send(tensor, rank + distance)


ALGORITHMS: Mapping[str, Callable[[torch.Tensor], None]] = {"backend": backend, "ring": ring, "tree": tree}


def _exchange(sent: torch.Tensor, to: int, received: torch.Tensor, source: int) -> None:
    _do(
        [
            *([distributed.P2POp(distributed.isend, sent, to)] if sent.numel() else []),
            *([distributed.P2POp(distributed.irecv, received, source)] if received.numel() else []),
        ]
    )


def _send(tensor: torch.Tensor, to: int) -> None:
    _do([distributed.P2POp(distributed.isend, tensor, to)])


def _receive(tensor: torch.Tensor, source: int) -> None:
    _do([distributed.P2POp(distributed.irecv, tensor, source)])


def _do(messages: list[distributed.P2POp]) -> None:
    """Do all *messages* at once: NCCL would wait for ever for the second behind the first."""
    for work in distributed.batch_isend_irecv(messages) if messages else []:
        work.wait()
