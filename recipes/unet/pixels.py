"""What a U-Net is given, the same for every framework: its settings, and pictures with masks that fit them."""

from __future__ import annotations

from dataclasses import dataclass

from shapes import CLASSES, draw

from hpcml_train.data.masks import IGNORED, Masked, read_masked
from hpcml_train.errors import RecipeError
from hpcml_train.task import Task

HALVINGS = 3  # the picture's sides must be multiples of 2 ** HALVINGS
GROUPS = 4  # of GroupNorm
EVALUATION_BATCH = 50  # bounds the memory only


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of recipe.toml; the defaults are those of conf/model/unet.yaml."""

    classes: int = 4
    width: int = 8
    image_size: int = 64
    pictures: int = 400


def open_masked(task: Task, options: Options) -> tuple[Masked, Masked]:
    """Return what is trained on and what is validated on; raise `RecipeError` where it does not fit *options*."""
    training, validation = _read(task, options)
    _check(training, validation, options)
    return training, validation


def _read(task: Task, options: Options) -> tuple[Masked, Masked]:
    if task.choose("data", ("shapes", "mask_pairs")) == "mask_pairs":
        if task.data_path is None:
            raise RecipeError("data=mask_pairs needs data.path: a folder of .npz files with an image and a mask each")
        return read_masked(task.data_path, task.holdout)
    if options.classes < CLASSES:
        raise RecipeError(f"model.options.classes={options.classes}: data=shapes has {CLASSES} classes")
    held_out = max(1, round(options.pictures * task.holdout))
    side = options.image_size
    return draw(max(1, options.pictures - held_out), side, part=0), draw(held_out, side, part=1)


def _check(training: Masked, validation: Masked, options: Options) -> None:
    _, height, width, _ = training.images.shape
    step = 2**HALVINGS
    if height % step or width % step:
        raise RecipeError(
            f"pictures of {height}x{width} pixels cannot be halved {HALVINGS} times: use multiples of {step}"
        )
    for masked in (training, validation):
        if masked.classes > options.classes:
            raise RecipeError(
                f"model.options.classes={options.classes}: the masks have classes up to {masked.classes - 1}"
            )
        if bool((masked.masks == IGNORED).all()):
            raise RecipeError(f"the masks hold nothing but {IGNORED}, which is left out")
