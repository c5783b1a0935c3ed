"""Labelled pictures as NumPy arrays: CIFAR-10 as published, and .npz archives; nothing is downloaded."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcml_train.errors import DatasetError

Array = Any  # numpy.ndarray, whose type parameters differ between the versions of NumPy

_CIFAR_FOLDER = "cifar-10-batches-py"
_CIFAR_SHAPE = (3, 32, 32)  # of a row of 3072 bytes: all red, then green, then blue
_CIFAR_CLASSES = 10
_CIFAR_PARTS = (tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",))


@dataclass(frozen=True)
class Pictures:
    """Pictures of equal size with one label each."""

    images: Array  # (count, height, width, channels); 1 or 3 channels
    labels: Array  # (count,), int64, from 0
    classes: int
    largest: float  # what white is: 255 for bytes, 1 for floating point numbers

    def __len__(self) -> int:
        return len(self.labels)


def read_cifar10(path: str) -> tuple[Pictures, Pictures]:
    """Return CIFAR-10's training and test pictures (32x32x3) from *path*: cifar-10-batches-py, or its parent folder.

    The five training batches need not all be there, so that a part can be tried. Raises `DatasetError`.
    """
    if not os.path.exists(path):
        raise DatasetError(f"data.path={path} does not exist")
    inner = os.path.join(path, _CIFAR_FOLDER)
    folder = inner if os.path.isdir(inner) else path
    found = []
    for names in _CIFAR_PARTS:
        files = [name for name in (os.path.join(folder, name) for name in names) if os.path.isfile(name)]
        if not files:
            raise DatasetError(
                f"data.path={path} has no {_CIFAR_FOLDER} with {names[0]}: unpack cifar-10-python.tar.gz"
            )
        parts = [_read_cifar_batch(name) for name in files]
        images = np.concatenate([part[0] for part in parts])
        labels = np.concatenate([part[1] for part in parts])
        found.append(Pictures(images=images, labels=labels, classes=_CIFAR_CLASSES, largest=255))
    return found[0], found[1]


def read_npz(path: str, holdout: float) -> tuple[Pictures, Pictures]:
    """Return the training and validation pictures of the archive *path*.

    It holds x_train, y_train, x_test and y_test, or x and y, of which the share *holdout* of each class is held out.
    Pictures have the shape (count, height, width) or (count, height, width, channels), as uint8 or floats from 0 to 1.
    Raises `DatasetError`.
    """
    if not os.path.isfile(path):
        raise DatasetError(f"data.path={path} is no file: give an .npz with x and y")
    arrays = _load_npz(path)
    if {"x_train", "y_train", "x_test", "y_test"} <= set(arrays):
        pairs = [_as_pictures(path, arrays[f"x_{part}"], arrays[f"y_{part}"], part) for part in ("train", "test")]
        if pairs[0].images.shape[1:] != pairs[1].images.shape[1:]:
            raise DatasetError(f"{path}: pictures of x_train and x_test differ in size")
        return pairs[0], pairs[1]
    if {"x", "y"} <= set(arrays):
        whole = _as_pictures(path, arrays["x"], arrays["y"], "")
        kept, held_out = split(whole, holdout)
        if not len(held_out):
            raise DatasetError(f"{path}: data.holdout={holdout:g} holds out none of {len(whole)} pictures")
        return kept, held_out
    raise DatasetError(f"{path} has {', '.join(sorted(arrays)) or 'nothing'} instead of x and y")


def hold_out(labels: Array, holdout: float) -> tuple[Array, Array]:
    """Return the indices without and with the share *holdout* of each class, both ascending.

    >>> [part.tolist() for part in hold_out(np.array([0, 0, 1, 1]), 0.5)]
    [[0, 2], [1, 3]]
    """
    seen: dict[int, int] = {}
    is_held_out = np.zeros(len(labels), dtype=bool)
    for index, label in enumerate(labels.tolist()):
        count = seen[label] = seen.get(label, 0) + 1
        is_held_out[index] = int(count * holdout) > int((count - 1) * holdout)
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def split(pictures: Pictures, holdout: float) -> tuple[Pictures, Pictures]:
    """Return *pictures* without and with the share *holdout* of each class, whatever the seed."""
    kept, held_out = (
        replace(pictures, images=pictures.images[indices], labels=pictures.labels[indices])
        for indices in hold_out(pictures.labels, holdout)
    )
    return kept, held_out


def _load_npz(path: str) -> Mapping[str, Array]:
    try:
        # opened here: NumPy forgets to close what turns out to be no archive
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path} cannot be read as an .npz archive: {error}") from error


def _as_pictures(path: str, x: Array, y: Array, part: str) -> Pictures:
    names = ("x", "y") if not part else (f"x_{part}", f"y_{part}")
    images = x[..., np.newaxis] if x.ndim == 3 else x
    if images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise DatasetError(f"{path}: {names[0]} has the shape {x.shape} instead of (count, height, width[, 1 or 3])")
    labels = y.reshape(-1)  # Keras gives CIFAR's as a column
    if len(labels) != len(images) or not len(images):
        raise DatasetError(f"{path}: {len(labels)} labels in {names[1]} for {len(images)} pictures in {names[0]}")
    if labels.dtype.kind not in "iu" or int(labels.min()) < 0:
        raise DatasetError(f"{path}: {names[1]} must be whole numbers from 0")
    is_bytes = images.dtype == np.uint8
    if not is_bytes:
        _check_range(path, names[0], images)
    return Pictures(
        images=images if is_bytes else images.astype(np.float32),
        labels=labels.astype(np.int64),
        classes=int(labels.max()) + 1,
        largest=255 if is_bytes else 1,
    )


def _check_range(path: str, name: str, images: Array) -> None:
    if images.dtype.kind != "f" or not (float(images.min()) >= 0 and float(images.max()) <= 1):
        raise DatasetError(f"{path}: {name} must be bytes (uint8), or numbers from 0 to 1; it is {images.dtype}")


class _ArraysOnly(pickle.Unpickler):
    """Takes nothing but NumPy's arrays out of a pickle: any other name could run a program."""

    _ALLOWED = frozenset(
        [("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")]
        + [(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")]
    )

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - what the base class returns
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which CIFAR-10 has no use for")
        return super().find_class(module, name)


def _read_cifar_batch(name: str) -> tuple[Array, Array]:
    try:
        with open(name, "rb") as file:
            batch = _ArraysOnly(file, encoding="bytes").load()
        pixels, labels = batch[b"data"], np.asarray(batch[b"labels"], dtype=np.int64)
    except (OSError, EOFError, ValueError, KeyError, TypeError, ImportError, pickle.UnpicklingError) as error:
        raise DatasetError(f"{name} cannot be read as a batch of CIFAR-10: {type(error).__name__}: {error}") from error
    size = _CIFAR_SHAPE[0] * _CIFAR_SHAPE[1] * _CIFAR_SHAPE[2]
    is_whole = getattr(pixels, "dtype", None) == np.uint8 and pixels.shape == (len(labels), size)
    if not is_whole or not len(labels) or not 0 <= int(labels.min()) <= int(labels.max()) < _CIFAR_CLASSES:
        raise DatasetError(f"{name} is no batch of CIFAR-10: rows of {size} bytes with labels from 0 to 9")
    return pixels.reshape(-1, *_CIFAR_SHAPE).transpose(0, 2, 3, 1), labels
