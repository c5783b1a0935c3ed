"""Where pictures come from: drawn at random, arrays on the device, or files that are decoded when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own custom

from hpcml_train.data.folders import PictureFiles, find_pictures, read_picture
from hpcml_train.data.pictures import Pictures, read_cifar10, read_npz
from hpcml_train.errors import DatasetError, RecipeError
from hpcml_train.task import Task

DATA = ("synthetic", "cifar10", "npz", "image_folder")
SYNTHETIC_SAMPLES = 512
SYNTHETIC_SEED = 0  # not the run's: every run is given the same pictures
# the means and standard deviations of ImageNet's channels, which all its published models are trained with
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)

Pair = tuple[torch.Tensor, torch.Tensor]  # pictures (N, 3, side, side) in FP32, labels


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
    """Labelled pictures, fetched by their numbers, which lie on the device."""

    count: int
    classes: int
    fetch: Callable[[torch.Tensor], Pair]


def open_sources(task: Task, side: int, device: torch.device, *, readers: int, classes: int) -> tuple[Source, Source]:
    """Return what is trained on and what is validated on; nothing is validated on synthetic pictures."""
    chosen = task.choose("data", DATA)
    if chosen == "synthetic":
        return _draw(side, classes, device), Source(count=0, classes=classes, fetch=_fetch_none)
    if task.data_path is None:
        raise RecipeError(f"data={chosen} needs data.path")
    if chosen == "image_folder":
        folder = find_pictures(task.data_path, task.holdout)
        pool = ThreadPoolExecutor(readers, thread_name_prefix="decode")
        first, second = (
            _from_files(files, len(folder.classes), side, device, pool)
            for files in (folder.training, folder.validation)
        )
        return first, second
    training, validation = (
        read_cifar10(task.data_path) if chosen == "cifar10" else read_npz(task.data_path, task.holdout)
    )
    return _from_arrays(training, side, device), _from_arrays(validation, side, device)


def _draw(side: int, classes: int, device: torch.device) -> Source:
    generator = torch.Generator().manual_seed(SYNTHETIC_SEED)
    images = torch.randn(SYNTHETIC_SAMPLES, 3, side, side, generator=generator).to(device)
    labels = torch.randint(classes, (SYNTHETIC_SAMPLES,), generator=generator).to(device)
    return Source(count=SYNTHETIC_SAMPLES, classes=classes, fetch=lambda chosen: (images[chosen], labels[chosen]))


def _fetch_none(_: torch.Tensor) -> Pair:
    raise DatasetError("data=synthetic has nothing to validate on")


def _from_arrays(pictures: Pictures, side: int, device: torch.device) -> Source:
    images = torch.from_numpy(pictures.images).permute(0, 3, 1, 2).contiguous().to(device)
    labels = torch.from_numpy(pictures.labels).to(device)

    def fetch(chosen: torch.Tensor) -> Pair:
        part = images[chosen].float() / pictures.largest
        if part.shape[-2:] != (side, side):
            part = F.interpolate(part, size=(side, side), mode="bilinear", align_corners=False)
        return _normalize(part.expand(-1, 3, -1, -1)), labels[chosen]

    return Source(count=len(pictures), classes=pictures.classes, fetch=fetch)


def _from_files(files: PictureFiles, classes: int, side: int, device: torch.device, pool: ThreadPoolExecutor) -> Source:
    labels = torch.from_numpy(files.labels).to(device)

    def read(number: int) -> torch.Tensor:
        return torch.tensor(read_picture(files.paths[number], side))

    def fetch(chosen: torch.Tensor) -> Pair:
        part = torch.stack(list(pool.map(read, chosen.tolist()))).to(device)
        return _normalize(part.permute(0, 3, 1, 2).float() / 255), labels[chosen]

    return Source(count=len(files), classes=classes, fetch=fetch)


def _normalize(images: torch.Tensor) -> torch.Tensor:
    mean, deviation = (torch.tensor(three, device=images.device).view(1, 3, 1, 1) for three in (MEAN, DEVIATION))
    return (images - mean) / deviation
