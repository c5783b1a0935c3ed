from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from hpcml.runs.journal import Event, read_journal
from hpcml_client.formats import name_precision
from tests.train.framework_scripts import PROBES, run_script

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")

SCRIPT = (
    PROBES.format(framework="tensorflow")
    + """
import numpy as np, tensorflow as tf
# somebody flips a switch after ours
arithmetic = Arithmetic("fp32")
tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
tf.config.experimental.enable_tensor_float_32_execution(True)
told["flipped"] = measure_precision(arithmetic)
names = [tf.keras.layers.Dense(1).name, tf.keras.layers.Conv2D(1, 1).name]
told["names"] = names
# training, by the idiom of the module
x = np.random.RandomState(0).standard_normal((64, 8))
y = x @ np.arange(8.0)[:, None] / 8
def train(name, factor=1.0, steps=20):
    arithmetic = Arithmetic(name)
    with arithmetic.context():
        tf.keras.utils.set_random_seed(0)
        model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
        adam = tf.keras.optimizers.Adam(0.1, beta_2=0.99, epsilon=arithmetic.optimizer_eps())
        optimizer = arithmetic.optimizer(adam)
        def loss(y, p):
            return factor * tf.reduce_mean((tf.cast(y, "float32") - tf.cast(p, "float32")) ** 2)
        model.compile(optimizer, loss, auto_scale_loss=False)
        losses = [float(model.train_on_batch(x, y)) for _ in range(steps)]
    return {
        "losses": losses,
        "dtype": str(model.weights[0].dtype),
        "output": model(arithmetic.cast(x)).dtype.name,
        "scaling": dict(arithmetic.scaling(optimizer, steps)),
    }
told["trained"] = {name: train(name) for name in ("fp32", "fp64", "amp_fp16", "amp_bf16", "bf16")}
told["overflow"] = train("amp_fp16", factor=100.0)["scaling"]
try:
    Arithmetic("bf16").optimizer(tf.keras.optimizers.Adam())
except ValueError as error:
    told["idle"] = str(error)
told["eps"] = [Arithmetic(name).optimizer_eps() for name in ("fp16", "fp32")]
# what is announced by the run
import hpcml_client
with hpcml_client.connect() as run:
    run.apply_precision("tensorflow")
print(json.dumps(told))
"""
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def told(run_dir: Path) -> dict[str, Any]:
    return run_script(SCRIPT, "tensorflow", HPCML_RUN_DIR=str(run_dir), HPCML_PRECISION="amp_bf16")


def test_the_probe_names_what_tensorflow_computes_in(told: dict[str, Any]) -> None:
    named = {name: name_precision(proof["products"], proof["parameters"]) for name, proof in told["proofs"].items()}

    assert named == {
        "fp32": "fp32",
        "tf32": "fp32",  # no CPU has the units, and the probe finds it out
        "fp64": "fp64",
        "amp_fp16": "amp_fp16",
        "amp_bf16": "amp_bf16",
        "bf16": "bf16",
        "fp16": "fp16",
    }
    policies = {"fp64": "float64", "amp_fp16": "mixed_float16", "amp_bf16": "mixed_bfloat16"}
    policies |= {"bf16": "bfloat16", "fp16": "float16"}
    for name, proof in told["proofs"].items():
        assert (proof["requested"], proof["numerics"], proof["device"]) == (name, "native", "cpu")
        assert proof["loss_scaling"] is (name == "amp_fp16")
        assert set(proof["products"]) == set(proof["errors"]) == {"matmul", "conv", "matmul_xla", "conv_xla"}
        assert proof["switches"] == {
            "tensor_float_32_execution": name == "tf32",
            "global_policy": policies.get(name, "float32"),
            "floatx": "float64" if name == "fp64" else "float32",
            "auto_mixed_precision": False,
        }
        assert (proof["flipped"], proof["not_probed"]) == ({}, {})
    assert (told["framework"]["framework"], told["framework"]["device"]) == ("tensorflow", "cpu")


def test_what_somebody_flips_later_is_found(told: dict[str, Any]) -> None:
    proof = told["flipped"]

    assert name_precision(proof["products"], proof["parameters"]) == "amp_bf16"
    assert proof["flipped"] == {"tensor_float_32_execution": True, "global_policy": "mixed_bfloat16"}


def test_the_probe_leaves_the_names_of_the_models_layers_alone(told: dict[str, Any]) -> None:
    assert told["names"] == ["dense", "conv2d"]


def test_every_precision_trains_and_keeps_its_parameters_type(told: dict[str, Any]) -> None:
    dtypes = {"fp64": ("float64", "float64"), "amp_fp16": ("float32", "float16"), "amp_bf16": ("float32", "bfloat16")}
    dtypes |= {"bf16": ("bfloat16", "bfloat16")}
    for name, trained in told["trained"].items():
        assert trained["losses"][-1] < trained["losses"][0] / 2, name
        assert (trained["dtype"], trained["output"]) == dtypes.get(name, ("float32", "float32"))
        assert bool(trained["scaling"]) is (name == "amp_fp16")


def test_an_overflow_is_skipped_and_counted(told: dict[str, Any]) -> None:
    skipped = told["overflow"]["skipped_steps"]

    assert skipped >= 1
    assert told["overflow"]["loss_scale"] == 2.0**15 / 2**skipped  # Keras begins at 2**15, torch at 2**16


def test_an_optimiser_that_would_do_nothing_is_refused(told: dict[str, Any]) -> None:
    assert told["idle"] == "beta_2=0.999 is 1 in bfloat16, and no step would change anything"


def test_fp16_parameters_need_a_larger_eps(told: dict[str, Any]) -> None:
    assert told["eps"] == [1e-4, 1e-7]


def test_what_tensorflow_cannot_do_here_is_refused_with_a_reason(told: dict[str, Any]) -> None:
    tf32, fp8, emulated, unknown = told["refused"]
    assert tf32.startswith("precision=tf32 is refused on a CPU with tensorflow: it has no TF32 units")
    assert fp8.startswith("precision='fp8_e4m3' is not there with tensorflow: choose one of own, fp64, fp32")
    assert emulated == "numerics='emulated' is refused with tensorflow: hpcml_client emulates in torch only"
    assert unknown.startswith("precision='int8' is not there with tensorflow")
    assert re.match(r"the plan says cuda, but TensorFlow \d\S+ sees no GPU: is it built for CUDA, ", told["no_gpu"])


@pytest.mark.usefixtures("told")
def test_one_call_reports_the_framework_and_the_proof(run_dir: Path) -> None:
    (path,) = (run_dir / "journal").iterdir()
    events = {event.name: event.details for event in read_journal(path).records if isinstance(event, Event)}
    assert events["framework"]["framework"] == "tensorflow"
    assert (events["precision"]["effective"], events["precision"]["mismatch"]) == ("amp_bf16", False)
