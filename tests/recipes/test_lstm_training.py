from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

from image_runs import Recorded
from language_runs import DRAWS, SAYS, SQUARES, Job, assert_it_continues, train_all

from hpcml_train.precision.formats import name_precision
from tests.cli.command_line import Hpcml

pytestmark = pytest.mark.torch
# largest relative difference of the first loss to that of FP32: same weights, same sequences
PRECISIONS = {
    "fp32": 0.0,
    "fp64": 1e-6,
    "tf32": 1e-4,
    "amp_fp16": 1e-4,
    "amp_bf16": 2e-3,
    "bf16": 4e-3,
    "fp16": 1e-3,
    "fp8_e4m3": 4e-3,
    "fp8_e5m2": 8e-3,
}
OF_PLAIN = ("fp32", "fp64", "tf32", "amp_fp16", "bf16", "fp8_e4m3")
LAYERS = 2
SMALL = {"layers": LAYERS, "width": 24, "embedding": 16, "context": 8, "modulus": 7}
FIBONACCI = {"name": "fibonacci"}
STEPS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lstm")
    (folder / "text.txt").write_text(SQUARES)
    text = {"name": "text", "path": str(folder / "text.txt")}
    learning = {"steps": 120, "batch_size": 32, "learning_rate": 1e-2, "eval_every": 120}
    jobs = [Job(run_dir=folder / name, options=SMALL, precision=name, data=FIBONACCI) for name in PRECISIONS]
    jobs.append(Job(run_dir=folder / "text", options=SMALL, data=text))
    jobs.append(Job(run_dir=folder / "learned", options={**SMALL, "layers": 1}, data=FIBONACCI, training=learning))
    for name, parts in (("whole", 1), ("parts", 2)):
        training = {"accumulate": parts}
        jobs.append(Job(run_dir=folder / name, options=SMALL, data=FIBONACCI, precision="fp64", training=training))
    jobs.append(Job(run_dir=folder / "left", options=SMALL, data=FIBONACCI, precision="amp_fp16", asked=True))
    jobs.append(Job(run_dir=folder / "left", options=SMALL, data=FIBONACCI, precision="amp_fp16", attempt=1))
    plain = {**SMALL, "cell": "rnn"}
    jobs += [Job(run_dir=folder / f"rnn_{name}", options=plain, precision=name, data=FIBONACCI) for name in OF_PLAIN]
    jobs.append(Job(run_dir=folder / "rnn_learned", options=plain, data=FIBONACCI, training=learning))
    says = {**SMALL, **SAYS, "context": 12}
    knows = {"steps": 250, "batch_size": 16, "learning_rate": 1e-2, "eval_every": 250}
    jobs.append(Job(run_dir=folder / "said", options={**says, "width": 48, "layers": 1}, data=text, training=knows))
    jobs.append(Job(run_dir=folder / "drawn", options={**says, **DRAWS}, data=text))
    jobs.append(Job(run_dir=folder / "unasked", options=says, data=FIBONACCI))
    for asked, attempt in ((True, 0), (False, 1)):
        gone = Job(
            run_dir=folder / "rnn_left",
            options=plain,
            data=FIBONACCI,
            precision="amp_fp16",
            asked=asked,
            attempt=attempt,
        )
        jobs.append(gone)
    said = train_all("lstm", jobs)
    assert said[-3] == (
        "model.options.generate=5 continues a text: choose data=pydoc or data=text, and give model.options.prompt"
    )
    left = ("left", "rnn_left")
    assert [each for job, each in zip(jobs, said, strict=True) if job.run_dir.name not in (*left, "unasked")] == [
        True
    ] * (len(jobs) - 5)
    assert [each for job, each in zip(jobs, said, strict=True) if job.run_dir.name in left] == [False, True] * 2
    return folder


def recorded(folder: Path, name: str, attempt: int = 0) -> Recorded:
    return Job(run_dir=folder / name, data={}, attempt=attempt).recorded()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_begins_where_fp32_does(folder: Path, precision: str) -> None:
    exact, found = recorded(folder, "fp32"), recorded(folder, precision)

    probe = found.events["precision"]
    assert name_precision(probe["products"], probe["parameters"]) == precision
    assert found.series("loss")[0] == pytest.approx(exact.series("loss")[0], rel=PRECISIONS[precision] or 1e-12)
    assert math.isfinite(found.series("val_loss")[-1])
    assert (found.events["final"] == exact.events["final"]) == (precision == "fp32")


