from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

from vision_runs import Done, Job, load_module, run_jobs

from hpcml_client.formats import name_precision
from tests.cli.command_line import Hpcml, said_in_one_line

pytestmark = pytest.mark.torch
LATENCIES = {f"latency_b{batch}_{kind}_ms" for batch in (1, 8) for kind in ("median", "p99")}


def described(**options: object) -> dict[str, object]:
    chosen = {"batches": [1, 8], "repeats": 10, **options}
    return {"model": {"name": "inference", "options": chosen}, "training": {"steps": 60}}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    jobs = [
        Job(name="fp32", run=described()),
        Job(name="fp16", precision="fp16", run=described()),
        Job(name="int8", precision="int8", run=described()),
        Job(name="tensorrt", run=described(provider="tensorrt")),
        Job(name="bf16", precision="bf16", run=described()),
    ]
    return run_jobs(tmp_path_factory.mktemp("inference"), "inference", jobs)


def last(done: Done, name: str) -> dict[str, float]:
    (record,) = done.recorded(name).metrics
    return dict(record.values)


def test_the_exported_network_answers_as_the_trained_one_does(done: Done) -> None:
    values = last(done, "fp32")

    assert values["agreement"] == 1
    assert values["max_logit_error"] < 1e-4
    assert values["val_accuracy"] > 0.85


# sixteen bits keep eleven of 24 significant ones, and INT8 has 256 steps for the whole range
@pytest.mark.parametrize(("name", "least", "most"), [("fp16", 1e-4, 0.1), ("int8", 1e-3, 5)])
def test_fewer_bits_answer_nearly_the_same(done: Done, name: str, least: float, most: float) -> None:
    values, exact = last(done, name), last(done, "fp32")

    assert least < values["max_logit_error"] < most
    assert values["agreement"] > 0.97
    assert abs(values["val_accuracy"] - exact["val_accuracy"]) <= 1 - values["agreement"] + 1e-9


def test_fewer_bits_make_smaller_files(done: Done) -> None:
    sizes = {name: last(done, name)["model_kb"] for name in ("fp32", "fp16", "int8")}

    assert sizes["fp32"] > 85_066 * 4 / 1000
    assert sizes["fp16"] < 0.6 * sizes["fp32"]
    assert sizes["int8"] < 0.4 * sizes["fp32"]
    assert sizes["int8"] * 1000 == done.recorded("int8").events["artifact"]["bytes"]


def test_what_a_session_computes_in_is_measured(done: Done) -> None:
    for name, precision in (("fp32", "fp32"), ("fp16", "fp16"), ("int8", "int8")):
        probe = done.recorded(name).events["precision"]
        assert name_precision(probe["products"], probe["parameters"]) == precision
        assert probe["numerics"] == ("emulated" if name == "fp16" else "native")


def test_only_arithmetic_that_is_native_has_rates(done: Done) -> None:
    assert set(last(done, "fp32")) >= LATENCIES
    assert set(last(done, "int8")) >= LATENCIES
    assert [name for name in last(done, "fp16") if "latency" in name or "throughput" in name] == []
    values = last(done, "fp32")
    assert 0 < values["latency_b8_median_ms"] <= values["latency_b8_p99_ms"]
    assert values["throughput_b8"] > 0


def test_what_is_not_there_is_refused_in_one_line(done: Done) -> None:
    tensorrt, bf16 = done.said[-2:]

    assert tensorrt.startswith("model.options.provider=tensorrt: the ONNX Runtime ")
    assert "here has no TensorrtExecutionProvider: choose cpu" in tensorrt
    assert bf16 == "precision=bf16 is not in this recipe: choose fp32 or fp16 or int8"


def test_the_network_has_the_size_that_the_readme_says() -> None:
    model = load_module("inference", "network").digits_cnn()

    assert sum(parameter.numel() for parameter in model.parameters()) == 85_066


def test_hpcml_run_measures_it_and_keeps_the_network(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    hpcml = Hpcml(environ=hpcml_environ, cwd=tmp_path)

    ran = hpcml("run", "model=inference", "training.steps=20", "model.options.repeats=10")
    refused = hpcml("run", "-n", "model=inference", "precision=tf32")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    (found,) = hpcml.runs()
    assert found["state"] == "COMPLETED"
    assert len(list((hpcml.home / "runs").glob("*/*/model-fp32.onnx"))) == 1
    assert "precision=tf32 is refused by the recipe inference" in said_in_one_line(refused)
