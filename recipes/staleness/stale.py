"""Simulated workers: each computes its share of a step with the weights of some steps ago."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call


def draw_delays(steps: int, *, workers: int, bound: int, kind: str, seed: int) -> torch.Tensor:
    """Return how many steps old the weights of each worker are in each step: *steps* x *workers*, 0..*bound*."""
    if kind == "constant":
        return torch.full((steps, workers), bound)
    # Their own generator: the bound must not change the initial weights.
    return torch.randint(bound + 1, (steps, workers), generator=torch.Generator().manual_seed(seed))


class StaleWorkers(nn.Module):
    """In training each worker takes its share of a batch through *model* as it was some steps ago; else all as it is.

    Gradients reach the weights as they are now, as if a parameter server had added them up. The weights that workers
    remember are buffers, so that a checkpoint has them.
    """

    def __init__(self, model: nn.Module, delays: torch.Tensor, bound: int) -> None:
        super().__init__()
        self.model = model
        self._remembered = bound + 1
        self.register_buffer("delays", delays)
        self.register_buffer("step", torch.zeros(1, dtype=torch.int64))
        for number, parameter in enumerate(model.parameters()):
            self.register_buffer(f"past{number}", torch.zeros(self._remembered, *parameter.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return self.model(x)
        self._remember()
        slots = (self.step - self._delays_now()) % self._remembered
        shares = x.chunk(len(slots))
        outputs = [
            functional_call(self.model, self._weights(slot), (share,))
            for slot, share in zip(slots.split(1), shares, strict=True)
        ]
        self.step += 1
        return torch.cat(outputs)

    def mean_delay(self) -> float:
        """Return how many steps old the weights were so far, over all workers; the first are young by necessity."""
        done = int(self.step)
        ages = torch.arange(done, device=self.delays.device).unsqueeze(1)
        return float(torch.minimum(self.delays[:done], ages).double().mean()) if done else 0.0

    def _delays_now(self) -> torch.Tensor:
        return torch.minimum(self.delays.index_select(0, self.step)[0], self.step)

    def _remember(self) -> None:
        for number, parameter in enumerate(self.model.parameters()):
            past = self.get_buffer(f"past{number}")
            past.index_copy_(0, self.step % self._remembered, parameter.detach().unsqueeze(0))

    def _weights(self, slot: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            name: _AsItWas.apply(parameter, self.get_buffer(f"past{number}").index_select(0, slot)[0])
            for number, (name, parameter) in enumerate(self.model.named_parameters())
        }


class _AsItWas(torch.autograd.Function):
    """A parameter with its value of some steps ago, whose gradient is the parameter's."""

    @staticmethod
    def forward(ctx: object, parameter: torch.Tensor, past: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - torch's form
        return past.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ARG004 - torch's form
        return gradient, None
