from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

from image_runs import Recorded
from language_runs import DRAWS, SAYS, SQUARES, Job, assert_it_continues, train_all

from tests.cli.command_line import Hpcml

pytestmark = pytest.mark.torch
PRECISIONS = ("fp32", "tf32", "amp_fp16", "fp16", "fp8_e4m3")
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
    plain = {**SMALL, "cell": "rnn"}
    jobs += [
        Job(run_dir=folder / f"rnn_{name}", options=plain, precision=name, data=FIBONACCI) for name in PRECISIONS[:2]
    ]
    jobs.append(Job(run_dir=folder / "rnn_learned", options=plain, data=FIBONACCI, training=learning))
    says = {**SMALL, **SAYS, "context": 12}
    knows = {"steps": 250, "batch_size": 16, "learning_rate": 1e-2, "eval_every": 250}
    jobs.append(Job(run_dir=folder / "said", options={**says, "width": 48, "layers": 1}, data=text, training=knows))
    jobs.append(Job(run_dir=folder / "drawn", options={**says, **DRAWS}, data=text))
    jobs.append(Job(run_dir=folder / "unasked", options=says, data=FIBONACCI))
    *said, unasked = train_all("lstm", jobs)
    assert unasked == (
        "model.options.generate=5 continues a text: choose data=pydoc or data=text, and give model.options.prompt"
    )
    assert said == [True] * len(said)
    return folder


def recorded(folder: Path, name: str) -> Recorded:
    return Job(run_dir=folder / name, data={}).recorded()


@pytest.mark.parametrize("name", [*PRECISIONS[1:], "rnn_tf32"])
def test_no_product_of_a_recurrent_layer_escapes_the_emulation(folder: Path, name: str) -> None:
    products = recorded(folder, name).events["emulated_products"]

    # each layer multiplies the inputs of all terms at once, and its state term by term; the last layer once
    forward = LAYERS * (1 + SMALL["context"]) + 1
    assert sum(products.values()) >= STEPS * 2 * forward  # backward too


def test_an_lstm_learns_to_add(folder: Path) -> None:
    learned = recorded(folder, "learned")

    assert learned.series("loss")[0] == pytest.approx(math.log(7), rel=0.1)
    assert learned.series("val_accuracy")[-1] > 0.7  # guessing: 1 of 7
    assert learned.series("perplexity")[-1] == pytest.approx(math.exp(learned.series("val_loss")[-1]))


def test_a_plain_network_learns_to_add_and_is_another_one(folder: Path) -> None:
    assert recorded(folder, "rnn_learned").series("val_accuracy")[-1] > 0.5  # guessing: 1 of 7
    assert recorded(folder, "rnn_fp32").events["final"] != recorded(folder, "fp32").events["final"]


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


def test_a_run_generates_its_sequences(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    hpcml = Hpcml(environ=hpcml_environ, cwd=tmp_path)

    done = hpcml("run", "model=lstm", "precision=amp_fp16", "training.steps=2", "training.batch_size=4")

    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    assert (run["state"], run["precision_effective"]) == ("COMPLETED", "amp_fp16")
    assert run["metrics"]["val_loss"]["n"] == 1
