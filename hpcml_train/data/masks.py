"""Pictures with a class for each pixel (segmentation), one .npz file each with an image and a mask."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcml_train.data.pictures import hold_out
from hpcml_train.errors import DatasetError

Array = Any  # numpy.ndarray, whose type parameters differ between the versions of NumPy

IGNORED = 255  # in a mask: nobody knows, as in PASCAL VOC and Cityscapes
_VALIDATION = ("val", "validation", "test")


@dataclass(frozen=True)
class Masked:
    """Pictures of equal size with masks."""

    images: Array  # (count, height, width, channels), float32, from 0 to 1
    masks: Array  # (count, height, width), uint8: a class, or IGNORED

    def __len__(self) -> int:
        return len(self.masks)

    @property
    def classes(self) -> int:
        """The number of classes: one more than the greatest in the masks."""
        return int(self.masks[self.masks != IGNORED].max(initial=0)) + 1


def read_masked(path: str, holdout: float) -> tuple[Masked, Masked]:
    """Return the training and validation pictures of the folder *path*.

    They are train/*.npz and val/*.npz (or validation, test), or *.npz, of which the share *holdout* is held out, spread
    evenly over the files in the order of their names. Each has ``image``, uint8 or floats from 0 to 1, of shape
    (height, width) or (height, width, channels), and ``mask``, integers of shape (height, width) from 0; 255 is left
    out. Raises `DatasetError`.
    """
    if not os.path.isdir(path):
        raise DatasetError(f"data.path={path} is no folder: give one with .npz files of an image and a mask each")
    train = os.path.join(path, "train")
    if not os.path.isdir(train):
        names = _archives(path)
        kept, held_out = hold_out(np.zeros(len(names), dtype=np.int64), holdout)
        if not len(held_out):
            raise DatasetError(f"{path}: data.holdout={holdout:g} holds out none of {len(names)} files")
        pair = _read_all([names[index] for index in kept]), _read_all([names[index] for index in held_out])
    else:
        other = next((folder for folder in _VALIDATION if os.path.isdir(os.path.join(path, folder))), None)
        if other is None:
            raise DatasetError(f"{path} has a folder train, but none of {', '.join(_VALIDATION)}")
        pair = _read_all(_archives(train)), _read_all(_archives(os.path.join(path, other)))
    if pair[0].images.shape[1:] != pair[1].images.shape[1:]:
        raise DatasetError(f"{path}: pictures to train on and to validate with differ in size")
    return pair


def _archives(folder: str) -> list[str]:
    names = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".npz"))
    if not names:
        raise DatasetError(f"{folder} has no .npz file")
    return names


def _read_all(names: list[str]) -> Masked:
    images: list[Array] = []
    masks: list[Array] = []
    for name in names:
        image, mask = _read(name)
        if images and image.shape != images[0].shape:
            raise DatasetError(
                f"{name} is a picture of {image.shape}, and {names[0]} of {images[0].shape}: make them equal"
            )
        images.append(image)
        masks.append(mask)
    return Masked(images=np.stack(images), masks=np.stack(masks))


def _read(name: str) -> tuple[Array, Array]:
    try:
        # opened here: NumPy forgets to close what turns out to be no archive
        with open(name, "rb") as file, np.load(file, allow_pickle=False) as archive:
            image, mask = archive["image"], archive["mask"]
    except (OSError, ValueError, KeyError, EOFError, AttributeError, IndexError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{name} cannot be read as an .npz archive with image and mask: {error}") from error
    complaint = _complaint(image, mask)
    if complaint is not None:
        raise DatasetError(f"{name}: {complaint}")
    scaled = image.astype(np.float32) / (255 if image.dtype == np.uint8 else 1)
    return scaled[..., np.newaxis] if image.ndim == 2 else scaled, mask.astype(np.uint8)


def _complaint(image: Array, mask: Array) -> str | None:
    if image.ndim not in (2, 3) or mask.ndim != 2 or image.shape[:2] != mask.shape or not mask.size:
        return (
            f"image is {image.shape} and mask {mask.shape} instead of (height, width[, channels]) and (height, width)"
        )
    if mask.dtype.kind not in "iu" or int(mask.min()) < 0 or int(mask.max()) > IGNORED:
        return f"mask must hold whole numbers from 0 to {IGNORED}"
    in_range = image.dtype == np.uint8 or (
        image.dtype.kind == "f" and float(image.min()) >= 0 and float(image.max()) <= 1
    )
    return None if in_range else f"image must be bytes (uint8), or numbers from 0 to 1; it is {image.dtype}"
