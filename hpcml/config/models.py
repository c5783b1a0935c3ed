"""The models that can be chosen, as their files say; read without starting Hydra."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpcml.config.wording import in_one_line
from hpcml.config.words import project_conf
from hpcml.errors import ConfigError
from hpcml.resources import resource_dir
from hpcml.spec import Model

_GROUP = "model"
_GLOBAL = "# @package _global_"


def list_models(project: Path) -> list[Model]:
    """Return the models of hpcml and of *project*'s ./conf, by the word to type; `ConfigError` for a bad file."""
    files = option_files(_GROUP, project)
    return [_model(name, files) for name in sorted(files)]


def option_files(group: str, project: Path) -> dict[str, Path]:
    """Map each option of *group* to its file; a shipped one hides one of *project* with the same name, as in Hydra."""
    shipped = resource_dir("conf")
    own = project_conf(project, shipped)
    found: dict[str, Path] = {}
    for folder in (shipped, *([] if own is None else [own])):
        for path in sorted((folder / group).glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


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
        raise ConfigError(f"{path}: {in_one_line(str(error))}") from error
    if not isinstance(own, dict):
        raise ConfigError(f"{path}: a model is a mapping of keys to values")
    bases = own.pop("defaults", None) or []
    mine: Any = own.get(_GROUP) or {} if _GLOBAL in text.splitlines() else own
    merged: dict[str, Any] = {}
    for base in bases:
        if isinstance(base, str) and base in files and base not in (*above, name):
            merged = _over(merged, _settings(base, files, (*above, name)))
    return _over(merged, mine)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, *above* winning key by key, in the options too."""
    options = {**(below.get("options") or {}), **(above.get("options") or {})}
    return {**below, **above, "options": options}
