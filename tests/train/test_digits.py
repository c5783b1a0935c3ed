from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hpcml_train.data.digits import Images, read_digits, read_mnist, split
from hpcml_train.errors import DatasetError


def _images(count: int, side: int = 2) -> Images:
    pixels = bytes(index % 256 for index in range(count * side * side))
    return Images(pixels=pixels, labels=bytes(i % 10 for i in range(count)), height=side, width=side, largest=255)


def _write_idx(folder: Path, part: str, images: Images, suffix: str = "", dot: str = "-") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shape = (len(images), images.height, images.width)
    for name, header, body in (
        (f"{part}-images{dot}idx3-ubyte{suffix}", struct.pack(">4I", 0x803, *shape), images.pixels),
        (f"{part}-labels{dot}idx1-ubyte{suffix}", struct.pack(">2I", 0x801, len(images)), images.labels),
    ):
        content = header + body
        (folder / name).write_bytes(gzip.compress(content) if suffix else content)


def test_digits_are_1797_images_of_8x8_with_17_shades() -> None:
    pytest.importorskip("sklearn")

    digits = read_digits()

    assert (len(digits), digits.height, digits.width, max(digits.pixels)) == (1797, 8, 8, 16)
    assert len(digits.pixels) == 1797 * 64
    assert sorted(Counter(digits.labels)) == list(range(10))


def test_digits_agree_with_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets")

    bunch = datasets.load_digits()

    digits = read_digits()
    assert digits.pixels == bunch.data.astype("uint8").tobytes()
    assert digits.labels == bunch.target.astype("uint8").tobytes()


def test_without_scikit_learn_the_error_names_the_cure() -> None:
    script = (
        "from hpcml_train.errors import DatasetError\n"
        "from hpcml_train.data.digits import read_digits\n"
        "try: read_digits()\n"
        "except DatasetError as error: print(error)\n"
    )
    root = str(Path(__file__).parents[2])

    done = subprocess.run(
        [sys.executable, "-S", "-c", script], env={"PYTHONPATH": root}, capture_output=True, text=True, check=True
    )

    assert "scikit-learn, which is missing: pip install 'hpcml[torch]'" in done.stdout


@pytest.mark.parametrize("holdout", [0.1, 0.2, 0.5])
def test_a_split_takes_the_same_share_of_each_class(holdout: float) -> None:
    images = _images(1000)

    kept, held_out = split(images, holdout)

    assert len(kept) + len(held_out) == 1000
    assert set(Counter(held_out.labels).values()) == {round(100 * holdout)}


def test_a_split_loses_no_pixel_and_is_always_the_same() -> None:
    images = Images(pixels=bytes(range(10)), labels=bytes([0, 1] * 5), height=1, width=1, largest=255)

    kept, held_out = split(images, 0.4)

    assert (list(kept.pixels), list(held_out.pixels)) == ([0, 1, 2, 3, 6, 7], [4, 5, 8, 9])
    assert split(images, 0.4) == (kept, held_out)


@pytest.mark.parametrize(
    ("folder", "suffix", "dot"), [("", "", "-"), ("", ".gz", "-"), ("MNIST/raw", "", "-"), ("raw", ".gz", ".")]
)
def test_mnist_is_found_as_people_keep_it(tmp_path: Path, folder: str, suffix: str, dot: str) -> None:
    _write_idx(tmp_path / folder, "train", _images(20), suffix, dot)
    _write_idx(tmp_path / folder, "t10k", _images(10), suffix, dot)

    assert read_mnist(str(tmp_path)) == (_images(20), _images(10))


def test_keras_archive_is_read(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    arrays = {}
    for part, images in (("train", _images(20)), ("test", _images(10))):
        arrays[f"x_{part}"] = numpy.frombuffer(images.pixels, dtype="uint8").reshape(-1, 2, 2)
        arrays[f"y_{part}"] = numpy.frombuffer(images.labels, dtype="uint8")
    numpy.savez(tmp_path / "mnist.npz", **arrays)

    assert read_mnist(str(tmp_path)) == (_images(20), _images(10))
    assert read_mnist(str(tmp_path / "mnist.npz")) == (_images(20), _images(10))


@pytest.mark.parametrize("label", [-1, 256])
def test_labels_of_an_archive_that_are_no_class_are_refused(tmp_path: Path, label: int) -> None:
    numpy = pytest.importorskip("numpy")
    labels = numpy.array([0, label], dtype="int16")
    images = numpy.zeros((2, 2, 2), dtype="uint8")
    numpy.savez(tmp_path / "mnist.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)

    with pytest.raises(DatasetError, match=f"label {label}"):
        read_mnist(str(tmp_path))


def test_a_folder_without_mnist_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"neither mnist\.npz nor train-images-idx3-ubyte"):
        read_mnist(str(tmp_path))
    with pytest.raises(DatasetError, match="does not exist"):
        read_mnist(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("keep", [0, 3, 15, 40])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, keep: int) -> None:
    _write_idx(tmp_path, "train", _images(20))
    name = tmp_path / "train-images-idx3-ubyte"
    os.truncate(name, keep)

    with pytest.raises(DatasetError, match="train-images"):
        read_mnist(str(tmp_path))


def test_a_compressed_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    _write_idx(tmp_path, "train", _images(20), ".gz")
    os.truncate(tmp_path / "train-images-idx3-ubyte.gz", 30)

    with pytest.raises(DatasetError, match="cannot be read"):
        read_mnist(str(tmp_path))


def test_an_archive_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").write_bytes(b"not a zip file")

    with pytest.raises(DatasetError, match="is not Keras's"):
        read_mnist(str(tmp_path))
