from __future__ import annotations

import gzip
import os
import struct
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hpcml_train.data.digits import read_digits, read_mnist
from hpcml_train.data.pictures import Pictures, split
from hpcml_train.errors import DatasetError


def _images(count: int, side: int = 2) -> Pictures:
    images = (np.arange(count * side * side) % 256).astype(np.uint8).reshape(count, side, side, 1)
    return Pictures(images=images, labels=np.arange(count) % 10, classes=10, largest=255)


def _same(found: tuple[Pictures, Pictures], *expected: Pictures) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(np.array_equal(a.images, b.images) and np.array_equal(a.labels, b.labels) for a, b in pairs)


def _write_idx(folder: Path, part: str, images: Pictures, suffix: str = "", dot: str = "-") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, header, body in (
        (
            f"{part}-images{dot}idx3-ubyte{suffix}",
            struct.pack(">4I", 0x803, *images.images.shape[:3]),
            images.images.tobytes(),
        ),
        (
            f"{part}-labels{dot}idx1-ubyte{suffix}",
            struct.pack(">2I", 0x801, len(images)),
            images.labels.astype(np.uint8).tobytes(),
        ),
    ):
        content = header + body
        (folder / name).write_bytes(gzip.compress(content) if suffix else content)


def test_digits_are_1797_images_of_8x8_with_17_shades() -> None:
    pytest.importorskip("sklearn")

    digits = read_digits()

    assert (digits.images.shape, digits.images.max(), digits.classes) == ((1797, 8, 8, 1), 16, 10)
    assert sorted(Counter(digits.labels.tolist())) == list(range(10))


def test_digits_agree_with_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets")

    bunch = datasets.load_digits()

    digits = read_digits()
    assert np.array_equal(digits.images[..., 0], bunch.images)
    assert np.array_equal(digits.labels, bunch.target)


def test_without_scikit_learn_the_error_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)

    with pytest.raises(DatasetError, match=r"scikit-learn, which is missing: pip install 'hpcml\[torch\]'"):
        read_digits()


@pytest.mark.parametrize("holdout", [0.1, 0.2, 0.5])
def test_a_split_takes_the_same_share_of_each_class(holdout: float) -> None:
    images = _images(1000)

    kept, held_out = split(images, holdout)

    assert len(kept) + len(held_out) == 1000
    assert set(Counter(held_out.labels.tolist()).values()) == {round(100 * holdout)}


def test_a_split_loses_no_pixel_and_is_always_the_same() -> None:
    images = Pictures(images=np.arange(10).reshape(10, 1, 1, 1), labels=np.array([0, 1] * 5), classes=2, largest=255)

    kept, held_out = split(images, 0.4)

    assert (kept.images.ravel().tolist(), held_out.images.ravel().tolist()) == ([0, 1, 2, 3, 6, 7], [4, 5, 8, 9])
    assert _same(split(images, 0.4), kept, held_out)


@pytest.mark.parametrize(
    ("folder", "suffix", "dot"), [("", "", "-"), ("", ".gz", "-"), ("MNIST/raw", "", "-"), ("raw", ".gz", ".")]
)
def test_mnist_is_found_as_people_keep_it(tmp_path: Path, folder: str, suffix: str, dot: str) -> None:
    _write_idx(tmp_path / folder, "train", _images(20), suffix, dot)
    _write_idx(tmp_path / folder, "t10k", _images(10), suffix, dot)

    assert _same(read_mnist(str(tmp_path), 0.2), _images(20), _images(10))


def test_keras_archive_is_read(tmp_path: Path) -> None:
    arrays = {}
    for part, images in (("train", _images(20)), ("test", _images(10))):
        arrays |= {f"x_{part}": images.images[..., 0], f"y_{part}": images.labels}
    np.savez(tmp_path / "mnist.npz", **arrays)

    assert _same(read_mnist(str(tmp_path), 0.2), _images(20), _images(10))
    assert _same(read_mnist(str(tmp_path / "mnist.npz"), 0.2), _images(20), _images(10))


def test_an_archive_in_colour_is_refused(tmp_path: Path) -> None:
    images, labels = np.zeros((2, 2, 2, 3), dtype=np.uint8), np.array([0, 1])
    np.savez(tmp_path / "mnist.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)

    with pytest.raises(DatasetError, match="pictures in colour, and data=mnist is grey"):
        read_mnist(str(tmp_path), 0.2)


def test_a_folder_without_mnist_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"neither mnist\.npz nor train-images-idx3-ubyte"):
        read_mnist(str(tmp_path), 0.2)
    with pytest.raises(DatasetError, match="does not exist"):
        read_mnist(str(tmp_path / "nowhere"), 0.2)


@pytest.mark.parametrize("keep", [0, 3, 15, 40])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, keep: int) -> None:
    _write_idx(tmp_path, "train", _images(20))
    name = tmp_path / "train-images-idx3-ubyte"
    os.truncate(name, keep)

    with pytest.raises(DatasetError, match="train-images"):
        read_mnist(str(tmp_path), 0.2)


def test_a_compressed_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    _write_idx(tmp_path, "train", _images(20), ".gz")
    os.truncate(tmp_path / "train-images-idx3-ubyte.gz", 30)

    with pytest.raises(DatasetError, match="cannot be read"):
        read_mnist(str(tmp_path), 0.2)
