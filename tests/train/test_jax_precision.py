from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from hpcml.runs.journal import Event, read_journal
from hpcml_client.formats import name_precision
from tests.train.framework_scripts import PROBES, run_script

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")

SCRIPT = (
    PROBES.format(framework="jax")
    + """
import jax, numpy as np
# somebody flips a switch after ours
arithmetic = Arithmetic("fp64")
jax.config.update("jax_enable_x64", False)
told["flipped_x64"] = measure_precision(arithmetic)
arithmetic = Arithmetic("fp32")
jax.config.update("jax_default_matmul_precision", "bfloat16")
with arithmetic.context():
    told["inside"] = str(jax.config.jax_default_matmul_precision)
told["flipped_matmul"] = measure_precision(arithmetic)["flipped"]
# training, by the idiom of the module
x = np.random.RandomState(0).standard_normal((64, 8))
y = x @ np.arange(8.0)
def train(name, factor=1.0, steps=40, **more):
    arithmetic = Arithmetic(name, **more)
    gradients_of = arithmetic.value_and_grad(lambda w, x, y: ((x @ w - y) ** 2).mean() * factor)
    @jax.jit
    def step(w, scale, x, y):
        loss, gradients, finite, scale = gradients_of(w, scale, x, y)
        return arithmetic.keep(finite, w - 0.1 * gradients / factor, w), scale, loss
    losses, told = [], []
    with arithmetic.context():
        w, scale = arithmetic.prepare(np.zeros(8)), arithmetic.loss_scale()
        for _ in range(steps):
            w, scale, loss = step(w, scale, x, y)
            losses.append(float(loss)); told.append(dict(arithmetic.scaling(scale)))
    finite = bool(np.isfinite(np.asarray(w, "float32")).all())
    return {"losses": losses, "dtype": str(w.dtype), "scaling": told, "finite": finite}
told["trained"] = {name: train(name) for name in ("fp32", "fp64", "amp_fp16", "amp_bf16", "bf16", "fp16")}
told["overflow"] = train("amp_fp16", factor=30.0)
told["unscaled"] = train("amp_fp16", loss_scaling=False)["scaling"][-1]
# what is announced by the run
import hpcml_client
with hpcml_client.connect() as run:
    run.apply_precision("jax")
print(json.dumps(told))
"""
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def told(run_dir: Path) -> dict[str, Any]:
    return run_script(SCRIPT, "jax", HPCML_RUN_DIR=str(run_dir), HPCML_PRECISION="bf16")


def test_the_probe_names_what_jax_computes_in(told: dict[str, Any]) -> None:
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
    for name, proof in told["proofs"].items():
        assert (proof["requested"], proof["numerics"], proof["device"]) == (name, "native", "cpu")
        assert proof["loss_scaling"] is (name == "amp_fp16")
        assert set(proof["products"]) == set(proof["errors"]) == {"matmul", "conv"}
        assert proof["switches"] == {
            "jax_enable_x64": name == "fp64",
            "jax_default_matmul_precision": "tensorfloat32" if name == "tf32" else "float32",
            "XLA_FLAGS": None,
        }
        assert proof["flipped"] == {}
    assert (told["framework"]["framework"], told["framework"]["device"]) == ("jax", "cpu")


def test_what_somebody_flips_later_is_found_or_does_no_harm(told: dict[str, Any]) -> None:
    flipped = told["flipped_x64"]
    assert name_precision(flipped["products"], flipped["parameters"]) == "fp32"
    assert flipped["flipped"] == {"jax_enable_x64": False}
    assert told["flipped_matmul"] == {"jax_default_matmul_precision": "bfloat16"}
    assert told["inside"] == "float32"  # what trains inside the context is safe from it


def test_every_precision_trains_and_keeps_its_parameters_type(told: dict[str, Any]) -> None:
    dtypes = {"fp64": "float64", "bf16": "bfloat16", "fp16": "float16"}
    for name, trained in told["trained"].items():
        assert trained["losses"][-1] < trained["losses"][0] / 20, name
        assert trained["dtype"] == dtypes.get(name, "float32")
        assert bool(trained["scaling"][-1]) is (name == "amp_fp16")


def test_an_overflow_is_skipped_and_counted_inside_compiled_steps(told: dict[str, Any]) -> None:
    scaling, overflow = told["overflow"]["scaling"], told["overflow"]
    skipped = scaling[-1]["skipped_steps"]
    assert skipped >= 1
    assert scaling[0]["overflowed_gradients"] > 0
    assert scaling[-1]["overflowed_gradients"] == 0
    assert scaling[-1]["loss_scale"] == 65536.0 / 2**skipped
    assert overflow["finite"]
    assert overflow["losses"][int(skipped) - 1] == overflow["losses"][0]  # a skipped step changes nothing
    assert told["unscaled"] == {}


def test_what_jax_cannot_do_here_is_refused_with_a_reason(told: dict[str, Any]) -> None:
    tf32, fp8, emulated, unknown = told["refused"]
    assert tf32.startswith("precision=tf32 is refused on a CPU with jax: it has no TF32 units")
    assert fp8.startswith("precision='fp8_e4m3' is not there with jax: choose one of own, fp64, fp32")
    assert emulated == "numerics='emulated' is refused with jax: hpcml_client emulates in torch only"
    assert unknown.startswith("precision='int8' is not there with jax")
    assert re.match(r"the plan says cuda, but JAX \d\S+ sees no GPU: is it built for CUDA, ", told["no_gpu"])


@pytest.mark.usefixtures("told")
def test_one_call_reports_the_framework_and_the_proof(run_dir: Path) -> None:
    (path,) = (run_dir / "journal").iterdir()
    events = {event.name: event.details for event in read_journal(path).records if isinstance(event, Event)}
    assert events["framework"]["framework"] == "jax"
    assert (events["precision"]["effective"], events["precision"]["mismatch"]) == ("bf16", False)
