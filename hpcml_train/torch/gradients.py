"""Which factors of a backward pass are gradients: what did not come from the factors of the forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves


class ForwardTensors:
    """The tensors that products of the forward pass had as factors, and what a backward pass made of them alone.

    Autograd keeps exactly these for the products of the backward pass; their other factor is a gradient. They are known
    again by their memory, which a view or a transposition shares.
    """

    def __init__(self) -> None:
        self._known: set[StorageWeakRef] = set()

    def add(self, values: Any) -> None:  # noqa: ANN401 - whatever an operation takes or returns
        """Remember the tensors among *values*."""
        self._known.update(_storages(values))

    def has(self, x: torch.Tensor) -> bool:
        """Tell whether *x* lies in the memory of a tensor that is remembered."""
        return all(storage in self._known for storage in _storages(x))

    def follow(self, inputs: Any, result: Any) -> None:  # noqa: ANN401
        """Remember *result*, where an operation of a backward pass made it of remembered tensors alone."""
        storages = list(_storages(inputs))
        if storages and all(storage in self._known for storage in storages):
            self.add(result)

    def forget(self) -> None:
        """Forget the tensors that nobody has any more."""
        self._known = {storage for storage in self._known if not storage.expired()}  # type: ignore[no-untyped-call, unused-ignore]


def is_backward() -> bool:
    """Tell whether an operation belongs to a backward pass, and not to what it recomputes."""
    return bool(torch._C._current_graph_task_id() != -1) and not torch.is_grad_enabled()  # noqa: SLF001 - there is no other way


def is_differentiable() -> bool:
    """Tell whether autograd computes what can be differentiated: a checkpoint again, or a gradient of gradients."""
    return bool(torch._C._current_graph_task_id() != -1) and torch.is_grad_enabled()  # noqa: SLF001


def _storages(values: Any) -> Iterator[StorageWeakRef]:  # noqa: ANN401
    for x in _tensors(values):
        if x.layout is torch.strided:
            yield _reference(x.untyped_storage())
        elif x.layout is torch.sparse_coo:
            yield _reference(x._values().untyped_storage())  # noqa: SLF001 - values() is for coalesced ones only
        else:
            yield _reference(x.values().untyped_storage())


def _reference(storage: Any) -> StorageWeakRef:  # noqa: ANN401 - torch's type for it is being replaced
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call, unused-ignore]


def _tensors(values: Any) -> Iterable[torch.Tensor]:  # noqa: ANN401
    return (x for x in tree_leaves(values) if isinstance(x, torch.Tensor))
