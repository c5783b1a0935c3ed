"""A precision set in a framework, measured there, and judged: whether it is the one that was asked for."""

from __future__ import annotations

import importlib.util
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from hpcml_client.precision_shown import name_precision

FRAMEWORKS = ("torch", "tensorflow", "jax", "numpy")
MISMATCH_STATUS = 2  # what a program ends with that cannot be what it was asked to be


class Asked(NamedTuple):
    """What a program was asked for, as far as its arithmetic is concerned."""

    precision: str
    numerics: str
    device: Optional[str]  # cpu, cuda; None: nobody planned one
    local_rank: int
    rounding: str
    loss_scaling: bool


class PrecisionMismatchError(SystemExit):
    """The device computes in another precision than was asked for; it ends the program with status 2."""

    def __init__(self, words: str) -> None:
        super().__init__(MISMATCH_STATUS)
        self.words = words


def apply(framework: str, asked: Asked) -> Tuple[Any, Dict[str, Any], Dict[str, Any]]:
    """Return the framework's arithmetic with all switches set, and the details of two events.

    The first are those of ``framework``; the second those of ``precision``, with what was measured as ``effective`` and
    whether that is a ``mismatch``.
    """
    if framework not in FRAMEWORKS:
        raise ValueError(f"framework={framework!r}: apply_precision knows {', '.join(FRAMEWORKS)}")
    if importlib.util.find_spec(framework) is None:
        raise ModuleNotFoundError(f"apply_precision needs {framework}, which is not installed here", name=framework)
    arithmetic, facts, proof = _ADAPTORS[framework](asked)
    effective = name_precision(proof["products"], proof["parameters"])
    return arithmetic, facts, {**proof, "effective": effective, "mismatch": effective != asked.precision}


def mismatch_words(proof: Mapping[str, Any]) -> str:
    """Return what there is to say about a *proof* that is a mismatch."""
    flipped = ", ".join(f"{name}={value}" for name, value in proof["flipped"].items())
    because = f"; changed by somebody: {flipped}" if flipped else ""
    return (
        f"precision={proof['requested']} was asked for, but {proof['effective']} was measured on "
        f"{proof['device']}{because}"
    )


def _apply_torch(asked: Asked) -> Tuple[Any, Dict[str, Any], Dict[str, Any]]:
    from hpcml_client import torch_arithmetic, torch_probe

    arithmetic = torch_arithmetic.Arithmetic(
        asked.precision,
        numerics=asked.numerics,
        device=torch_arithmetic.choose_device(asked.device, asked.local_rank),
        rounding=asked.rounding,
        loss_scaling=asked.loss_scaling,
    )
    return arithmetic, torch_probe.describe_framework(arithmetic), torch_probe.measure_precision(arithmetic)


def _apply_tensorflow(asked: Asked) -> Tuple[Any, Dict[str, Any], Dict[str, Any]]:
    from hpcml_client import tensorflow_arithmetic, tensorflow_probe

    arithmetic = tensorflow_arithmetic.Arithmetic(
        asked.precision,
        numerics=asked.numerics,
        device=tensorflow_arithmetic.choose_device(asked.device, asked.local_rank),
        loss_scaling=asked.loss_scaling,
    )
    return arithmetic, tensorflow_probe.describe_framework(arithmetic), tensorflow_probe.measure_precision(arithmetic)


def _apply_jax(asked: Asked) -> Tuple[Any, Dict[str, Any], Dict[str, Any]]:
    from hpcml_client import jax_arithmetic, jax_probe

    arithmetic = jax_arithmetic.Arithmetic(
        asked.precision,
        numerics=asked.numerics,
        device=jax_arithmetic.choose_device(asked.device, asked.local_rank),
        loss_scaling=asked.loss_scaling,
    )
    return arithmetic, jax_probe.describe_framework(arithmetic), jax_probe.measure_precision(arithmetic)


def _apply_numpy(asked: Asked) -> Tuple[Any, Dict[str, Any], Dict[str, Any]]:
    from hpcml_client import numpy_arithmetic

    arithmetic = numpy_arithmetic.Arithmetic(asked.precision, numerics=asked.numerics, device=asked.device)
    return arithmetic, numpy_arithmetic.describe_framework(), numpy_arithmetic.measure_precision(arithmetic)


_ADAPTORS = {"torch": _apply_torch, "tensorflow": _apply_tensorflow, "jax": _apply_jax, "numpy": _apply_numpy}
