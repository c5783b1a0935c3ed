"""`precision=own`: no switch is set and nothing is cast, and the probe says what is there."""

from __future__ import annotations

import importlib.util

import pytest

from hpcml_client.client import Client
from hpcml_train.precision.proof import Asked, apply
from tests.train.framework_scripts import run_script


def _asked(precision: str = "own") -> Asked:
    return Asked(precision, "native", "cpu", 0, "rna", True)  # noqa: FBT003 - loss scaling


def test_numpy_computes_in_the_type_that_it_is_given() -> None:
    np = pytest.importorskip("numpy")
    arithmetic, _, proof = apply("numpy", _asked())

    assert (proof["requested"], proof["effective"], proof["mismatch"]) == ("own", "fp64", False)
    assert arithmetic.cast(np.zeros(2, np.float16)).dtype == np.float16


@pytest.mark.torch
@pytest.mark.usefixtures("torch_as_found")
@pytest.mark.parametrize(("dtype", "effective"), [("float32", "fp32"), ("float64", "fp64")])
def test_torch_keeps_its_switches_and_the_programs_types(dtype: str, effective: str) -> None:
    torch = pytest.importorskip("torch")
    from hpcml_train.torch import switches  # noqa: PLC0415 - needs torch

    torch.backends.cudnn.conv.fp32_precision = "tf32"
    before = switches.read_switches()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        arithmetic, _, proof = apply("torch", _asked())
        model = arithmetic.prepare(torch.nn.Linear(2, 2).half())
        with arithmetic.context():
            assert not torch.is_autocast_enabled("cpu")
        with arithmetic.evaluation(model) as examined:
            assert examined is model
            assert switches.read_switches() == before
    finally:
        torch.set_default_dtype(torch.float32)

    assert (proof["effective"], proof["mismatch"], proof["flipped"]) == (effective, False, {})
    assert switches.read_switches() == before
    assert next(model.parameters()).dtype is torch.float16
    assert arithmetic.cast(torch.zeros(1, dtype=torch.bfloat16)).dtype is torch.bfloat16
    assert not arithmetic.loss_scaling


IN_JAX = """
import json
import jax
from hpcml_train.jax.arithmetic import read_switches
from hpcml_train.precision.proof import Asked, apply
before = read_switches()
arithmetic, _, proof = apply("jax", Asked("own", "native", "cpu", 0, "rna", True))
told = {name: proof[name] for name in ("requested", "mismatch", "flipped")}
left = [read_switches() == before]
with arithmetic.context(), arithmetic.evaluation(jax.numpy.zeros(1, "float16")) as examined:
    told["examined"] = str(examined.dtype)
    left.append(read_switches() == before)
print(json.dumps({**told, "is_left": left}))
"""


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_jax_keeps_its_switches() -> None:
    told = run_script(IN_JAX, "jax")

    assert told == {
        "requested": "own",
        "mismatch": False,
        "flipped": {},
        "examined": "float16",
        "is_left": [True, True],
    }


IN_TENSORFLOW = """
import json
import numpy as np, tensorflow as tf
from hpcml_train.precision.proof import Asked, apply
from hpcml_train.tensorflow.arithmetic import read_switches
told = []
for policy in ("float32", "mixed_bfloat16", "float64"):
    tf.keras.mixed_precision.set_dtype_policy(policy)
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    before = read_switches()
    arithmetic, _, proof = apply("tensorflow", Asked("own", "native", "cpu", 0, "rna", True))
    with arithmetic.context():
        adam = tf.keras.optimizers.Adam()
        told.append({
            "policy": policy,
            "effective": proof["effective"],
            "contradicted": [proof["mismatch"], proof["flipped"]],
            "is_left": read_switches() == before,
            "layer": tf.keras.layers.Dense(1).compute_dtype,
            "cast": [arithmetic.cast(np.zeros(1, name)).dtype.name for name in ("float64", "float16", "int32")],
            "is_wrapped": arithmetic.optimizer(adam) is not adam,
            "scaling": dict(arithmetic.scaling(adam, 1)),
        })
print(json.dumps({"told": told}))
"""


@pytest.mark.nightly("frameworks")
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_tensorflow_keeps_its_switches_and_kerass_policy() -> None:
    told = run_script(IN_TENSORFLOW, "tensorflow")["told"]

    assert [(each.pop("policy"), each.pop("effective")) for each in told] == [
        ("float32", "fp32"),
        ("mixed_bfloat16", "amp_bf16"),
        ("float64", "fp64"),
    ]
    assert [each.pop("layer") for each in told] == ["float32", "bfloat16", "float64"]
    left = {"contradicted": [False, {}], "is_left": True, "is_wrapped": False, "scaling": {}}
    assert told == [{**left, "cast": ["float64", "float16", "int32"]}] * 3


def test_outside_of_a_run_a_program_still_gets_fp32() -> None:
    assert Client().precision == "fp32"
    assert Client(precision="own").precision == "own"
