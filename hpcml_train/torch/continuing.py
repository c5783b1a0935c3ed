"""Text that a network in torch goes on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from hpcml_train.continuing import Array, Asked, continue_text


def continue_with(
    make: Callable[[], nn.Module], weights: Mapping[str, torch.Tensor], asked: Asked, *, seed: int
) -> dict[str, dict[str, object]]:
    """Return the event ``generated``, where text is asked for, said by the network of *make* with these *weights*.

    Computed on the CPU, in FP32 (of FP64: in that).
    """
    if not asked.generate:
        return {}
    dtype = torch.float64 if next(iter(weights.values())).dtype is torch.float64 else torch.float32
    network = make().to(dtype)
    network.load_state_dict({name: weight.detach().cpu().to(dtype) for name, weight in weights.items()})
    network.eval()

    @torch.no_grad()
    def next_byte(tokens: Array) -> Array:
        return network(torch.from_numpy(tokens))[0, -1].numpy()

    return continue_text(next_byte, asked, seed=seed)
