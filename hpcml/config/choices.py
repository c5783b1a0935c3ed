"""The options of conf/: their files, models, and what the TAB key completes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from hpcml.config.command_line import project_conf
from hpcml.config.compose import compose_from_cli
from hpcml.config.unreadable import why_unreadable
from hpcml.errors import ConfigError
from hpcml.model.run import Model
from hpcml.paths import resource_dir

_GROUP = "model"


def list_models(project: Path) -> list[Model]:
    """Return the shipped models and those of *project*'s ./conf, by name; raise `ConfigError` for a bad file.

    A model's name is that of its file. `hpcml recipes` lists them.
    """
    return [_model(name, path, project) for name, path in sorted(option_files(_GROUP, project).items())]


def option_files(group: str, project: Path, config_dirs: Sequence[Path] = ()) -> dict[str, Path]:
    """Return the file of each option of the config *group*, by the name to type, as in ``model=NAME``.

    They are hpcml's, those of *config_dirs* and those of *project*'s ./conf; of two with the same name the first in
    this order is used, as in Hydra.
    """
    found: dict[str, Path] = {}
    for folder in (resource_dir("conf"), *config_dirs, *filter(None, [project_conf(project)])):
        for path in sorted((folder / group).glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def sections_in(path: Path, group: str) -> dict[str, Any] | None:
    """Return the sections that a file of options sets, by name; None where it builds on others, which Hydra composes.

    Raises `ConfigError` for a bad file.
    """
    try:
        text = path.read_text(encoding="utf-8")
        own: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    except InterpolationResolutionError:
        return None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(why_unreadable(path, error)) from error
    if not isinstance(own, dict):
        raise ConfigError(f"{path}: an option is a mapping of keys to values")
    bases = own.pop("defaults", None) or []
    if any(base != "_self_" and not str(base).startswith("{'override ") for base in bases):
        return None
    return dict(own) if "# @package _global_" in text.splitlines() else {group: own}


def completions(before: Sequence[str], incomplete: str, project: Path) -> list[str]:
    """Return what the setting *incomplete* may become, as a shell that is at the end of the words *before* takes it.

    Those are choices, ``precision=fp32``; other keys have values that nobody knows here. To bash ``=`` is a word of its
    own, and what stands behind it another; click leaves out one that nothing stands behind.

    >>> completions(["-m", "precision", "="], "fp3", project)  # doctest: +SKIP
    ['fp32']
    """
    groups = sorted(entry.name for entry in resource_dir("conf").iterdir() if entry.is_dir())
    key, sign = ["", "", *before, *([] if incomplete else ["="])][-2:]
    if sign == "=" and key.lstrip("+") in groups:
        return [name for name in option_files(key.lstrip("+"), project) if name.startswith(incomplete)]
    plus = "+" * incomplete.startswith("+")
    group, is_chosen, begun = incomplete.lstrip("+").partition("=")
    return [
        f"{plus}{each}={name}"
        for each in groups
        if each == group or (not is_chosen and each.startswith(group))
        for name in option_files(each, project)
        if name.startswith(begun)
    ]


def _model(name: str, path: Path, project: Path) -> Model:
    sections = sections_in(path, _GROUP)
    if sections is None:
        (point,) = compose_from_cli([f"model={name}"], project=project)
        return replace(point.run.model, name=name)
    settings = sections.get(_GROUP) or {}
    recipe, framework, options = (settings.get(key) for key in ("recipe", "framework", "options"))
    return Model(
        name=name,
        recipe=None if recipe is None else str(recipe),
        framework=None if framework is None else str(framework),
        options=dict(options or {}),
    )
