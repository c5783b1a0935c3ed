"""A precision as TensorFlow's switches: set and described, not measured, since hpcml's recipes use torch."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple

_POLICIES = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "amp_fp16": "mixed_float16",  # Keras wraps the optimiser in a LossScaleOptimizer by itself
    "amp_bf16": "mixed_bfloat16",
    "bf16": "bfloat16",
    "fp16": "float16",
}


class TensorFlowPrecision(NamedTuple):
    """What was set."""

    precision: str
    policy: str  # of Keras
    tf32: bool  # whether FP32 products may be computed in TF32; TensorFlow's own default is that they may


def apply(precision: str, *, numerics: str) -> TensorFlowPrecision:
    """Set TensorFlow's and Keras's switches; call it before a model is built."""
    if precision not in _POLICIES:
        raise ValueError(f"precision={precision!r} is refused in TensorFlow: choose one of {', '.join(_POLICIES)}")
    if numerics == "emulated":
        raise ValueError("numerics=emulated is refused in TensorFlow: hpcml emulates in torch alone")
    import tensorflow as tf  # type: ignore[import-untyped, import-not-found, unused-ignore]

    applied = TensorFlowPrecision(precision=precision, policy=_POLICIES[precision], tf32=precision == "tf32")
    tf.config.experimental.enable_tensor_float_32_execution(applied.tf32)
    tf.keras.mixed_precision.set_global_policy(applied.policy)
    return applied


def describe_framework(applied: TensorFlowPrecision) -> Dict[str, Any]:
    """Return the details of the event ``framework``."""
    import tensorflow as tf  # type: ignore[import-untyped, import-not-found, unused-ignore]

    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    return {
        "framework": "tensorflow",
        "tensorflow": tf.__version__,
        "device": "cuda" if has_gpu else "cpu",
        "policy": applied.policy,
        "tf32_execution": tf.config.experimental.tensor_float_32_execution_enabled(),
    }
