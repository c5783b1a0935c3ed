"""The recipes that can be chosen, shipped or the user's own, and what each device supports, for ``hpcml recipes``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hpcml.config.choices import list_models
from hpcml.errors import ConfigError
from hpcml.model.hardware import choose_gpus
from hpcml.model.precision import CAPABILITIES, CPU, Device
from hpcml.model.recipe import (
    ListedRecipe,
    PrecisionOutcome,
    find_program,
    outcome,
    own_recipes,
    read_recipe,
    recipe_names,
)
from hpcml.paths import resource_dir
from hpcml.spelling import did_you_mean

CPU_AND_GPUS = ("cpu", "6.0", "7.0", "7.5", "8.0", "9.0")  # of Pascal, Volta, Turing, Ampere and Hopper


def list_recipes(project: Path, name: str | None = None) -> list[ListedRecipe]:
    """Return all recipes, shipped and of *project*, or the one called *name*.

    Raises `ConfigError` where it is not there, or its recipe.toml is wrong.
    """
    shipped = resource_dir("recipes")
    own = own_recipes(project, shipped)
    models = list_models(project)
    found = []
    names = recipe_names(shipped, own)
    if name is not None and name not in names:
        its = next((model.recipe for model in models if model.name == name and model.recipe), None)
        guess = f"it is a model of the recipe {its}" if its else did_you_mean(name, names)
        raise ConfigError(f"there is no recipe {name}: {guess or 'choose ' + ', '.join(names)}")
    for each in names if name is None else [name]:
        folder = find_program(each, shipped, own).parent
        chosen_by = [model for model in models if model.recipe == each]
        is_own = folder.parent != shipped
        found.append(ListedRecipe(recipe=read_recipe(folder), folder=folder, is_own=is_own, models=chosen_by))
    return found


def outcomes(listed: Sequence[ListedRecipe], devices: Sequence[str] = ()) -> list[PrecisionOutcome]:
    """Return what each precision does in each recipe and framework on *devices*: native, emulated, or refused.

    *devices* are words for `find_device`; none means the CPU and one GPU of each generation (`CPU_AND_GPUS`).
    """
    known = {name: find_device(name) for name in devices or CPU_AND_GPUS}
    return [
        outcome(item.recipe, framework, precision, device, label)
        for item in listed
        for framework in item.recipe.frameworks
        for precision in CAPABILITIES
        for label, device in known.items()
    ]


def find_device(name: str) -> Device:
    """Return the device that *name* means: cpu, a compute capability, or a GPU of hpcml's table.

    Raises `ConfigError` for a part of a name that fits GPUs of several compute capabilities, or none.

    >>> find_device("8.0").compute_capability
    (8, 0)
    """
    if name == "cpu":
        return CPU
    version = re.fullmatch(r"(\d+)\.(\d+)", name)
    if version is not None:
        return Device(kind="cuda", compute_capability=(int(version[1]), int(version[2])))
    models = choose_gpus([name])
    capabilities = sorted({model.compute_capability for model in models})
    if len(capabilities) > 1:
        known = ", ".join(f"{major}.{minor}" for major, minor in capabilities)
        raise ConfigError(f"--device {name} is a part of several names, of compute capabilities {known}: name one")
    return Device(kind="cuda", name=name, compute_capability=capabilities[0])
