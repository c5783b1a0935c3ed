from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("PIL")

from image_runs import read_rank0
from PIL import Image
from vision_runs import Done, Job, run_jobs

from tests.cli.command_line import Hpcml

pytestmark = pytest.mark.torch
TINY = {"classes": 10, "image_size": 32}


def described(**changes: object) -> dict[str, Any]:
    run: dict[str, Any] = {
        "model": {"name": "resnet18", "options": TINY},
        "data": {"name": "synthetic"},
        "training": {"steps": 2, "batch_size": 4, "learning_rate": 0.0125},
    }
    return {**run, **changes}


def write_pictures(folder: Path) -> None:
    """Two classes that differ in brightness, as files that lose nothing."""
    generator = np.random.default_rng(0)
    for part, count in (("train", 6), ("val", 2)):
        for name, least in (("dark", 0), ("light", 156)):
            inner = folder / part / name
            inner.mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(least, least + 100, (40, 48, 3), dtype="uint8")
                Image.fromarray(pixels).save(inner / f"{number}.png")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("resnet")
    generator = np.random.default_rng(0)
    archive = folder / "pictures.npz"
    np.savez(archive, x=generator.integers(0, 256, (20, 32, 32), dtype="uint8"), y=np.arange(20) % 2)
    npz = {"name": "npz", "path": str(archive), "holdout": 0.2}
    damaged = folder / "damaged"
    write_pictures(damaged)
    for path in (damaged / "train").glob("*/*.png"):
        path.write_bytes(path.read_bytes()[:200])
    jobs = [
        Job(name="fp32", run=described()),
        Job(name="nhwc", run=described(layout={"name": "nhwc"})),
        Job(name="archive", run=described(data=npz)),
        Job(name="classes", run=described(data=npz, model={"name": "resnet18", "options": {**TINY, "classes": 1}})),
        Job(name="one", run=described(training={"steps": 1, "batch_size": 1})),
        Job(name="damaged", run=described(data={"name": "image_folder", "path": str(damaged)})),
        Job(name="nowhere", run=described(data={"name": "image_folder", "path": "/nowhere"})),
    ]
    return run_jobs(folder, "resnet", jobs)


def test_it_knows_nothing_at_first_and_synthetic_pictures_are_not_validated(done: Done) -> None:
    recorded = done.recorded("fp32")

    assert recorded.series("loss")[0] == pytest.approx(math.log(10), abs=1)
    assert recorded.events["training"]["validation_samples"] == 0
    assert recorded.series("val_accuracy") == []


def test_channels_last_trains_the_same_network(done: Done) -> None:
    assert done.recorded("nhwc").series("loss")[0] == pytest.approx(done.recorded("fp32").series("loss")[0], rel=1e-4)


def test_an_archive_is_trained_on_and_validated_with(done: Done) -> None:
    recorded = done.recorded("archive")

    assert recorded.events["training"]["training_samples"] == 16
    assert recorded.events["training"]["validation_samples"] == 4
    assert recorded.series("val_accuracy")[-1] in (0, 0.25, 0.5, 0.75, 1)


def test_what_cannot_be_trained_is_said_in_one_line(done: Done) -> None:
    classes, one, damaged, nowhere = done.said[-4:]
    assert damaged.startswith(f"{done.folder}/damaged/train/")
    assert ".png cannot be decoded: " in damaged
    assert [classes, one, nowhere] == [
        "model.options.classes=1: data=npz has 2 classes",
        (
            "one picture of 32 pixels at once leaves BatchNorm a single number: "
            "raise training.batch_size or model.options.image_size, or take the batch in fewer parts"
        ),
        "data.path=/nowhere has no folder train with a folder for each class",
    ]


def test_a_folder_of_pictures_is_trained_on_by_hpcml_run(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    hpcml = Hpcml(environ=hpcml_environ, cwd=tmp_path)
    words = ("data=image_folder", f"data.path={tmp_path / 'pictures'}", "training.steps=4", "training.batch_size=6")
    options = ("model.options.classes=2", "model.options.image_size=32", "model.options.readers=2")

    ran = hpcml("run", "model=resnet18", *words, *options)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    (found,) = hpcml.runs()
    (config,) = (hpcml.home / "runs").glob("*/*/run.json")
    recorded = read_rank0(config.parent)
    assert found["state"] == "COMPLETED"
    assert recorded.events["training"]["training_samples"] == 12
    assert recorded.events["training"]["validation_samples"] == 4
    assert len(recorded.series("data_time_s")) == 4
