"""Traces of programs on a GPU, as torch 2.11 wrote them on an H200, less what is of no product.

`h200_lstm` is a step of pytorch/examples' mnist_rnn; `h200_resnet18_bf16` one of timm's train.py with resnet18,
--amp, --amp-dtype bfloat16, --channels-last.
"""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hpcml_train.torch import traces
from hpcml_train.torch.float32 import Leave, Probed, resolve
from hpcml_train.torch.traces import FLOAT32_ON_GPU, Found

pytestmark = pytest.mark.torch
RECORDED = Path(__file__).with_name("recorded")


def recorded(name: str, folder: Path) -> Found:
    path = folder / f"{name}.json"
    path.write_bytes(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))
    return traces.read_trace(str(path))


def test_recurrent_layers_of_cudnn_are_told_from_products_of_matrices(tmp_path: Path) -> None:
    found = recorded("h200_lstm", tmp_path)

    assert {one.format for one in found.products} == {FLOAT32_ON_GPU}
    assert Counter((one.kind, one.phase) for one in found.products) == {
        ("rnn", "forward"): 1,
        ("rnn", "backward"): 1,
        ("linear", "forward"): 2,
        ("linear", "backward"): 4,
    }
    # 28 rows of 28 pixels, 64 pictures, four gates of 64 units
    (forward,) = (one.flops for one in found.products if one.kind == "rnn" and one.phase == "forward")
    assert forward == 2 * 28 * 64 * (4 * 64) * (28 + 64)


def test_an_lstm_with_leave_for_tf32_is_not_called_fp32_because_a_linear_layer_is(tmp_path: Path) -> None:
    found, leave = recorded("h200_lstm", tmp_path), Leave(None)
    leave.on_gpu, leave.on_cpu = {"conv", "rnn"}, set()  # as PyTorch is by default: cuDNN has leave, and cuBLAS not

    products, unknown = resolve(found, leave, Probed())

    assert {(one.kind, one.format) for one in products} == {("linear", "fp32"), ("rnn", "tf32 allowed")}
    assert not unknown
    leave.on_gpu = set()
    assert {one.format for one in resolve(found, leave, Probed())[0]} == {"fp32"}


def test_convolutions_of_cudnn_are_seen_once_each(tmp_path: Path) -> None:
    found = recorded("h200_resnet18_bf16", tmp_path)

    assert {one.format for one in found.products} == {"bf16"}
    assert len([one for one in found.products if one.kind == "conv" and one.phase == "forward"]) == 20
