"""Pictures in folders as ImageNet is kept (train/CLASS/*.jpg): listed at once, decoded when they are needed."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcml_train.data.pictures import hold_out
from hpcml_train.errors import DatasetError

Array = Any  # numpy.ndarray, whose type parameters differ between the versions of NumPy

_SUFFIXES = (".jpg", ".jpeg", ".png")
_VALIDATION = ("val", "validation", "test")
_LARGER = 256 / 224  # the shorter side before the middle is cut out, as ResNet's authors validated


@dataclass(frozen=True)
class PictureFiles:
    """Files with one label each."""

    paths: tuple[str, ...]
    labels: Array  # (count,), int64, from 0: the classes in the order of their names

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True)
class PictureFolder:
    """The pictures of a folder, to train on and to validate with; `classes` are sorted by name."""

    classes: tuple[str, ...]
    training: PictureFiles
    validation: PictureFiles


def find_pictures(path: str, holdout: float) -> PictureFolder:
    """Return the pictures below *path*: train/CLASS/*.jpg or .png, and the same in val, validation or test.

    Without such a folder the share *holdout* of each class is held out, in the order of the files' names. Raises
    `DatasetError`.
    """
    if importlib.util.find_spec("PIL") is None:
        raise DatasetError("data=image_folder needs Pillow to decode pictures: pip install pillow")
    train = os.path.join(path, "train")
    if not os.path.isdir(train):
        raise DatasetError(f"data.path={path} has no folder train with a folder for each class")
    classes = _folders(train)
    if len(classes) < 2:
        raise DatasetError(f"{train} has {len(classes)} class folder(s): at least 2 are needed")
    numbers = {name: number for number, name in enumerate(classes)}
    training = _find(train, classes, numbers)
    validation = _find_validation(path, numbers)
    if validation is None:
        kept, held_out = hold_out(training.labels, holdout)
        if not len(held_out):
            raise DatasetError(f"{path} has no folder val, and data.holdout={holdout:g} holds out no picture of train")
        training, validation = _select(training, kept), _select(training, held_out)
    return PictureFolder(classes=tuple(classes), training=training, validation=validation)


def read_picture(path: str, side: int) -> Array:
    """Return the picture *path* as uint8 of shape (side, side, 3), RGB.

    The shorter side is scaled to *side* x 256/224, and the middle is cut out. Raises `DatasetError`.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as file:
            picture = file.convert("RGB")
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        # PNG's faults are SyntaxErrors there
        raise DatasetError(f"{path} cannot be decoded: {error}: remove or replace it") from error
    scale = side * _LARGER / min(picture.size)
    width, height = (max(side, round(length * scale)) for length in picture.size)
    left, top = (width - side) // 2, (height - side) // 2
    resized = picture.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + side, top + side)))


def _find_validation(path: str, numbers: dict[str, int]) -> PictureFiles | None:
    for name in _VALIDATION:
        folder = os.path.join(path, name)
        if os.path.isdir(folder):
            classes = _folders(folder)
            unknown = [one for one in classes if one not in numbers]
            if unknown:
                raise DatasetError(f"{os.path.join(folder, unknown[0])} is a class that train does not have")
            if not classes:
                raise DatasetError(f"{folder} has no class folder")
            return _find(folder, classes, numbers)
    return None


def _find(folder: str, classes: list[str], numbers: dict[str, int]) -> PictureFiles:
    paths: list[str] = []
    labels: list[int] = []
    for name in classes:
        inner = os.path.join(folder, name)
        found = sorted(file for file in os.listdir(inner) if file.lower().endswith(_SUFFIXES))
        if not found:
            raise DatasetError(f"{inner} has no picture ({', '.join(_SUFFIXES)}): add some, or remove the folder")
        paths += [os.path.join(inner, file) for file in found]
        labels += [numbers[name]] * len(found)
    return PictureFiles(paths=tuple(paths), labels=np.asarray(labels, dtype=np.int64))


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error


def _select(files: PictureFiles, indices: Array) -> PictureFiles:
    return PictureFiles(paths=tuple(files.paths[index] for index in indices.tolist()), labels=files.labels[indices])