@pytest.mark.parametrize("precision", ["tf32", "amp_fp16", "fp16", "fp8_e4m3"])
def test_no_product_of_an_lstm_escapes_the_emulation(folder: Path, precision: str) -> None:
    products = recorded(folder, precision).events["emulated_products"]

    # each layer multiplies the inputs of all terms at once, and its state term by term; the last layer once
    forward = LAYERS * (1 + SMALL["context"]) + 1
    assert sum(products.values()) >= STEPS * 2 * forward  # backward too


def test_an_lstm_learns_to_add(folder: Path) -> None:
    learned = recorded(folder, "learned")

    assert learned.series("loss")[0] == pytest.approx(math.log(7), rel=0.1)
    assert learned.series("val_accuracy")[-1] > 0.7  # guessing: 1 of 7
    assert learned.series("perplexity")[-1] == pytest.approx(math.exp(learned.series("val_loss")[-1]))


@pytest.mark.parametrize("precision", OF_PLAIN)
def test_a_plain_network_trains_in_each_precision_and_none_of_its_products_escapes_the_emulation(
    folder: Path, precision: str
) -> None:
    exact, found = recorded(folder, "rnn_fp32"), recorded(folder, f"rnn_{precision}")

    probe = found.events["precision"]
    assert name_precision(probe["products"], probe["parameters"]) == precision
    assert found.series("loss")[0] == pytest.approx(exact.series("loss")[0], rel=PRECISIONS[precision] or 1e-12)
    assert (found.events["final"] == exact.events["final"]) == (precision == "fp32")
    assert found.events["final"] != recorded(folder, precision).events["final"]  # the LSTM's
    if "emulated_products" in found.events:
        forward = LAYERS * (1 + SMALL["context"]) + 1
        assert sum(found.events["emulated_products"].values()) >= STEPS * 2 * forward


def test_a_plain_network_learns_to_add_and_goes_on_bit_for_bit(folder: Path) -> None:
    assert recorded(folder, "rnn_learned").series("val_accuracy")[-1] > 0.5  # guessing: 1 of 7
    whole, after = recorded(folder, "rnn_amp_fp16"), recorded(folder, "rnn_left", attempt=1)
    assert recorded(folder, "rnn_left").series("loss") + after.series("loss") == whole.series("loss")
    assert after.events["final"] == whole.events["final"]


def test_a_trained_network_continues_a_text(folder: Path) -> None:
    assert_it_continues(recorded(folder, "said"), recorded(folder, "drawn"))
    assert "generated" not in recorded(folder, "text").events


def test_what_is_reported_says_what_was_trained_on_what(folder: Path) -> None:
    numbers, text = recorded(folder, "fp32"), recorded(folder, "text")

    assert numbers.events["training"]["modulus"] == 7
    assert numbers.events["training"]["training_samples"] + numbers.events["training"]["validation_samples"] == 49
    assert numbers.events["work"]["tokens"] == 4.0 * 8
    assert numbers.events["work"]["flops_doubt"] is None
    assert text.events["training"]["text_bytes"] == (folder / "text.txt").stat().st_size
    assert text.series("loss")[0] == pytest.approx(math.log(256), rel=0.1)


def test_a_batch_in_parts_trains_as_the_whole(folder: Path) -> None:
    whole, parts = recorded(folder, "whole"), recorded(folder, "parts")

    assert parts.series("loss") == pytest.approx(whole.series("loss"), rel=1e-12)
    assert parts.series("val_loss") == pytest.approx(whole.series("val_loss"), rel=1e-12)


def test_a_training_that_left_ends_with_the_same_weights_bit_for_bit(folder: Path) -> None:
    whole, before, after = recorded(folder, "amp_fp16"), recorded(folder, "left"), recorded(folder, "left", attempt=1)

    assert (len(before.metrics), after.events["resumed"]["step"]) == (1, 1)
    assert before.series("loss") + after.series("loss") == whole.series("loss")
    assert after.series("val_loss") == whole.series("val_loss")
    assert after.events["final"] == whole.events["final"]


def test_a_run_generates_its_sequences(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    hpcml = Hpcml(environ=hpcml_environ, cwd=tmp_path)

    done = hpcml("run", "model=lstm", "precision=amp_fp16", "training.steps=2", "training.batch_size=4")

    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    assert (run["state"], run["precision_effective"]) == ("COMPLETED", "amp_fp16")
    assert run["metrics"]["val_loss"]["n"] == 1
