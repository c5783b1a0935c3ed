"""Nested tensors that are no subclass: torch's execution trace cannot write them, and after a few the process crashes.

So nobody may trace while there is one. Seen in torch 2.13; `nn.TransformerEncoder` makes them in an evaluation with a
mask of padding, for itself.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

_FOR_ITSELF = (torch, "_nested_tensor_from_mask")  # by `nn.TransformerEncoder`
_FOR_A_PROGRAM = ((torch, "_nested_tensor_from_tensor_list"), (getattr(torch._C, "_nested", None), "nested_tensor"))  # noqa: SLF001


def is_among(inputs: Any) -> bool:  # noqa: ANN401 - what a module gets
    """Whether one of *inputs* is a nested tensor that no trace may meet."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001 - no mode of the program sees the question
        return any(type(one) is torch.Tensor and one.is_nested for one in inputs)


def before_an_encoder_makes_one(tell: Callable[[], None]) -> Callable[[], None]:
    """Have *tell* called before a layer of torch makes a nested tensor for itself; return what ends this.

    It is for a short time: `torch.jit.script` does not know the function that is put in the place of torch's.
    """
    return _before(*_FOR_ITSELF, tell)


def before_a_program_makes_one(tell: Callable[[], None]) -> None:
    """Have *tell* called, from now on, before a program makes a nested tensor: nobody knows how long it keeps it."""
    for owner, name in _FOR_A_PROGRAM:
        _before(owner, name, tell)


def _before(owner: Any, name: str, tell: Callable[[], None]) -> Callable[[], None]:  # noqa: ANN401 - a module of torch
    made = getattr(owner, name, None)
    if made is None:  # an older torch
        return lambda: None

    def make(*args: Any, **options: Any) -> Any:  # noqa: ANN401
        tell()
        return made(*args, **options)

    setattr(owner, name, make)
    return lambda: setattr(owner, name, made)
