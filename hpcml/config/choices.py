"""The models and studies of conf/, read from their YAML files without starting Hydra.

`list_models` is for lists of recipes and models, `completions` for the TAB key. `what_then` gives the commands that a
study suggests to type once its runs have ended, from the comment at the head of the study's file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpcml.config.command_line import project_conf
from hpcml.config.compose import Composed
from hpcml.config.unreadable import why_unreadable
from hpcml.errors import ConfigError
from hpcml.model.run import Model
from hpcml.paths import resource_dir

_GROUP = "model"
_GLOBAL = "# @package _global_"


def list_models(project: Path) -> list[Model]:
    """Return the shipped models and those of *project*'s ./conf, by name; raise `ConfigError` for a bad file.

    A model's name is that of its file. Hydra is not started: values that refer to others (``${...}``) stay as
    they are written. `hpcml recipes` lists them.
    """
    files = option_files(_GROUP, project)
    return [_model(name, files) for name in sorted(files)]


def option_files(group: str, project: Path) -> dict[str, Path]:
    """Return the file of each option of the config *group*.

    Of a shipped file and one of *project* with the same name, the shipped one is used, as in Hydra. Keys are the names
    to type, as in ``model=NAME``. A group without files has an empty dict.
    """
    shipped = resource_dir("conf")
    own = project_conf(project)
    found: dict[str, Path] = {}
    for folder in (shipped, *([] if own is None else [own])):
        for path in sorted((folder / group).glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


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


def _model(name: str, files: Mapping[str, Path]) -> Model:
    settings = _settings(name, files)
    recipe, framework, options = (settings.get(key) for key in ("recipe", "framework", "options"))
    return Model(
        name=name,
        recipe=None if recipe is None else str(recipe),
        framework=None if framework is None else str(framework),
        options=dict(options or {}),
    )


def _settings(name: str, files: Mapping[str, Path], above: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the keys of the group that a file sets, over those of the files that its defaults list names."""
    path = files[name]
    try:
        text = path.read_text(encoding="utf-8")
        own = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(why_unreadable(path, error)) from error
    if not isinstance(own, dict):
        raise ConfigError(f"{path}: a model is a mapping of keys to values")
    bases = own.pop("defaults", None) or []
    mine: Any = own.get(_GROUP) or {} if _GLOBAL in text.splitlines() else own
    merged: dict[str, Any] = {}
    for base in bases if "_self_" in bases else [*bases, "_self_"]:
        other = str(base).removeprefix(f"/{_GROUP}/")
        if base == "_self_":
            merged = _over(merged, mine)
        elif other in files and other not in (*above, name):
            merged = _over(merged, _settings(other, files, (*above, name)))
    return merged


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, *above* winning key by key, in the options too."""
    options = {**(below.get("options") or {}), **(above.get("options") or {})}
    return {**below, **above, "options": options}


_COMMAND = re.compile(r"#\s+(hpcml (?!run ).*?)(?:\s{2}.*)?")  # what follows two spaces explains it
_EXPERIMENT = re.compile(r"--experiment \S+")


def what_then(points: Sequence[Composed]) -> list[str]:
    """Return the commands that the studies of *points* suggest, with the runs' own experiment; may be empty.

    Read from the comment at the head of each study's file: its indented lines that begin with ``hpcml``, but for
    ``hpcml run``. Each command comes once, in the order of the points. `hpcml run` prints them.
    """
    found = [command for point in points for command in _commands(point)]
    return list(dict.fromkeys(found))


def _commands(point: Composed) -> list[str]:
    chosen = [word.removeprefix("study=") for word in point.overrides if word.startswith("study=")]
    if not chosen:
        return []
    folders = [resource_dir("conf"), *map(Path, point.user_config)]  # in Hydra's order
    files = [folder / "study" / f"{name}.yaml" for name in chosen for folder in folders]
    text = next((file.read_text(encoding="utf-8") for file in files if file.is_file()), "")
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    commands = [match[1] for line in head if (match := _COMMAND.fullmatch(line))]
    experiment = f"--experiment {shlex.quote(point.run.experiment)}"
    return [_EXPERIMENT.sub(lambda _: experiment, command) for command in commands]
