from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from image_runs import Recorded
from language_runs import Job, load, options_of, train_all

from tests.cli.command_line import Hpcml

pytestmark = pytest.mark.torch
models = load("seq2seq", "models")
SMALL = {"width": 24, "embedding": 8, "length": 5, "symbols": 6, "sequences": 1024, "validation_sequences": 64}
DATA = {"name": "reversals"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seq2seq")
    learning = {"steps": 250, "batch_size": 32, "learning_rate": 1e-2, "eval_every": 250}
    jobs = []
    for name in ("bahdanau", "none"):
        options = {**SMALL, "attention": name}
        jobs.append(Job(run_dir=folder / f"learned_{name}", options=options, data=DATA, training=learning))
    jobs.append(Job(run_dir=folder / "few", options={**SMALL, "symbols": 2}, data=DATA))
    *said, few = train_all("seq2seq", jobs)
    assert said == [True] * len(said)
    assert few == (
        "there are 32 sequences of 5 out of 2 symbols, too few for 1088 that differ: raise model.options.length or "
        "symbols"
    )
    return folder


def recorded(folder: Path, name: str) -> Recorded:
    return Job(run_dir=folder / name, data={}).recorded()


def test_with_attention_it_learns_to_say_sequences_backwards_and_better_than_without(folder: Path) -> None:
    with_it, without = recorded(folder, "learned_bahdanau"), recorded(folder, "learned_none")

    assert with_it.series("loss")[0] == pytest.approx(math.log(7), rel=0.1)
    assert with_it.series("val_accuracy")[-1] > 0.9  # guessing: 1 of 6
    assert with_it.series("val_loss")[-1] < without.series("val_loss")[-1]
    assert with_it.series("whole_sequences")[-1] <= with_it.series("val_accuracy")[-1]
    assert with_it.series("perplexity")[-1] == pytest.approx(math.exp(with_it.series("val_loss")[-1]))


def test_attention_is_bahdanaus() -> None:
    attention = models.Attention(3).double()
    state, read = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 4, 3, dtype=torch.float64)

    context, weights = attention(state, read, attention.of_read(read))

    w, u, v = attention.of_state.weight, attention.of_read.weight, attention.score.weight[0]
    for row in range(2):
        scores = torch.stack([v @ torch.tanh(w @ state[row] + u @ read[row, j]) for j in range(4)])
        shares = torch.exp(scores) / torch.exp(scores).sum()
        assert torch.allclose(weights[row], shares)
        assert torch.allclose(context[row], sum(shares[j] * read[row, j] for j in range(4)))


def test_a_symbol_that_is_written_knows_nothing_of_those_behind_it() -> None:
    network = models.Translator(models.Shape(**SMALL)).double()
    given, written = torch.randint(6, (2, 5)), torch.randint(6, (2, 5))
    changed = written.clone()
    changed[:, 3:] = (changed[:, 3:] + 1) % 6

    logits, weights = network.aligned(given, written)

    assert torch.equal(logits[:, :3], network(given, changed)[:, :3])
    assert not torch.equal(logits[:, 3:], network(given, changed)[:, 3:])
    assert weights is not None
    assert torch.allclose(weights.sum(dim=2), torch.ones(2, 5, dtype=torch.float64))


def test_the_network_has_the_size_that_the_model_claims() -> None:
    network = models.Translator(models.Shape(**options_of("seq2seq")))

    assert (
        sum(parameter.numel() for parameter in network.parameters()) == 68_219
    )  # by hand: 176 + 20992 + 37376 + 8256 + 1419


def test_a_run_of_it_ends(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    hpcml = Hpcml(environ=hpcml_environ, cwd=tmp_path)

    done = hpcml("run", "model=seq2seq", "precision=bf16", "training.steps=2", "training.batch_size=4")

    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    assert (run["state"], run["precision_effective"]) == ("COMPLETED", "bf16")
