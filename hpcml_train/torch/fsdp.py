"""A model whose parameters, gradients and optimiser are sharded over the ranks: torch's FSDP2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.recipe import Recipe
from hpcml_train.torch.stages import shared
from hpcml_train.torch.team import Team, Twin, random_state, set_random_state

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)  # on the first rank


class Sharded(Team):
    """Each rank keeps a part of every parameter, and has a layer whole only while it computes with it.

    No mixed precision policy is set: the precision of the run is done by autocast and dtypes as without shards, so that
    an arm means the same in every strategy. What is sent has the parameters' dtype. Checkpoints hold the whole model,
    as those of one process do.
    """

    def __init__(self, recipe: Recipe, arithmetic: Arithmetic, *, rank: int, world_size: int) -> None:
        model = recipe.model
        # to be examined: `fully_shard` changes the model itself, and may not be undone
        self._twin = Twin(model, arithmetic, rank=rank)
        mesh = init_device_mesh(arithmetic.device.type, (world_size,))
        layers = _alone(recipe.layers(model))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        self._sharded = fully_shard(model, mesh=mesh)
        self._layers = len(layers)
        super().__init__(model, arithmetic.device, world_size=world_size)

    def details(self) -> Mapping[str, object]:
        """Return how it talks, and in how many pieces the model is gathered."""
        mine = sum(cast("DTensor", parameter).to_local().numel() for parameter in self.module.parameters())
        return {"backend": distributed.get_backend(), "layers": self._layers, "parameters_of_rank0": mine}

    def part(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """Exchange gradients after the last part only; until then each rank keeps them whole."""
        self._sharded.set_requires_gradient_sync(is_last)
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def whole(self) -> Iterator[nn.Module | None]:
        """Gather the weights into the first rank's twin of the model, which lies in host memory meanwhile."""
        with self._twin.holding(self.weights()) as model:
            yield model

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Gather the weights."""
        return cast("dict[str, torch.Tensor]", get_model_state_dict(self.module, options=_WHOLE))

    def state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Gather the weights and what the optimiser remembers."""
        model, remembered = get_state_dict(self.module, optimizer, options=_WHOLE)
        return {"model": model, "optimizer": remembered, **random_state(self.devices)}

    def restore(self, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
        """Take this rank's shards of what was saved."""
        set_state_dict(
            self.module,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=StateDictOptions(full_state_dict=True),
        )
        set_random_state(state, self.devices)


def _alone(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """Return those of *layers* that learn, and share nothing: what is shared stays whole as long as any needs it."""
    common = shared([[layer] for layer in layers])
    learned = ((layer, list(layer.parameters())) for layer in layers)
    return [layer for layer, own in learned if own and not any(parameter in common for parameter in own)]
