from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

from image_runs import Recorded
from language_runs import Job, train_all
from numeric_runs import load

from tests.cli.command_line import Hpcml

pytestmark = pytest.mark.torch
NEGATIVES = 3
SMALL = {
    "width": 16,
    "negatives": NEGATIVES,
    "fewest": 2,
    "length": 12,
    "words": ["sun", "sea", "unheard"],
    "analogies": "sun moon sea; sun no sea",
}
# Words of two worlds that never meet: neighbours must come from the word's own.
WORLDS = (["sun", "moon", "star", "sky", "comet", "dawn"], ["sea", "wave", "ship", "harbour", "tide", "salt"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("word2vec")
    lines = [" ".join(world[(i * (k + 1) + k) % 6] for k in range(12)) for i in range(100) for world in WORLDS]
    (folder / "text.txt").write_text("\n".join(lines))
    (folder / "short.txt").write_text("once upon a time")
    text = {"name": "text", "path": str(folder / "text.txt")}
    jobs = [Job(run_dir=folder / "fp32", options=SMALL, data=text)]
    learning = {"steps": 150, "batch_size": 32, "learning_rate": 1e-2, "eval_every": 150}
    jobs.append(Job(run_dir=folder / "learned", options={**SMALL, "frequent": 1.0}, data=text, training=learning))
    cbow = {**SMALL, "frequent": 1.0, "predicts": "word"}
    jobs.append(Job(run_dir=folder / "cbow", options=cbow, data=text, training=learning))
    jobs.append(Job(run_dir=folder / "short", options=SMALL, data={"name": "text", "path": str(folder / "short.txt")}))
    *said, short = train_all("word2vec", jobs)
    assert said == [True] * len(said)
    assert short == (
        f"data.path={folder / 'short.txt'} has 4 words, 0 of them 2 times: too few to train and to validate on: "
        "take a longer text or a smaller model.options.fewest"
    )
    return folder


def recorded(folder: Path, name: str) -> Recorded:
    return Job(run_dir=folder / name, data={}).recorded()


@pytest.mark.parametrize("name", ["learned", "cbow"])
def test_at_first_every_pair_is_a_toss_up(folder: Path, name: str) -> None:
    found = recorded(folder, name)

    # of the pair itself and of each word drawn; samples have as many pairs as there are words, up to their edges
    assert found.series("loss")[0] == pytest.approx((1 + NEGATIVES) * math.log(2), rel=0.02)
    assert found.series("val_loss")[-1] < 0.9 * (1 + NEGATIVES) * math.log(2)


def test_the_nearest_words_are_of_the_same_world(folder: Path) -> None:
    found = recorded(folder, "learned").events["neighbours"]

    assert found["unknown"] == ["unheard", "no"]
    assert set(found["analogies"]) == {"sun : moon = sea : ?"}
    answers = [word for word, _ in found["analogies"]["sun : moon = sea : ?"]]
    assert not {"sun", "moon", "sea"} & set(answers)
    assert answers[0] in WORLDS[1]  # the step from sun to moon leaves no world
    assert set(found["nearest"]) == {"sun", "sea"}
    for world in WORLDS:
        near = found["nearest"][world[0]]
        assert {word for word, _ in near} == set(world[1:])
        cosines = [cosine for _, cosine in near]
        assert cosines == sorted(cosines, reverse=True)


def test_words_that_are_told_by_those_beside_them_have_neighbours_of_their_world(folder: Path) -> None:
    found = recorded(folder, "cbow").events

    for world in WORLDS:
        assert {word for word, _ in found["neighbours"]["nearest"][world[0]]} == set(world[1:])
    assert found["training"]["parameters"] == 2 * 14 * 16
    samples, length, width = 32, 12, 16
    means, products = samples * length * width * length, samples * length * width * (1 + NEGATIVES)
    assert found["work"]["model_flops"] == 2 * 2 * means + 3 * 2 * products  # weights of means are not learned


def test_cbow_sets_the_mean_of_the_words_beside_against_the_word() -> None:
    import torch  # noqa: PLC0415 - only where it is installed

    models = load("word2vec", "models")
    model = models.Cbow(4, 2)
    with torch.no_grad():
        model.words.weight.copy_(torch.tensor([[0.0, 0], [1, 2], [3, -1], [5, 5]]))
        model.contexts.weight.copy_(torch.tensor([[0.0, 0], [1, 0], [0, 2], [1, 1]]))
    words, others = torch.tensor([[1, 2, 3]]), torch.tensor([[[3], [1], [2]]])
    weights = torch.tensor([[[0.0, 1, 0], [1, 0, 3], [0, 2, 0]]])

    beside, drawn = model(words, others, weights)

    # of the word in the middle: (1 (1, 2) + 3 (5, 5)) / 4 = (4, 4.25), with (0, 2), and with (1, 0)
    assert beside.tolist() == [[3.0, 8.5, 2.0]]
    assert drawn.tolist() == [[[2.0], [4.0], [-2.0]]]


def test_what_is_reported_says_what_was_trained_on_what(folder: Path) -> None:
    events = recorded(folder, "fp32").events

    assert events["training"]["vocabulary"] == 12 + 2  # and padding, and unknown words
    assert events["training"]["parameters"] == 2 * 14 * 16
    assert events["training"]["text_bytes"] == (folder / "text.txt").stat().st_size
    samples, length, width = 4, 12, 16
    products = samples * length * width * (length + NEGATIVES)
    assert events["work"]["model_flops"] == 3 * 2 * products
    assert (events["work"]["tokens"], events["work"]["flops_doubt"]) == (samples * length, None)


def test_a_run_brings_its_text_and_its_learning_rate_along(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    hpcml = Hpcml(environ=hpcml_environ, cwd=tmp_path)

    done = hpcml("run", "model=word2vec", "training.steps=2", "model.options.words=[class]")

    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    assert (run["state"], run["precision_effective"]) == ("COMPLETED", "fp32")
    assert run["metrics"]["val_loss"]["n"] == 1
