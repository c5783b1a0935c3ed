from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcml_train.data.pictures import hold_out, read_cifar10, read_npz
from hpcml_train.errors import DatasetError


def write_cifar10(folder: Path) -> dict[str, Any]:
    """Batches as they are published: a pickled dictionary with bytes for keys."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    written = {}
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        data = generator.integers(0, 256, (5, 3072), dtype="uint8")
        batch = {b"data": data, b"labels": [0, 9, 3, 1, 2], b"batch_label": name.encode(), b"filenames": [b"x.png"] * 5}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
        written[name] = data
    return written


@pytest.mark.parametrize("given", ["", "cifar-10-batches-py"])
def test_cifar10_is_found_as_people_keep_it(tmp_path: Path, given: str) -> None:
    written = write_cifar10(tmp_path / "cifar-10-batches-py")

    training, test = read_cifar10(str(tmp_path / given))

    assert (training.images.shape, test.images.shape) == ((10, 32, 32, 3), (5, 32, 32, 3))
    assert training.labels.tolist() == [0, 9, 3, 1, 2] * 2
    # a row has all red bytes first, row after row, then green, then blue
    row = written["data_batch_2"][1]
    assert training.images[6, 2, 5].tolist() == [row[2 * 32 + 5], row[1024 + 2 * 32 + 5], row[2048 + 2 * 32 + 5]]


def test_a_batch_that_would_run_a_program_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return (Path.touch, (tmp_path / "ran",))

    write_cifar10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))

    with pytest.raises(DatasetError, match="data_batch_1 cannot be read as a batch of CIFAR-10"):
        read_cifar10(str(tmp_path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "batch",
    [
        {b"data": np.zeros((2, 3071), "uint8"), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), "uint8"), b"labels": [0]},
        {b"data": np.zeros((2, 3072), "uint8"), b"labels": [0, 10]},
        {b"data": np.zeros((2, 3072), "uint8")},
        [1, 2],
    ],
)
def test_a_batch_of_another_shape_is_refused_by_name(tmp_path: Path, batch: object) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(batch))

    with pytest.raises(DatasetError, match="test_batch"):
        read_cifar10(str(tmp_path))


def test_a_folder_without_cifar10_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="has no cifar-10-batches-py with data_batch_1"):
        read_cifar10(str(tmp_path))
    with pytest.raises(DatasetError, match="does not exist"):
        read_cifar10(str(tmp_path / "nowhere"))


def test_an_archive_with_parts_is_read_as_they_are(tmp_path: Path) -> None:
    x = np.arange(2 * 4 * 4 * 3, dtype="uint8").reshape(2, 4, 4, 3)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=[[0], [5]], x_test=x[:1], y_test=[1])

    training, test = read_npz(str(tmp_path / "own.npz"), 0.2)

    assert (training.images == x).all()
    assert (training.labels.tolist(), training.classes, training.largest) == ([0, 5], 6, 255)
    assert len(test) == 1


def test_an_archive_without_parts_is_split_the_same_share_of_each_class(tmp_path: Path) -> None:
    x = np.linspace(0, 1, 20 * 4, dtype="float64").reshape(20, 2, 2)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(20) % 2)

    kept, held_out = read_npz(str(tmp_path / "own.npz"), 0.2)

    assert (len(kept), sorted(held_out.labels.tolist())) == (16, [0, 0, 1, 1])
    assert kept.images.shape == (16, 2, 2, 1)
    assert (kept.images.dtype, kept.largest) == (np.float32, 1)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": np.zeros((2, 4, 4), "uint8")}, "has x instead of x and y"),
        ({"x": np.zeros((2, 4), "uint8"), "y": [0, 1]}, r"the shape \(2, 4\)"),
        ({"x": np.zeros((2, 4, 4, 2), "uint8"), "y": [0, 1]}, r"the shape \(2, 4, 4, 2\)"),
        ({"x": np.zeros((2, 4, 4), "uint8"), "y": [0]}, "1 labels in y for 2 pictures in x"),
        ({"x": np.zeros((0, 4, 4), "uint8"), "y": []}, "0 labels in y for 0 pictures"),
        ({"x": np.zeros((2, 4, 4), "uint8"), "y": [0, -1]}, "y must be whole numbers from 0"),
        ({"x": np.zeros((2, 4, 4), "uint8"), "y": [0.5, 1]}, "y must be whole numbers from 0"),
        ({"x": np.full((2, 4, 4), 255.0), "y": [0, 1]}, "numbers from 0 to 1"),
        ({"x": np.full((2, 4, 4), np.nan), "y": [0, 1]}, "numbers from 0 to 1"),
        ({"x": np.zeros((2, 4, 4), "int64"), "y": [0, 1]}, "it is int64"),
        ({"x": np.zeros((2, 4, 4), "uint8"), "y": [0, 1]}, "holds out none of 2 pictures"),
    ],
)
def test_an_archive_of_another_shape_is_refused(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)

    with pytest.raises(DatasetError, match=said):
        read_npz(str(tmp_path / "own.npz"), 0.2)


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04 cut short"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "own.npz").write_bytes(content)

    with pytest.raises(DatasetError, match=r"own\.npz cannot be read as an \.npz archive"):
        read_npz(str(tmp_path / "own.npz"), 0.2)


def test_what_is_held_out_does_not_depend_on_chance() -> None:
    kept, held_out = hold_out(np.array([0, 1] * 5), 0.4)

    assert (kept.tolist(), held_out.tolist()) == ([0, 1, 2, 3, 6, 7], [4, 5, 8, 9])
