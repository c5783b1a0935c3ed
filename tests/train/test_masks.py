from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpcml_train.data.masks import read_masked
from hpcml_train.errors import DatasetError


def write(path: Path, image: object, mask: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, image=image, mask=mask)


def test_folders_say_what_is_trained_on_and_what_is_validated_with(tmp_path: Path) -> None:
    write(tmp_path / "train" / "b.npz", np.full((4, 8), 255, "uint8"), np.full((4, 8), 2))
    write(tmp_path / "train" / "a.npz", np.zeros((4, 8), "uint8"), np.zeros((4, 8), "uint8"))
    write(tmp_path / "val" / "a.npz", np.full((4, 8), 0.5), np.full((4, 8), 255))

    training, validation = read_masked(str(tmp_path), 0.2)

    assert (training.images.shape, training.classes) == ((2, 4, 8, 1), 3)
    assert [float(image.max()) for image in training.images] == [0, 1]
    assert (float(validation.images.max()), validation.classes) == (0.5, 1)


def test_without_folders_a_share_is_held_out(tmp_path: Path) -> None:
    for number in range(10):
        write(tmp_path / f"{number}.npz", np.full((2, 2, 3), number, "uint8"), np.zeros((2, 2), "uint8"))

    training, validation = read_masked(str(tmp_path), 0.2)

    assert len(training) == 8
    assert (validation.images[:, 0, 0, 0] * 255).round().tolist() == [4, 9]


@pytest.mark.parametrize(
    ("image", "mask", "said"),
    [
        (np.zeros((4, 4), "uint8"), np.zeros((4, 5), "uint8"), r"image is \(4, 4\) and mask \(4, 5\)"),
        (np.zeros(4, "uint8"), np.zeros(4, "uint8"), r"image is \(4,\)"),
        (np.zeros((4, 4), "uint8"), np.zeros((4, 4)), "mask must hold whole numbers from 0 to 255"),
        (np.zeros((4, 4), "uint8"), np.full((4, 4), 256), "mask must hold whole numbers from 0 to 255"),
        (np.full((4, 4), 2.0), np.zeros((4, 4), "uint8"), "numbers from 0 to 1; it is float64"),
        (np.zeros((4, 4), "int32"), np.zeros((4, 4), "uint8"), "it is int32"),
        (np.zeros((8, 8), "uint8"), np.zeros((8, 8), "uint8"), r"is a picture of \(8, 8, 1\), and .*1\.npz of"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path: Path, image: object, mask: object, said: str) -> None:
    write(tmp_path / "train" / "1.npz", np.zeros((4, 4), "uint8"), np.zeros((4, 4), "uint8"))
    write(tmp_path / "train" / "2.npz", image, mask)
    write(tmp_path / "val" / "1.npz", np.zeros((4, 4), "uint8"), np.zeros((4, 4), "uint8"))

    with pytest.raises(DatasetError, match=rf"2\.npz.*{said}"):
        read_masked(str(tmp_path), 0.2)


def test_faults_of_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="is no folder"):
        read_masked(str(tmp_path / "nowhere"), 0.2)
    with pytest.raises(DatasetError, match=r"has no \.npz file"):
        read_masked(str(tmp_path), 0.2)
    (tmp_path / "one.npz").write_bytes(b"no archive")
    with pytest.raises(DatasetError, match="holds out none of 1 files"):
        read_masked(str(tmp_path), 0.2)
    (tmp_path / "two.npz").write_bytes(b"no archive")
    with pytest.raises(DatasetError, match=r"one\.npz cannot be read as an \.npz archive"):
        read_masked(str(tmp_path), 0.5)
