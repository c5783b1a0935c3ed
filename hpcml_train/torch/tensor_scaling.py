"""One scale for a whole tensor, which brings its largest number to FP8's: of now, or of the steps before.

As Transformer Engine does it (recipes Float8CurrentScaling and DelayedScaling with their defaults): the scale is the
format's largest number over the tensor's; a delayed one is made of the largest of the last 1024 steps, and is 1 before
the first. Steps are counted by the optimiser.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Dict, List, Mapping, Tuple

import torch

from hpcml_train.torch.rounding import FORMATS

HISTORY_STEPS = 1024
_LARGEST_FP32 = float(torch.finfo(torch.float32).max)


def current_scale(x: torch.Tensor, form: str, *, power_of_two: bool = False) -> torch.Tensor:
    """Return the scale of *x* in the format *form*, an FP32 number; 1 where *x* has nothing but zeros, or no limit."""
    largest = _largest(x)
    scale = (FORMATS[form].largest / largest.double()).float().clamp(max=_LARGEST_FP32)
    if power_of_two:
        mantissa, exponent = torch.frexp(FORMATS[form].largest / largest.double())
        del mantissa
        scale = torch.ldexp(torch.ones_like(largest), (exponent - 1).clamp(-126, 126))  # a normal number of FP32
    return torch.where((largest > 0) & torch.isfinite(largest), scale, torch.ones_like(scale))


class AmaxHistory:
    """The largest numbers that the tensors of the last steps had, by place; what delayed scales are made of."""

    def __init__(self) -> None:
        self._maxima: Dict[str, List[float]] = {}  # by place, the oldest first
        self._scales: Dict[str, float] = {}
        self._seen: Dict[str, Tuple[str, torch.Tensor]] = {}  # in this step: format and largest number

    def scale(self, x: torch.Tensor, form: str, place: str) -> torch.Tensor:
        """Return the scale of *place* from the steps before, and remember the largest of *x* for those to come."""
        largest = _largest(x)
        if place in self._seen:  # of another part of the same batch
            largest = torch.maximum(largest, self._seen[place][1])
        self._seen[place] = (form, largest)
        return torch.full((), self._scales.get(place, 1.0), device=x.device)

    def end_step(self) -> None:
        """Make new scales of what was seen since the last call; by all ranks, which share the largest of theirs."""
        places = sorted(self._seen)
        if not places:
            return
        maxima = torch.stack([self._seen[place][1].float() for place in places])
        for place, value in zip(places, _over_all_ranks(maxima, places).tolist()):  # noqa: B905 - Python 3.8
            self._add(place, self._seen[place][0], value)
        self._seen.clear()

    def state_dict(self) -> Dict[str, Any]:
        """Return the history for a checkpoint."""
        return {"maxima": {place: list(values) for place, values in self._maxima.items()}, "scales": dict(self._scales)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned; what was seen since is forgotten."""
        self._maxima = {place: list(values) for place, values in state["maxima"].items()}
        self._scales = dict(state["scales"])
        self._seen.clear()

    def _add(self, place: str, form: str, value: float) -> None:
        if value == 0.0 or math.isnan(value):  # says nothing of a scale
            return
        values = self._maxima.setdefault(place, [])
        values.append(value)
        del values[:-HISTORY_STEPS]
        largest = max(values)
        if math.isfinite(largest):  # else the scale stays, until the overflow has left the history
            scale = min(FORMATS[form].largest / largest, _LARGEST_FP32)
            self._scales[place] = float(torch.tensor(scale, dtype=torch.float32))


def _largest(x: torch.Tensor) -> torch.Tensor:
    return x.abs().amax() if x.numel() else x.new_zeros(())


def _over_all_ranks(maxima: torch.Tensor, places: List[str]) -> torch.Tensor:
    """Return the largest of all ranks; raise `RuntimeError` where they do not compute the same products."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return maxima
    digest = hashlib.sha256("\n".join(places).encode()).digest()
    label = torch.tensor([int.from_bytes(digest[:4], "big")], dtype=torch.int64, device=maxima.device)
    both = torch.cat([label, -label])
    distributed.all_reduce(both, op=distributed.ReduceOp.MAX)
    if int(both[0]) != int(label) or int(both[1]) != -int(label):
        raise RuntimeError(
            "precision=fp8_hybrid_delayed: the ranks computed different products in this step, and cannot share the "
            "maxima that its scales are made of: use precision=fp8_hybrid"
        )
    distributed.all_reduce(maxima, op=distributed.ReduceOp.MAX)
    return maxima
