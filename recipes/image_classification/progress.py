"""How far a training has got: written to a file, and taken up again bit for bit."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import dataclass
from typing import Any

import torch
from task import RecipeError
from torch import nn

from hpcml_client import Saved
from hpcml_client.torch_arithmetic import Arithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """All that the next step depends on, but for the order of the samples, which only the seed decides."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    arithmetic: Arithmetic

    def write(self, path: str) -> None:
        """Save it as the file *path*."""
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "arithmetic": self.arithmetic.state_dict(),
            "random": torch.get_rng_state(),
        }
        if self.arithmetic.device.type == "cuda":
            state["random_cuda"] = torch.cuda.get_rng_state(self.arithmetic.device)
        torch.save(state, path)

    def read(self, saved: Saved) -> None:
        """Take up what was saved; raise `RecipeError` where it cannot be read or belongs to something else."""
        try:
            state = torch.load(saved.path, map_location="cpu", weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.arithmetic.load_state_dict(state["arithmetic"])
            torch.set_rng_state(state["random"])
            if self.arithmetic.device.type == "cuda":
                torch.cuda.set_rng_state(state["random_cuda"], self.arithmetic.device)
        except (OSError, EOFError, RuntimeError, KeyError, ValueError, pickle.UnpicklingError) as error:
            reason = " ".join(str(error).split())
            raise RecipeError(
                f"cannot go on from {saved.path}: {reason}: remove it to go on from the one before"
            ) from error


def digest(model: nn.Module) -> str:
    """Return the SHA-256 of all weights, bit by bit: equal for equal trainings."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()
