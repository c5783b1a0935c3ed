"""Measuring TensorFlow's arithmetic: errors against FP64, of Keras' layers as a training uses them.

Each product is computed by a graph (``matmul``, ``conv``) and once more compiled by XLA (``matmul_xla``, ``conv_xla``),
which Keras' ``fit`` does by itself where it can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hpcml_train.precision import products as probe_products
from hpcml_train.tensorflow.arithmetic import Arithmetic, read_switches


def measure_precision(arithmetic: Arithmetic) -> dict[str, Any]:
    """Return the details of the event ``precision``: what was asked for, and the format that each product shows.

    Takes less than a second and draws no random numbers of TensorFlow's. What XLA cannot compile here is left out and
    named in ``not_probed``.
    """
    switches = read_switches()
    formats: dict[str, str] = {}
    errors: dict[str, float] = {}
    not_probed: dict[str, str] = {}
    parameters = ""
    with arithmetic.context():
        for name, make, product in (
            ("matmul", _dense, probe_products.matmul()),
            ("conv", _convolution, probe_products.conv()),
        ):
            layer = make()
            layer.build(product.data.shape)
            parameters = str(layer.kernel.dtype)
            for label, by_xla in ((name, False), (f"{name}_xla", True)):
                try:
                    compute = _compiled(layer, product.data.shape, by_xla=by_xla)
                    found = probe_products.measure({label: (product, compute)})
                except tf.errors.OpError as error:
                    if not by_xla:
                        raise
                    not_probed[label] = str(error).partition("\n")[0]
                    continue
                formats.update(found[0])
                errors.update(found[1])
    return {
        "requested": arithmetic.precision,
        "numerics": arithmetic.numerics,
        "products": formats,
        "errors": errors,
        "not_probed": not_probed,
        "parameters": parameters,
        "device": arithmetic.device.type,
        "loss_scaling": arithmetic.loss_scaling,
        "rounding": None,
        "switches": switches,
        "flipped": {name: value for name, value in switches.items() if value != arithmetic.switches.get(name)},
    }


def describe_framework(arithmetic: Arithmetic) -> dict[str, Any]:
    """Return the details of the event ``framework``: versions, device and whatever else results depend on."""
    built: dict[str, Any] = dict(tf.sysconfig.get_build_info())
    return {
        "framework": "tensorflow",
        "tensorflow": tf.__version__,
        "keras": tf.keras.__version__,
        "device": arithmetic.device.type,
        "gpu_model": _gpu_model(arithmetic),
        "cuda": built.get("cuda_version"),
        "cudnn": built.get("cudnn_version"),
        "threads": tf.config.threading.get_intra_op_parallelism_threads() or None,  # 0: TensorFlow chooses
    }


def _dense() -> Any:  # noqa: ANN401 - Keras has no types
    # Zeros, and names of their own: other layers would draw random numbers and change the names of the model's layers.
    return tf.keras.layers.Dense(256, use_bias=False, kernel_initializer="zeros", name="hpcml_probe_matmul")


def _convolution() -> Any:  # noqa: ANN401 - Keras has no types
    return tf.keras.layers.Conv2D(
        32, 3, padding="same", use_bias=False, kernel_initializer="zeros", name="hpcml_probe_conv"
    )


def _compiled(layer: Any, shape: tuple[int, ...], *, by_xla: bool) -> Callable[[Any, Any], Any]:  # noqa: ANN401
    compute = tf.function(layer, jit_compile=by_xla)
    graph = compute.get_concrete_function(tf.TensorSpec(shape, layer.compute_dtype))

    def product(data: Any, weights: Any) -> Any:  # noqa: ANN401 - NumPy's arrays
        layer.kernel.assign(tf.cast(weights, layer.kernel.dtype))
        return tf.cast(graph(tf.cast(data, layer.compute_dtype)), tf.float64).numpy()

    return product


def _gpu_model(arithmetic: Arithmetic) -> Any:  # noqa: ANN401 - text, or None where there is no GPU
    if arithmetic.device.type != "cuda":
        return None
    gpu = tf.config.list_physical_devices("GPU")[int(arithmetic.device.name.partition(":")[2])]
    return tf.config.experimental.get_device_details(gpu).get("device_name")
