"""Torch's switches for the arithmetic of FP32 tensors: all set explicitly, since its defaults differ between parts.

Fresh out of the box an "FP32" network on an Ampere GPU computes its convolutions in TF32 (cudnn's default) and its
matrix products in FP32.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Mapping

import torch

# The CPU's are never set to tf32: it has no such units, and on other hardware than measured a switch might do anything.
_ON_CUDA = ("cuda.matmul", "cudnn.conv", "cudnn.rnn")
_ON_CPU = ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
_OLD = ("cuda.matmul", "cudnn")


def set_switches(*, tf32: bool) -> Mapping[str, str]:
    """Let FP32 products be computed in TF32 on GPUs, or not; return every switch and what it says now.

    Uses the one interface that this torch has for it: mixing the new with the old raises in torch 2.9 and later.
    """
    if has_fp32_precision():
        wanted = dict.fromkeys(_ON_CUDA, "tf32" if tf32 else "ieee")
        wanted.update(dict.fromkeys(_ON_CPU, "ieee"))
        for name, value in wanted.items():
            _find(name).fp32_precision = value
    else:
        for name in _OLD:
            _find(name).allow_tf32 = tf32
    return read_switches()


def read_switches() -> Dict[str, str]:
    """Return every switch and what it says."""
    if has_fp32_precision():
        return {f"{name}.fp32_precision": str(_find(name).fp32_precision) for name in (*_ON_CUDA, *_ON_CPU)}
    return {f"{name}.allow_tf32": str(_find(name).allow_tf32) for name in _OLD}


@contextlib.contextmanager
def ieee() -> Iterator[None]:
    """Compute in real FP32 inside the block, whatever the run trains in."""
    before = read_switches()
    set_switches(tf32=False)
    try:
        yield
    finally:
        for name, value in before.items():
            part, _, attribute = name.rpartition(".")
            setattr(_find(part), attribute, value if attribute == "fp32_precision" else value == "True")


def has_fp32_precision() -> bool:
    """Say whether this torch has the new interface (2.9 and later)."""
    return hasattr(torch.backends, "fp32_precision")


def _find(name: str) -> Any:  # noqa: ANN401 - a module or what torch puts in its place
    found: Any = torch.backends
    for part in name.split("."):
        found = getattr(found, part)
    return found
