from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

from image_runs import Recorded
from language_runs import DRAWS, SAYS, SQUARES, Job, assert_it_continues, train_all

from tests.cli.command_line import Hpcml

pytestmark = pytest.mark.torch
KINDS = ("decoder", "encoder", "encoder_decoder")
SMALL = {"width": 32, "heads": 2, "feed_forward": 64, "context": 32, "validation_windows": 8, "dropout": 0.1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transformer")
    (folder / "short.txt").write_text("too short")
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "text.txt").write_text(SQUARES)
    text = {"name": "text", "path": str(folder / "text.txt")}
    jobs = [Job(run_dir=folder / kind, options={**SMALL, "kind": kind}, data=text) for kind in KINDS]
    says = {**SMALL, "layers": 2, "context": 24, "dropout": 0.0}
    knows = {"steps": 200, "batch_size": 16, "learning_rate": 5e-3, "eval_every": 200}
    jobs.append(Job(run_dir=folder / "said", options={**says, **SAYS}, data=text, training=knows))
    jobs.append(Job(run_dir=folder / "drawn", options={**says, **DRAWS}, data=text))
    assert train_all("transformer", jobs) == [True] * len(jobs)
    return folder


def recorded(folder: Path, name: str) -> Recorded:
    return Job(run_dir=folder / name, data={}).recorded()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_reported_says_what_was_trained_on_what(folder: Path, kind: str) -> None:
    found = recorded(folder, kind)

    (val_loss,), (perplexity,) = found.series("val_loss"), found.series("perplexity")
    assert perplexity == pytest.approx(math.exp(val_loss))
    assert 0 <= found.series("val_accuracy")[0] <= 1
    assert found.events["training"]["text_bytes"] == len(SQUARES)
    assert found.events["training"]["validation_samples"] == 8
    work = found.events["work"]
    assert (work["samples"], work["tokens"], work["flops_doubt"]) == (4.0, 4.0 * 32, None)
    assert work["model_flops"] > 0
    # nothing is learned in four steps: about as good as guessing among all tokens
    assert found.series("loss")[0] == pytest.approx(math.log(257), rel=0.05)


def test_a_trained_decoder_continues_a_text(folder: Path) -> None:
    assert_it_continues(recorded(folder, "said"), recorded(folder, "drawn"))
    assert "generated" not in recorded(folder, "decoder").events


def test_texts_that_cannot_be_used_are_refused_in_one_line(folder: Path) -> None:
    paths = {"nowhere": "No such file", "latin.txt": "is no UTF-8: byte 3 is 0xe9", "short.txt": "has 9 bytes: too few"}
    jobs = [
        Job(run_dir=folder / f"bad-{name}", options=SMALL, data={"name": "text", "path": str(folder / name)})
        for name in paths
    ]
    jobs.append(Job(run_dir=folder / "bad", options=SMALL, data={"name": "text", "path": str(folder)}))
    jobs.append(Job(run_dir=folder / "none", options=SMALL, data={"name": "text"}))

    said = train_all("transformer", jobs)

    for reason, words in zip(said, [*paths.values(), "is a folder", "needs data.path"], strict=True):
        assert isinstance(reason, str)
        assert words in reason
        assert "\n" not in reason


def test_a_run_brings_its_text_along(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    hpcml = Hpcml(environ=hpcml_environ, cwd=tmp_path)
    small = [f"model.options.{name}={value}" for name, value in SMALL.items()]

    done = hpcml("run", "model=transformer_tiny", "training.steps=2", "training.batch_size=4", *small)

    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    assert (run["state"], run["precision_effective"]) == ("COMPLETED", "fp32")
    assert run["metrics"]["val_loss"]["n"] == 1
