"""A network as it is deployed: how fast it answers, and whether it answers as the one that was trained."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import network
import numpy as np
import onnxruntime
import torch
from deployed import PROVIDERS, Array, check_provider, export, measure_int8, measure_products, open_session, quantise
from torch import nn

from hpcml_client import Checkpoints, Client
from hpcml_client.formats import name_precision
from hpcml_train.errors import RecipeError
from hpcml_train.task import Task

_CALIBRATION = 200  # pictures of the training set
_WARM_UP = 20  # answers that are not timed: buffers and caches are made in the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of recipe.toml; the defaults are those of conf/model/inference.yaml."""

    provider: str = "cpu"
    batches: Sequence[int] = field(default_factory=lambda: [1, 64])
    repeats: int = 200


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    """Measure as *task* says; it is over so soon that nothing is saved on the way."""
    del checkpoints
    options = Options(**task.options)
    task.choose("data", ("digits",))
    if run.precision not in ("fp32", "fp16", "int8"):
        raise RecipeError(f"precision={run.precision} is not in this recipe: choose fp32 or fp16 or int8")
    is_half = run.precision == "fp16"  # weights and inputs
    check_provider(options.provider)
    threads = int(os.environ.get("OMP_NUM_THREADS") or 0) or torch.get_num_threads()
    torch.set_num_threads(threads)
    _report_arithmetic(run, options, threads, is_half=is_half)
    training, validation = network.read(task)
    model = network.train(task, training)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(run.run_dir or scratch)
        path = _deploy(model, training[0], folder, run.precision)
        run.artifact(path, kind="onnx")
        session = open_session(str(path), options.provider, threads)
        values = _compare(model, validation, session, is_half=is_half)
        values["model_kb"] = path.stat().st_size / 1000
    # In FP16 a CPU computes in FP32 and rounds: right for the answers, and no speed of anything.
    if options.provider != "cpu" or not is_half:
        for batch in options.batches:
            values.update(_time(session, batch, options.repeats, is_half=is_half))
    run.metrics(values, 1)
    print(", ".join(f"{name} {value:.4g}" for name, value in values.items()), flush=True)
    return True


def _report_arithmetic(run: Client, options: Options, threads: int, *, is_half: bool) -> None:
    if run.precision == "int8":
        formats, errors = measure_int8(options.provider, threads)
        parameters = "int8" if "int8" in formats.values() else "float32"
    else:
        formats, errors = measure_products(options.provider, threads, is_half=is_half)
        parameters = "float16" if is_half else "float32"
    effective = name_precision(formats, parameters)
    device = "cpu" if options.provider == "cpu" else "cuda"
    run.event(
        "framework",
        framework="onnxruntime",
        onnxruntime=onnxruntime.__version__,
        torch=torch.__version__,
        provider=PROVIDERS[options.provider],
        device=device,
        threads=threads,
    )
    run.event(
        "precision",
        requested=run.precision,
        numerics="emulated" if is_half and options.provider == "cpu" else "native",
        products=formats,
        errors=errors,
        parameters=parameters,
        device=device,
        effective=effective,
        mismatch=effective != run.precision,
    )
    if effective != run.precision:
        raise RecipeError(f"precision={run.precision} was asked for, but {effective} was measured in ONNX Runtime")


def _deploy(model: nn.Module, images: torch.Tensor, folder: Path, precision: str) -> Path:
    is_half = precision == "fp16"
    path = folder / ("model-fp16.onnx" if is_half else "model-fp32.onnx")
    export(model, images[:2], path, is_half=is_half)
    if precision != "int8":
        return path
    quantised = folder / "model-int8.onnx"
    quantise(path, quantised, images[:_CALIBRATION].numpy())
    return quantised


def _compare(model: nn.Module, digits: network.Digits, session: Any, *, is_half: bool) -> dict[str, float]:  # noqa: ANN401
    """Return how well *session* tells the digits apart, and how far its answers are from the network's in torch."""
    images, numbers = digits
    with torch.no_grad():
        expected = model(images).numpy()
    logits = _answer(session, images.numpy(), is_half=is_half)
    found, labels = logits.argmax(axis=1), numbers.numpy()
    return {
        "val_accuracy": float((found == labels).mean()),
        "agreement": float((found == expected.argmax(axis=1)).mean()),
        "max_logit_error": float(np.abs(logits.astype(np.float64) - expected).max()),
    }


def _time(session: Any, batch: int, repeats: int, *, is_half: bool) -> Mapping[str, float]:  # noqa: ANN401
    """Return the latency of so many answers to *batch* pictures each, and the pictures answered in a second."""
    images = np.random.RandomState(0).uniform(size=(batch, 1, 8, 8)).astype(np.float32)
    taken = []
    for _ in range(_WARM_UP):
        _answer(session, images, is_half=is_half)
    for _ in range(repeats):
        began = time.perf_counter()
        _answer(session, images, is_half=is_half)
        taken.append(time.perf_counter() - began)
    return {
        f"latency_b{batch}_median_ms": float(np.median(taken)) * 1e3,
        f"latency_b{batch}_p99_ms": float(np.percentile(taken, 99)) * 1e3,
        f"throughput_b{batch}": batch * repeats / sum(taken),
    }


def _answer(session: Any, images: Array, *, is_half: bool) -> Array:  # noqa: ANN401
    (logits,) = session.run(None, {"x": images.astype(np.float16) if is_half else images})
    return logits
