from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from language_runs import load
from vision_runs import Done, Job, load_module, run_jobs

from tests.cli.command_line import Hpcml

pytestmark = pytest.mark.torch
TINY = {"width": 4, "image_size": 16, "pictures": 10}


def described(steps: int = 2, batch_size: int = 4, **changes: object) -> dict[str, object]:
    training = {"steps": steps, "batch_size": batch_size, "learning_rate": 0.005}
    return {"model": {"name": "unet", "options": TINY}, "training": training, **changes}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("unet")
    odd, pairs = folder / "odd", folder / "pairs"
    for path, side in ((odd, 12), (pairs, 16)):
        path.mkdir()
        for number in range(5):
            mask = np.full((side, side), number % 4)
            mask[0] = 255
            np.savez(path / f"{number}.npz", image=np.zeros((side, side, 3), "uint8"), mask=mask)
    own = {"name": "mask_pairs", "path": str(pairs)}
    jobs = [
        Job(name="fp32", run=described()),
        Job(name="nhwc", run=described(layout={"name": "nhwc"})),
        Job(name="pairs", run=described(data=own)),
        Job(name="odd", run=described(data={**own, "path": str(odd)})),
        Job(name="classes", run=described(data=own, model={"name": "unet", "options": {**TINY, "classes": 3}})),
        Job(
            name="learning",
            run=described(steps=60, batch_size=8, model={"name": "unet", "options": {**TINY, "pictures": 20}}),
        ),
    ]
    return run_jobs(folder, "unet", jobs)


def test_channels_last_trains_the_same_network(done: Done) -> None:
    assert done.recorded("nhwc").series("loss") == pytest.approx(done.recorded("fp32").series("loss"), rel=1e-4)


def test_pictures_of_ones_own_are_trained_on_and_what_cannot_be_is_said_in_one_line(done: Done) -> None:
    facts = done.recorded("pairs").events["training"]

    assert (facts["training_samples"], facts["validation_samples"]) == (4, 1)
    assert list(done.said[-3:-1]) == [
        "pictures of 12x12 pixels cannot be halved 3 times: use multiples of 8",
        "model.options.classes=3: the masks have classes up to 3",
    ]


def test_shapes_are_learnt(done: Done) -> None:
    losses = done.recorded("learning").series("loss")

    assert 0.5 * math.log(4) < losses[0] < 2 * math.log(4)  # of four classes it knows nothing yet
    assert 0 <= done.recorded("learning").series("val_mean_iou")[-1] <= 1
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


def test_the_intersection_over_the_union_is_counted_class_by_class() -> None:
    overlap = load_module("unet", "overlap").Overlap(4)

    # class 0: 1 of 2; class 1: 1 of 3; class 2: predicted twice, never true; class 3: nobody saw it
    overlap.add(torch.tensor([[0, 1, 2], [1, 0, 2]]), torch.tensor([[0, 1, 1], [0, 255, 1]]))

    assert overlap.of_classes() == [1 / 2, 1 / 4, 0, None]
    assert overlap.mean() == pytest.approx(0.25)


def test_masks_that_agree_overlap_wholly() -> None:
    overlap = load_module("unet", "overlap").Overlap(3)
    masks = torch.arange(12).reshape(1, 3, 4) % 3

    overlap.add(masks, masks)

    assert overlap.mean() == 1


def test_the_network_has_the_size_that_follows_from_its_layers() -> None:
    def convolution(inputs: int, outputs: int) -> int:
        return inputs * outputs * 9 + 2 * outputs  # and GroupNorm's scales and shifts

    def twice(inputs: int, outputs: int) -> int:
        return convolution(inputs, outputs) + convolution(outputs, outputs)

    down = twice(1, 8) + twice(8, 16) + twice(16, 32) + twice(32, 64)
    up = sum(twice(2 * width, width) + 2 * width * width * 4 + width for width in (8, 16, 32))
    model = load("unet", "models").UNet(1, 4, 8)

    assert sum(parameter.numel() for parameter in model.parameters()) == down + up + 8 * 4 + 4
    assert model(torch.zeros(2, 1, 16, 24)).shape == (2, 4, 16, 24)


def test_its_weights_begin_with_the_published_variance() -> None:
    torch.manual_seed(0)
    model = load("unet", "models").UNet(1, 4, 32)

    kernels = [layer.weight.detach() for layer in model.modules() if isinstance(layer, torch.nn.Conv2d)]
    for weight in kernels[1:-1]:  # the first and the last have too few weights to judge by
        assert float(weight.std()) == pytest.approx((2 / weight[0].numel()) ** 0.5, rel=0.05)


def test_hpcml_run_trains_it(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    hpcml = Hpcml(environ=hpcml_environ, cwd=tmp_path)
    options = [f"model.options.{name}={value}" for name, value in TINY.items()]

    ran = hpcml("run", "model=unet", "training.steps=2", "training.batch_size=4", *options)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "val_mean_iou" in ran.stdout
    assert [run["state"] for run in hpcml.runs()] == ["COMPLETED"]
