"""What a network in torch says of the next token, for `hpcml_train.continuing`."""

from __future__ import annotations

import torch
from torch import nn

from hpcml_train.continuing import Array


@torch.no_grad()
def last_logits(network: nn.Module, tokens: Array) -> Array:
    """Return what *network* says of the token behind *tokens* (1 x n), as NumPy's numbers."""
    return network(torch.from_numpy(tokens))[0, -1].numpy()
