"""Torch's switches for the arithmetic of a run; all are set explicitly, since their defaults differ.

By default an "FP32" network on an Ampere GPU computes its convolutions in TF32 (cudnn's default), its matrix products
in FP32, and may keep sums of 16-bit products in 16 bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

Value = str | bool

# The CPU's are never set to tf32: it has no such units, and on other hardware than measured a switch might do anything.
_ON_CUDA = ("cuda.matmul", "cudnn.conv", "cudnn.rnn")
_ON_CPU = ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
_PARENTS = ("", "cudnn", "mkldnn")  # what the parts inherit where they say nothing: "" is all of torch
_OLD = ("cuda.matmul.allow_tf32", "cudnn.allow_tf32")
# Sums of 16-bit products are kept in FP32 in every precision. Torch has the last since 2.7.
_SUMS = (
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_accumulation",
)
_MATMUL = "float32_matmul_precision"  # functions of torch itself; the old interface's, and the new one's mirror
# By these cuDNN chooses the kernel of a convolution: by time, or among those that repeat themselves. Not set here, and
# recorded, since another kernel may round otherwise.
_RECORDED = ("cudnn.benchmark", "cudnn.deterministic")
_ATTENTION = "cuda.allow_fp16_bf16_reduction_math_sdp"  # a function to set and another one to read, since 2.5


def set_switches(*, tf32: bool) -> Mapping[str, Value]:
    """Allow TF32 for FP32 products on GPUs, or not; return every switch with its value.

    Uses the one interface that this torch has for it: in torch 2.9 and later, mixing the new with the old raises.
    """
    for name, value in _wanted(tf32=tf32).items():
        _write(name, value)
    return read_switches()


def read_switches() -> dict[str, Value]:
    """Return every switch with its value, those that are only recorded too."""
    return {name: _read(name) for name in (*_wanted(tf32=False), *_RECORDED)}


def read_fp32_switches() -> dict[str, Value]:
    """Return the switches alone that say what float32 is multiplied in: fewer, and quickly read."""
    names = [f"{part}.fp32_precision" for part in (*_ON_CUDA, *_ON_CPU)] if has_fp32_precision() else _OLD
    return {name: _read(name) for name in names}


@contextlib.contextmanager
def ieee() -> Iterator[None]:
    """Compute in real FP32 inside the block, whatever precision the run trains in."""
    before = read_switches()
    set_switches(tf32=False)
    try:
        yield
    finally:
        for name, value in before.items():
            _write(name, value)


def has_fp32_precision() -> bool:
    """Whether this torch has the new interface (2.9 and later)."""
    return hasattr(torch.backends, "fp32_precision")


def _wanted(*, tf32: bool) -> dict[str, Value]:
    """Return the wanted value of each switch that this torch has, parents first."""
    wanted: dict[str, Value] = {}
    if has_fp32_precision():
        for part in (*_PARENTS, *_ON_CPU):
            wanted[f"{part}.fp32_precision".lstrip(".")] = "ieee"
        wanted.update({f"{part}.fp32_precision": "tf32" if tf32 else "ieee" for part in _ON_CUDA})
    else:
        wanted[_MATMUL] = "high" if tf32 else "highest"
        wanted.update(dict.fromkeys(_OLD, tf32))
    wanted.update({name: False for name in (*_SUMS, _ATTENTION) if _is_there(name)})
    return wanted


def _is_there(name: str) -> bool:
    part, _, attribute = name.rpartition(".")
    try:
        return hasattr(_find(part), attribute)
    except AssertionError:  # which torch 2.1 and before raise of a switch that they have not
        return False


def _read(name: str) -> Value:
    part, _, attribute = name.rpartition(".")
    found: Any
    if name == _MATMUL:
        found = torch.get_float32_matmul_precision()
    elif name == _ATTENTION:
        found = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()  # type: ignore[no-untyped-call, unused-ignore]
    else:
        found = getattr(_find(part), attribute)
    return found if isinstance(found, bool) else str(found)


def _write(name: str, value: Value) -> None:
    part, _, attribute = name.rpartition(".")
    if name == _MATMUL:
        torch.set_float32_matmul_precision(str(value))
    elif name == _ATTENTION:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(bool(value))  # type: ignore[no-untyped-call, unused-ignore]
    else:
        setattr(_find(part), attribute, value)


def _find(name: str) -> Any:  # noqa: ANN401 - a module or what torch puts in its place
    found: Any = torch.backends
    for part in name.split(".") if name else ():
        found = getattr(found, part)
    return found
