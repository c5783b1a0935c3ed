"""What pictures a ResNet is given, and how they are prepared, the same for every framework; and as NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcml_train.data.folders import PictureFiles, find_pictures, read_picture
from hpcml_train.data.pictures import Pictures, read_cifar10, read_npz
from hpcml_train.data.twister import Twister
from hpcml_train.errors import DatasetError, RecipeError
from hpcml_train.task import Task

DATA = ("synthetic", "cifar10", "npz", "image_folder")
SYNTHETIC_SAMPLES = 512
SYNTHETIC_SEED = 0  # not the run's: every run is given the same pictures
# the means and standard deviations of ImageNet's channels, which all its published models are trained with
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)

Array = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[Array, Array]  # pictures (N, side, side, 3) in FP32, labels
Resize = Callable[[Array, int], Array]  # bilinear, pictures of any side to the one that is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of recipe.toml; the defaults are those of conf/model/resnet18.yaml."""

    classes: int = 1000
    image_size: int = 64
    readers: int = 4

    def check_classes(self, found: int, data: str | None) -> None:
        """Raise `RecipeError` where the network has fewer outputs than the data has classes."""
        if found > self.classes:
            raise RecipeError(f"model.options.classes={self.classes}: data={data} has {found} classes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Labelled pictures as NumPy arrays, fetched by their numbers."""

    count: int
    classes: int
    fetch: Callable[[Array], Pair]


def open_sources(task: Task, options: Options, resize: Resize) -> tuple[Source, Source]:
    """Return what is trained on and what is validated on; nothing is validated on synthetic pictures."""
    chosen, side = task.choose("data", DATA), options.image_size
    if chosen == "synthetic":
        return _draw(side, options.classes), Source(count=0, classes=options.classes, fetch=_fetch_none)
    if task.data_path is None:
        raise RecipeError(f"data={chosen} needs data.path")
    if chosen == "image_folder":
        folder = find_pictures(task.data_path, task.holdout)
        pool = ThreadPoolExecutor(options.readers, thread_name_prefix="decode")
        first, second = (
            _from_files(files, len(folder.classes), side, pool) for files in (folder.training, folder.validation)
        )
        return first, second
    training, validation = (
        read_cifar10(task.data_path) if chosen == "cifar10" else read_npz(task.data_path, task.holdout)
    )
    return _from_arrays(training, side, resize), _from_arrays(validation, side, resize)


def _draw(side: int, classes: int) -> Source:
    """Return the pictures that torch draws: as it does, channel by channel, up to the last digits."""
    twister = Twister(SYNTHETIC_SEED)
    drawn = twister.normal(SYNTHETIC_SAMPLES * 3 * side * side).reshape(SYNTHETIC_SAMPLES, 3, side, side)
    images = np.ascontiguousarray(drawn.transpose(0, 2, 3, 1))
    labels = twister.integers(classes, SYNTHETIC_SAMPLES).astype(np.int32)
    return Source(count=SYNTHETIC_SAMPLES, classes=classes, fetch=lambda chosen: (images[chosen], labels[chosen]))


def _fetch_none(_: Array) -> Pair:
    raise DatasetError("data=synthetic has nothing to validate on")


def _from_arrays(pictures: Pictures, side: int, resize: Resize) -> Source:
    def fetch(chosen: Array) -> Pair:
        part = pictures.images[chosen].astype(np.float32) / np.float32(pictures.largest)
        if part.shape[1:3] != (side, side):
            part = resize(part, side)
        return _normalize(part), pictures.labels[chosen].astype(np.int32)

    return Source(count=len(pictures), classes=pictures.classes, fetch=fetch)


def _from_files(files: PictureFiles, classes: int, side: int, pool: ThreadPoolExecutor) -> Source:
    def read(number: int) -> Array:
        found: Array = read_picture(files.paths[number], side)
        return found

    def fetch(chosen: Array) -> Pair:
        part = np.stack(list(pool.map(read, chosen.tolist()))).astype(np.float32)
        return _normalize(part / np.float32(255)), files.labels[chosen].astype(np.int32)

    return Source(count=len(files), classes=classes, fetch=fetch)


def _normalize(images: Array) -> Array:
    """Return pictures of three channels; grey ones have the same three times."""
    mean, deviation = (np.array(three, np.float32) for three in (MEAN, DEVIATION))
    normal: Array = (images - mean) / deviation
    return normal
