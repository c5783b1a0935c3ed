"""The data sets digits and MNIST, read from files on this machine; nothing is downloaded."""

from __future__ import annotations

import gzip
import importlib.util
import os
import struct
from typing import BinaryIO

import numpy as np

from hpcml_train.data.pictures import Pictures, read_npz, split
from hpcml_train.errors import DatasetError, RecipeError
from hpcml_train.task import Task

_DIGITS_PIXELS = 64
_IDX_IMAGES, _IDX_LABELS = 0x0803, 0x0801  # unsigned bytes in three and in one dimension
_MNIST_FOLDERS = ("", "raw", os.path.join("MNIST", "raw"))  # the last is how torchvision leaves it


def read(task: Task) -> tuple[Pictures, Pictures]:
    """Return what *task* is trained on and validated on, of its data ``digits`` or ``mnist``.

    Raises `RecipeError` for other data, or without a path to MNIST, `DatasetError` where it cannot be read.
    """
    if task.choose("data", ("digits", "mnist")) == "digits":
        return split(read_digits(), task.holdout)
    if task.data_path is None:
        raise RecipeError("data=mnist needs data.path: a folder with its IDX files, or mnist.npz")
    return read_mnist(task.data_path, task.holdout)


def read_digits() -> Pictures:
    """Return the 1797 digits of 8x8 pixels that are shipped with scikit-learn, which is not imported.

    They are UCI's optical recognition of handwritten digits. Raises `DatasetError` where they are absent.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DatasetError("data=digits is a file of scikit-learn, which is missing: pip install 'hpcml[torch]'")
    path = os.path.join(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            rows = [bytes(map(int, line.split(","))) for line in file]
    except (OSError, EOFError, ValueError) as error:
        raise DatasetError(f"data=digits: {path} cannot be read ({error}): reinstall scikit-learn") from error
    if not rows or any(len(row) != _DIGITS_PIXELS + 1 for row in rows):
        raise DatasetError(f"data=digits: {path} is not the file that hpcml knows: install another scikit-learn")
    table = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), _DIGITS_PIXELS + 1)
    images, labels = table[:, :_DIGITS_PIXELS].reshape(-1, 8, 8, 1), table[:, _DIGITS_PIXELS].astype(np.int64)
    return Pictures(images=images, labels=labels, classes=10, largest=16)


def read_mnist(path: str, holdout: float) -> tuple[Pictures, Pictures]:
    """Return MNIST's 60000 training and 10000 test images of 28x28 from *path*: IDX files, or Keras's mnist.npz.

    Files may be gzipped and in torchvision's folders. Of an archive without test images the share *holdout* of each
    class is held out. Raises `DatasetError`.
    """
    if not os.path.exists(path):
        raise DatasetError(f"data.path={path} does not exist")
    archive = os.path.join(path, "mnist.npz") if os.path.isdir(path) else path
    if os.path.isfile(archive):
        pair = read_npz(archive, holdout)
        if pair[0].images.shape[3] != 1:
            raise DatasetError(f"{archive} has pictures in colour, and data=mnist is grey: choose data=npz of a resnet")
        return pair
    return _read_idx_pair(path, "train"), _read_idx_pair(path, "t10k")


def _read_idx_pair(path: str, part: str) -> Pictures:
    shape, pixels = _read_idx(_find_idx(path, part, "images", 3), _IDX_IMAGES)
    labels_file = _find_idx(path, part, "labels", 1)
    (count,), labels = _read_idx(labels_file, _IDX_LABELS)
    if count != shape[0]:
        raise DatasetError(f"{labels_file} has {count} labels for {shape[0]} images")
    classes = np.frombuffer(labels, dtype=np.uint8).astype(np.int64)
    images = np.frombuffer(pixels, dtype=np.uint8).reshape(*shape, 1).copy()  # torch takes what may be written to
    return Pictures(images=images, labels=classes, classes=int(classes.max(initial=0)) + 1, largest=255)


def _find_idx(path: str, part: str, what: str, dimensions: int) -> str:
    for folder in _MNIST_FOLDERS:
        for dot in ("-", "."):
            for suffix in ("", ".gz"):
                name = os.path.join(path, folder, f"{part}-{what}{dot}idx{dimensions}-ubyte{suffix}")
                if os.path.isfile(name):
                    return name
    raise DatasetError(f"data.path={path} has neither mnist.npz nor {part}-{what}-idx{dimensions}-ubyte[.gz]")


def _read_idx(name: str, magic: int) -> tuple[tuple[int, ...], bytes]:
    try:
        with _open(name) as file:
            content = file.read()
    except (OSError, EOFError) as error:
        raise DatasetError(f"{name} cannot be read: {error}") from error
    dimensions = magic & 0xFF
    begin = 4 + 4 * dimensions
    if len(content) < begin or struct.unpack(">I", content[:4])[0] != magic:
        raise DatasetError(f"{name} is no IDX file of unsigned bytes in {dimensions} dimension(s)")
    shape = struct.unpack(f">{dimensions}I", content[4:begin])
    size = 1
    for length in shape:
        size *= length
    if len(content) - begin != size:
        raise DatasetError(f"{name} is cut short or damaged: {len(content) - begin} bytes of data instead of {size}")
    return shape, content[begin:]


def _open(name: str) -> BinaryIO:
    return gzip.open(name, "rb") if name.endswith(".gz") else open(name, "rb")  # type: ignore[return-value]
