"""The whole of a model of which every rank has a part: put together on the first rank, to be examined."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Iterator, Mapping, Optional

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hpcml_client.torch_arithmetic import Arithmetic


class Twin:
    """A copy of *model* in the host memory of the first rank; the others have none."""

    def __init__(self, model: nn.Module, arithmetic: Arithmetic, *, rank: int) -> None:
        self._model: Optional[nn.Module] = copy.deepcopy(model).cpu() if rank == 0 else None
        self._arithmetic = arithmetic

    @contextlib.contextmanager
    def holding(self, weights: Mapping[str, torch.Tensor]) -> Iterator[Optional[nn.Module]]:
        """Give the first rank its copy with these *weights*, on the device meanwhile; the others get None."""
        if self._model is None:
            yield None
            return
        self._model.load_state_dict(weights)
        yield self._arithmetic.prepare(self._model)
        self._model.cpu()
