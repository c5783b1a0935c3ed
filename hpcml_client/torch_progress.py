"""How far a torch training has got: written to a file, and taken up again bit for bit."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import dataclass
from typing import Any, Dict, Mapping

import torch

from hpcml_client.checkpoints import Saved
from hpcml_client.recipe_task import RecipeError
from hpcml_client.torch_arithmetic import Arithmetic
from hpcml_client.torch_ranks import Team


@dataclass(frozen=True)
class Progress:
    """All that the next step depends on, but for the order of the samples, which only the seed decides."""

    team: Team
    optimizer: torch.optim.Optimizer
    arithmetic: Arithmetic

    def state(self) -> Dict[str, Any]:
        """Return it on the first rank, which saves it; by all ranks."""
        return {**self.team.state(self.optimizer), "arithmetic": self.arithmetic.state_dict()}

    def read(self, saved: Saved) -> None:
        """Take up what was saved; raise `RecipeError` where it cannot be read or belongs to something else."""
        try:
            state = torch.load(saved.path, map_location="cpu", weights_only=True)
            self.team.restore(state, self.optimizer)
            self.arithmetic.load_state_dict(state["arithmetic"])
        except (OSError, EOFError, RuntimeError, KeyError, ValueError, pickle.UnpicklingError) as error:
            reason = " ".join(str(error).split())
            raise RecipeError(
                f"cannot go on from {saved.path}: {reason}: remove it to go on from the one before"
            ) from error


def digest(weights: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of all *weights*, bit by bit: equal for equal trainings."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()
