"""What a recipe can do, as its recipe.toml says: options, data, strategies, layouts and precisions, with reasons."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcml.codec import decode
from hpcml.errors import ConfigError
from hpcml.precision import PrecisionName
from hpcml.spec import LayoutName, Run
from hpcml.strategy import KINDS, StrategyName

_FILE = "recipe.toml"
_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting of a recipe, `model.options.NAME`."""

    type: str  # int | float | bool | str, or one of these followed by [] for a list
    help: str
    min: float | None = None  # of a number, or of each in a list
    max: float | None = None
    choices: list[str] = field(default_factory=list)

    def complaint(self, value: object) -> str | None:
        """Return what is wrong with *value*, or None."""
        if self.type.endswith("[]"):
            if not isinstance(value, list | tuple) or not value:
                return "must be a list that is not empty"
            return next((found for item in value if (found := self._of_one(item))), None)
        return self._of_one(value)

    def _of_one(self, value: object) -> str | None:
        kind = self.type.removesuffix("[]")
        if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
            return f"must be {self.type}"
        if self.choices and value not in self.choices:
            return f"choose {', '.join(self.choices)}"
        if isinstance(value, int | float) and self.min is not None and value < self.min:
            return f"must be at least {self.min:g}"
        if isinstance(value, int | float) and self.max is not None and value > self.max:
            return f"must be at most {self.max:g}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A folder with a train.py that hpcml can start; an empty list of data or layouts: it takes no notice of them."""

    name: str = ""
    summary: str
    frameworks: list[str]
    strategies: list[str] = field(default_factory=lambda: ["single"])
    data: list[str] = field(default_factory=list)
    layouts: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)  # that it reports, the objective first
    measures: bool = False  # a benchmark: it trains nothing, and its numbers are rates
    refused: dict[str, str] = field(default_factory=dict)  # precision, or framework.precision -> why not
    options: dict[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {"strategies": StrategyName.__members__, "layouts": LayoutName.__members__}
        for key, members in known.items():
            if unknown := [name for name in getattr(self, key) if name not in members]:
                raise ConfigError(f"{key}: {unknown[0]!r} is none of {', '.join(members)}")
        for name, option in self.options.items():
            if option.type.removesuffix("[]") not in _TYPES:
                raise ConfigError(
                    f"options.{name}.type={option.type!r}: choose {', '.join(_TYPES)}, with [] for a list"
                )
        for name in self.refused:
            if name.rpartition(".")[2] not in PrecisionName.__members__:
                raise ConfigError(f"refused: {name!r} names no precision")

    def why_not(self, precision: PrecisionName, framework: str) -> str | None:
        """Return why the recipe does not do *precision* in *framework*, or None."""
        return self.refused.get(f"{framework}.{precision.name}", self.refused.get(precision.name))


def read_recipe(folder: Path) -> Recipe:
    """Return what the recipe in *folder* says of itself, or raise `ConfigError` naming the file and the mistake."""
    path = folder / _FILE
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        found = decode(Recipe, {**raw, "name": folder.name})
    except (ConfigError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    assert isinstance(found, Recipe)
    return found


def check(run: Run, recipe: Recipe) -> None:
    """Raise `ConfigError` where *recipe* cannot do what *run* asks, naming the setting, the value and the choices."""
    model = run.model
    if model.framework not in recipe.frameworks:
        raise ConfigError(_none_of("model.framework", str(model.framework), recipe.name, recipe.frameworks))
    chosen = {"strategy": (run.strategy.name.name, recipe.strategies), "layout": (run.layout.name.name, recipe.layouts)}
    chosen["data"] = (run.data.name, recipe.data)
    for key, (value, choices) in chosen.items():
        if choices and value not in choices:
            raise ConfigError(_none_of(key, value, recipe.name, choices))
    if model.framework not in KINDS[run.strategy.name].frameworks:
        able = [name for name in recipe.strategies if model.framework in KINDS[StrategyName[name]].frameworks]
        raise ConfigError(
            f"strategy={run.strategy.name.name} is nothing of {model.framework}: choose {' or '.join(able)}"
        )
    if reason := recipe.why_not(run.precision.name, str(model.framework)):
        raise ConfigError(f"precision={run.precision.name.name} is refused by the recipe {recipe.name}: {reason}")
    for name, value in model.options.items():
        option = recipe.options.get(name)
        if option is None:
            raise ConfigError(_none_of("model.options", name, recipe.name, sorted(recipe.options)))
        if complaint := option.complaint(value):
            raise ConfigError(f"model.options.{name}={value!r} {complaint}")


def _none_of(key: str, value: str, recipe: str, choices: list[str]) -> str:
    if not choices:
        return f"{key}={value}: the recipe {recipe} has none"
    return f"{key}={value} is not in the recipe {recipe}: choose {' or '.join(choices)}"
