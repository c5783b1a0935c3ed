"""The format that a real product was computed in, by its numbers: whatever types, switches and kernels are called.

A few rows and columns of a layer's product are computed again in FP64 with the factors rounded to each format that a
float32 product may secretly have. The one that leaves no more than the errors of FP32 sums, and far less than the
others, is the format. Formats whose errors lie below that, BF16x9 or 3xTF32, cannot be told from FP32.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, List, Mapping, Optional

import torch

from hpcml_train.torch.samples import AnySample, FirstStep, Sample

_CLEARLY = 4.0  # times: how much nearer the best format must be than the next
_SUMS = 6.0  # times sqrt(K) 2**-24: what FP32 sums err by, generously
# of a new state: tanh and the like of cuDNN 9.19 on an H200 left up to 5e-6 in FP32, sums in TF32 5e-5, where the other
# format was off by 3e-4
_STATES = 1e-4
_SAME = {"tf32 rz": "tf32"}
_Rounding = Callable[[torch.Tensor], torch.Tensor]


def format_of(of: AnySample) -> Optional[str]:
    """Return the format in which the products of the sample were computed; None where the numbers do not say it."""
    return _format_of_step(of) if isinstance(of, FirstStep) else _format_of_products(of)


def _format_of_products(of: Sample) -> Optional[str]:
    rows, columns, products = of
    scale = rows.double().abs() @ columns.double().abs().T
    told = scale > 0  # of a black corner of a picture nothing is
    if not bool(torch.isfinite(products).all()) or not bool(told.any()):
        return None
    residuals = {
        name: float((((exact - products)[told] / scale[told]).square().mean()).sqrt())
        for name, exact in _candidates(rows, columns).items()
    }
    return _nearest(residuals, _SUMS * math.sqrt(rows.shape[1]) * 2.0**-24)


def _format_of_step(of: FirstStep) -> Optional[str]:
    states = of.states.double()
    size = float(states.square().mean().sqrt())
    if not math.isfinite(size) or size == 0.0:
        return None
    residuals = {
        name: float((_new_states(of, rounded) - states).square().mean().sqrt()) / size
        for name, rounded in _ROUNDINGS.items()
    }
    return _nearest(residuals, _STATES)


def _nearest(residuals: Mapping[str, float], most: float) -> Optional[str]:
    """Return the format with the least of the *residuals*, where that is no more than *most* and clearly the least."""
    best = min(residuals, key=lambda name: residuals[name])
    if not residuals[best] <= most:
        return None
    near = {_SAME.get(name, name) for name, error in residuals.items() if error <= _CLEARLY * residuals[best]}
    return near.pop() if len(near) == 1 else None  # small integers, say, are exact in every format


def _candidates(rows: torch.Tensor, columns: torch.Tensor) -> Dict[str, torch.Tensor]:
    a, b = _split(rows, 2), _split(columns, 2)
    plain = {name: rounded(rows) @ rounded(columns).T for name, rounded in _ROUNDINGS.items()}
    return {**plain, "bf16x3": a[0] @ b[0].T + a[0] @ b[1].T + a[1] @ b[0].T}


def _new_states(of: FirstStep, rounded: _Rounding) -> torch.Tensor:
    """Return the states (m, n) after a step from zero states, as torch's documentation of each layer has it."""
    products = rounded(of.rows) @ rounded(of.weights.flatten(0, 1)).T
    inputs = products.reshape(len(of.rows), *of.weights.shape[:2]).unbind(1)
    of_input, of_state = of.biases.double()
    gates = [one + of_input[at] for at, one in enumerate(inputs)]
    totals = [one + of_state[at] for at, one in enumerate(gates)]
    states: torch.Tensor
    if of.mode == "LSTM":
        states = totals[3].sigmoid() * (totals[0].sigmoid() * totals[2].tanh()).tanh()
    elif of.mode == "GRU":
        states = (1 - totals[1].sigmoid()) * (gates[2] + totals[0].sigmoid() * of_state[2]).tanh()
    else:
        states = totals[0].tanh() if of.mode == "RNN_TANH" else totals[0].relu()
    return states


def _to_bits(bits: int, *, nearest: bool) -> _Rounding:
    def rounded(x: torch.Tensor) -> torch.Tensor:
        codes, dropped = x.contiguous().view(torch.int32), 23 - bits
        if nearest:
            codes = codes + (1 << (dropped - 1))
        return (codes & -(1 << dropped)).view(torch.float32).double()

    return rounded


_ROUNDINGS: Mapping[str, _Rounding] = {
    "fp32": lambda x: x.double(),
    "tf32": _to_bits(10, nearest=True),
    "tf32 rz": _to_bits(10, nearest=False),
    "bf16": lambda x: x.bfloat16().double(),
}


def _split(x: torch.Tensor, parts: int) -> List[torch.Tensor]:
    """Return *x* as a sum of numbers of BF16."""
    rest, found = x, []
    for _ in range(parts):
        part = rest.bfloat16().float()
        found.append(part.double())
        rest = rest - part
    return found
