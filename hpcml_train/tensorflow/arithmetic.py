"""The arithmetic of one TensorFlow training: TF32, Keras' dtype policy and loss scaling behind one interface.

arithmetic = run.apply_precision("tensorflow")                # before the first layer is made
with arithmetic.context():
    model = build_model()
    optimizer = arithmetic.optimizer(keras.optimizers.Adam(epsilon=arithmetic.optimizer_eps()))
    model.compile(optimizer, loss, auto_scale_loss=False)     # the optimiser scales already, where it must
    model.fit(x, y)
run.metrics(arithmetic.scaling(optimizer, steps))
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from hpcml_client.formats import check_native
from hpcml_client.precisions import OWN, PRECISIONS
from hpcml_train.errors import NoGpuError

_FACTORS = ("beta_1", "beta_2", "rho", "momentum")  # of what was before, in Keras' optimisers


class Device:
    """A device by TensorFlow's name and by its kind (cpu or cuda)."""

    def __init__(self, name: str, kind: str) -> None:
        self.name = name  # CPU:0, GPU:1
        self.type = kind  # cpu, cuda


def choose_device(kind: str | None, local_rank: int) -> Device:
    """Return the planned device (*kind* cpu or cuda) of this process; without a plan a GPU if there is one."""
    gpus = tf.config.list_physical_devices("GPU") if kind in (None, "cuda") else []
    if gpus:
        # a scheduler may bind one GPU to each process, which then is number 0 for everyone
        return Device(f"GPU:{local_rank % len(gpus)}", "cuda")
    if kind == "cuda":
        raise NoGpuError("TensorFlow", tf.__version__)
    return Device("CPU:0", "cpu")


class Arithmetic:
    """A precision in TensorFlow. Creating one sets its and Keras' switches, explicitly for every precision.

    ``own`` asks for none: nothing is set, and Keras' policy stays as the program has it.
    Needs Keras 3, which TensorFlow has since 2.16.
    """

    def __init__(
        self,
        precision: str,
        *,
        numerics: str = "auto",
        device: Device | None = None,
        loss_scaling: bool = True,
    ) -> None:
        self.device = device or Device("CPU:0", "cpu")
        check_native("tensorflow", precision, numerics, self.device.type)
        if int(tf.keras.__version__.partition(".")[0]) < 3:
            raise RuntimeError(f"Keras {tf.keras.__version__} is too old: hpcml_client knows Keras 3 (TensorFlow 2.16)")
        self.precision = precision
        self.numerics = "native"
        if precision == OWN:
            self.policy = str(tf.keras.mixed_precision.dtype_policy().name)
        else:
            row = PRECISIONS[precision]
            self.policy = f"mixed_{row.autocast}" if row.autocast else row.parameters
        self.parameter_dtype = "float32" if self.policy.startswith("mixed_") else self.policy
        self.loss_scaling = loss_scaling and precision == "amp_fp16"
        self.switches: Mapping[str, object] = (
            read_switches() if precision == OWN else _set_switches(self.policy, tf32=precision == "tf32")
        )

    def optimizer_eps(self, default: float = 1e-7) -> float:
        """Return Adam's eps: Keras' default, but 1e-4 for FP16 parameters, where 1e-7 is hardly a number."""
        return max(default, 1e-4) if self.parameter_dtype == "float16" else default

    def optimizer(self, optimizer: Any) -> Any:  # noqa: ANN401 - Keras has no types
        """Return *optimizer*, within one that scales the loss where this precision does.

        Raises `ValueError` where one of its factors is 1 in the type of the parameters, in which Keras computes: Adam's
        usual beta_2=0.999 is in BF16, and every step would be zero.
        """
        for name in _FACTORS:
            factor = getattr(optimizer, name, None)
            if isinstance(factor, float) and factor < 1.0 and float(tf.cast(factor, self.parameter_dtype)) == 1.0:
                raise ValueError(f"{name}={factor} is 1 in {self.parameter_dtype}, and no step would change anything")
        return tf.keras.mixed_precision.LossScaleOptimizer(optimizer) if self.loss_scaling else optimizer

    def cast(self, x: Any) -> Any:  # noqa: ANN401 - whatever TensorFlow takes for a tensor
        """Return floating point *x* in the type that layers compute in; for ``own``, and anything else, as it is."""
        x = tf.convert_to_tensor(x)
        if self.precision == OWN:
            return x
        return tf.cast(x, tf.keras.mixed_precision.dtype_policy().compute_dtype) if x.dtype.is_floating else x

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Place what the block makes and computes on this arithmetic's device."""
        found: contextlib.AbstractContextManager[Any] = tf.device(self.device.name)
        return found

    def scaling(self, optimizer: Any, steps: int) -> Mapping[str, float]:  # noqa: ANN401 - Keras has no types
        """Return the metrics ``loss_scale`` and ``skipped_steps``, after *steps* in all; nothing where none is scaled.

        *optimizer* is what `optimizer` returned, after its first step. Keras does not count the steps that it skips:
        they are those in which its inner optimiser did not get on.
        """
        if not self.loss_scaling:
            return {}
        skipped = steps - int(optimizer.inner_optimizer.iterations)
        return {"loss_scale": float(optimizer.dynamic_scale), "skipped_steps": float(skipped)}


def read_switches() -> dict[str, object]:
    """Return every switch with its value."""
    options = tf.config.optimizer.get_experimental_options()
    return {
        "tensor_float_32_execution": bool(tf.config.experimental.tensor_float_32_execution_enabled()),
        "global_policy": str(tf.keras.mixed_precision.dtype_policy().name),
        "floatx": str(tf.keras.backend.floatx()),
        "auto_mixed_precision": bool(options.get("auto_mixed_precision", False)),
    }


def _set_switches(policy: str, *, tf32: bool) -> Mapping[str, object]:
    tf.config.experimental.enable_tensor_float_32_execution(tf32)  # TensorFlow's own default is on
    tf.keras.mixed_precision.set_dtype_policy(policy)
    # Losses, metrics and inputs have this type, whatever the policy of the layers is.
    tf.keras.backend.set_floatx("float64" if policy == "float64" else "float32")
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": False})  # the graph rewritten, unasked
    return read_switches()
