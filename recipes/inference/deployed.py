"""A network in ONNX Runtime: exported, quantised, run, and its arithmetic measured."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import onnxscript  # noqa: F401 - torch exports with it: said at once where it is missing
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import nn

from hpcml_train.errors import RecipeError
from hpcml_train.precision import products

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
_CALIBRATION_BATCH = 50

Array = Any  # numpy.ndarray, whose type parameters differ between the versions of NumPy


def check_provider(name: str) -> None:
    """Raise `RecipeError` where ONNX Runtime was built without the provider *name*."""
    available = onnxruntime.get_available_providers()
    if PROVIDERS[name] not in available:
        able = " or ".join(known for known, full in PROVIDERS.items() if full in available)
        raise RecipeError(
            f"model.options.provider={name}: the ONNX Runtime {onnxruntime.__version__} here has no {PROVIDERS[name]}: "
            f"choose {able}, or install one that has it"
        )


def export(model: nn.Module, example: torch.Tensor, path: Path, *, is_half: bool) -> None:
    """Write *model* as the ONNX file *path*, for batches of any size; *is_half*: weights and inputs in FP16."""
    exported = copy.deepcopy(model).half() if is_half else model
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it remarks that torchvision is missing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns of its own parts
        torch.onnx.export(
            exported,
            (example.half() if is_half else example,),
            str(path),
            input_names=["x"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=1 << 20)},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def quantise(source: Path, path: Path, images: Array) -> None:
    """Write *source* with weights and activations in INT8 as *path*; *images* calibrate the ranges (static QDQ)."""

    class Reader(CalibrationDataReader):  # type: ignore[misc] # it has no types
        def __init__(self) -> None:
            self._parts: Iterator[Array] = iter(np.array_split(images, max(1, len(images) // _CALIBRATION_BATCH)))

        def get_next(self) -> dict[str, Array] | None:
            part = next(self._parts, None)
            return None if part is None else {"x": part}

    logging.getLogger().setLevel(logging.ERROR)  # it recommends a preparation that only larger networks gain from
    quantize_static(
        str(source),
        str(path),
        Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )


def open_session(model: str | bytes, provider: str, threads: int) -> Any:  # noqa: ANN401 - onnxruntime has no types
    """Return a session of ONNX Runtime; FP32 stays FP32 on a GPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    settings = {"use_tf32": "0"} if provider == "cuda" else {}
    return onnxruntime.InferenceSession(model, options, providers=[(PROVIDERS[provider], settings)])


def measure_products(provider: str, threads: int, *, is_half: bool) -> tuple[dict[str, str], dict[str, float]]:
    """Return the formats that a product of matrices and a convolution show in such a session, and their errors."""
    dtype = np.float16 if is_half else np.float32

    def run(operator: str, data: Array, weights: Array, **attributes: object) -> Array:
        kind = TensorProto.FLOAT16 if is_half else TensorProto.FLOAT
        with np.errstate(over="ignore"):  # beyond FP16's range is what is tried
            data, weights = (np.ascontiguousarray(part.astype(dtype)) for part in (data, weights))
        graph = helper.make_graph(
            [helper.make_node(operator, ["data", "weights"], ["y"], **attributes)],
            "product",
            [helper.make_tensor_value_info("data", kind, data.shape)],
            [helper.make_tensor_value_info("y", kind, None)],
            [numpy_helper.from_array(weights, "weights")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        (found,) = open_session(model.SerializeToString(), provider, threads).run(None, {"data": data})
        return found

    def convolve(data: Array, weights: Array) -> Array:
        found = run("Conv", data.transpose(0, 3, 1, 2), weights.transpose(3, 2, 0, 1), pads=[1, 1, 1, 1])
        return found.transpose(0, 2, 3, 1)

    return products.measure(
        {
            "matmul": (products.matmul(), lambda data, weights: run("MatMul", data, weights)),
            "conv": (products.conv(), convolve),
        }
    )
