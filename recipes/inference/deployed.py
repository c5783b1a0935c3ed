"""A network in ONNX Runtime: exported, quantised, run, and its arithmetic measured."""

from __future__ import annotations

import copy
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxscript  # noqa: F401 - torch exports with it: said at once where it is missing
import torch
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import nn

from hpcml_train.errors import RecipeError
from hpcml_train.precision import products

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
_CALIBRATION_BATCH = 50
_OF_INTEGERS = {"QLinearMatMul", "MatMulIntegerToFloat", "MatMulInteger", "QGemm", "QLinearConv", "ConvInteger"}

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


def open_session(model: str | bytes, provider: str, threads: int, *, optimised: str | None = None) -> Any:  # noqa: ANN401 - onnxruntime has no types
    """Return a session of ONNX Runtime; FP32 stays FP32 on a GPU. Its operators are written as *optimised*."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if optimised is not None:
        options.optimized_model_filepath = optimised
    settings = {"use_tf32": "0"} if provider == "cuda" else {}
    return onnxruntime.InferenceSession(model, options, providers=[(PROVIDERS[provider], settings)])


def measure_products(provider: str, threads: int, *, is_half: bool) -> tuple[dict[str, str], dict[str, float]]:
    """Return the formats that a product of matrices and a convolution show in such a session, and their errors."""
    dtype = np.float16 if is_half else np.float32

    def run(operator: str, data: Array, weights: Array) -> Array:
        with np.errstate(over="ignore"):  # beyond FP16's range is what is tried
            data, weights = (np.ascontiguousarray(part.astype(dtype)) for part in (data, weights))
        model = _one_product(operator, data, weights)
        (found,) = open_session(model, provider, threads).run(None, {"x": data})
        return found

    return products.measure({name: (product, _as_onnx(operator, run)) for name, operator, product in _products()})


def measure_int8(provider: str, threads: int) -> tuple[dict[str, str], dict[str, float]]:
    """Return the same of products that are quantised as the network is.

    The format is ``int8`` where the session has nothing but an operator of integers for the product: a provider may
    also take the integers apart and multiply in FP32.
    """
    formats: dict[str, str] = {}
    errors: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path, quantised, optimised = (Path(folder) / name for name in ("fp32.onnx", "int8.onnx", "optimised.onnx"))

        def run(operator: str, data: Array, weights: Array) -> Array:
            data, weights = (np.ascontiguousarray(part.astype(np.float32)) for part in (data, weights))
            path.write_bytes(_one_product(operator, data, weights))
            quantise(path, quantised, data)
            session = open_session(str(quantised), provider, threads, optimised=str(optimised))
            (found,) = session.run(None, {"x": data})
            return found

        for name, operator, product in _products():
            found = _as_onnx(operator, run)(product.data, product.weights).astype(np.float64)
            operators = {node.op_type for node in onnx.load(optimised).graph.node}
            formats[name] = "int8" if operators & _OF_INTEGERS and operator not in operators else "fp32"
            errors[name] = float(np.linalg.norm(found - product.exact) / np.linalg.norm(product.exact))
    return formats, errors


def _products() -> list[tuple[str, str, products.Product]]:
    return [("matmul", "MatMul", products.matmul()), ("conv", "Conv", products.conv())]


def _as_onnx(operator: str, run: Callable[[str, Array, Array], Array]) -> products.Compute:
    """Return what multiplies the probe's arrays by *run*; ONNX has pictures in NCHW."""
    if operator == "MatMul":
        return lambda data, weights: run(operator, data, weights)
    return lambda data, weights: run(operator, data.transpose(0, 3, 1, 2), weights.transpose(3, 2, 0, 1)).transpose(
        0, 2, 3, 1
    )


def _one_product(operator: str, data: Array, weights: Array) -> bytes:
    kind = helper.np_dtype_to_tensor_dtype(data.dtype)
    attributes = {"pads": [1, 1, 1, 1]} if operator == "Conv" else {}
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "weights"], ["y"], **attributes)],
        "product",
        [helper.make_tensor_value_info("x", kind, ["batch", *data.shape[1:]])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())
