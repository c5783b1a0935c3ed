"""What a recipe supports, as its recipe.toml declares it, and the checks of a run against that.

A recipe is a folder of recipes/ with a train.py that hpcml can start. `read_recipe` reads the declaration: frameworks,
strategies, data, layouts, options, and `Requirement`s (rules between settings, such as a batch size that must be a
multiple of another setting). `check`, `check_requirements` and `check_modules` refuse a run before it is submitted;
`hpcml recipes` lists what there is. docs/recipes.md describes the file.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hpcml.codec import decode
from hpcml.errors import ConfigError
from hpcml.model.choices import Numerics
from hpcml.model.precision import INFERENCE, Device, PrecisionName, capability, decide_numerics, why_refused
from hpcml.model.run import Data, LayoutName, Model, Run
from hpcml.model.strategy import KINDS, Strategy, StrategyName
from hpcml.model.training import Training
from hpcml.paths import is_source_of_hpcml

_FILE = "recipe.toml"
_PROGRAM = "train.py"
# What hpcml_train needs of each; as pyproject.toml has it for this machine.
OLDEST = {"torch": "2.3", "tensorflow": "2.16", "jax": "0.4.30"}
_OWN = "recipes"  # beside ./conf, where hpcml is typed
_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
_GROUPS = ("model", "data", "precision", "strategy", "layout")
_FOUND_OUT = ("device", "part_size", "stages")  # by planning, see `strategy_fit`
_PATHS = ("file", "folder", "any")
_EXTRAS = {"torch": "torch", "tensorflow": "tensorflow", "jax": "jax"} | dict.fromkeys(
    ("onnx", "onnxruntime", "onnxscript"), "inference"
)
_PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow"}  # whose modules have other names


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting of a recipe, `model.options.NAME`: its type, help and range."""

    type: str  # int | float | bool | str, or one of these followed by [] for a list
    help: str
    min: float | None = None  # of a number, or of each in a list
    max: float | None = None
    choices: list[str] = field(default_factory=list)

    def complaint(self, value: object) -> str | None:
        """Return why *value* is not allowed, for a message that begins with the setting; None where it is allowed.

        >>> Option(type="int", help="layers", min=1).complaint(0)
        'must be at least 1'
        """
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
        if isinstance(value, str):
            return None if _is_text(value) else "must be text in UTF-8"
        return self._of_number(value) if isinstance(value, int | float) else None

    def _of_number(self, value: float) -> str | None:
        if math.isnan(value):
            return "must be a number"
        if self.min is not None and value < self.min:
            return f"must be at least {self.min:g}"
        if self.max is not None and value > self.max:
            return f"must be at most {self.max:g}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a data set needs to be read."""

    path: str | None = None  # what data.path must be: file, folder or any of both; None: it is read from no path
    module: str | None = None  # that reads it, or has it inside


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The declaration of one recipe; an empty list of data or layouts means that the recipe does not look at them.

    Raises `ConfigError` for unknown strategies, layouts, types, precisions and settings.
    """

    name: str = ""
    summary: str
    frameworks: list[str]
    strategies: list[str] = field(default_factory=lambda: ["single"])
    data: list[str] = field(default_factory=list)
    layouts: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)  # that it reports, the objective first
    measures: bool = False  # a benchmark: it trains nothing, and its numbers are rates
    modules: list[str] = field(default_factory=list)  # that it imports besides its framework
    needs: dict[str, Needs] = field(default_factory=dict)  # by the name of the data
    oldest: dict[str, str] = field(default_factory=dict)  # framework -> version that it needs, beyond hpcml_train's own
    precisions: list[str] = field(default_factory=list)  # that it computes in; empty: all that train
    refused: dict[str, str] = field(default_factory=dict)  # [framework.]precision or strategy -> why not
    requires: list[Requirement] = field(default_factory=list)  # what one setting asks of another
    options: dict[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {
            "strategies": StrategyName.__members__,
            "layouts": LayoutName.__members__,
            "precisions": PrecisionName.__members__,
        }
        for key, members in known.items():
            if unknown := [name for name in getattr(self, key) if name not in members]:
                raise ConfigError(f"{key}: {unknown[0]!r} is none of {', '.join(members)}")
        for name, option in self.options.items():
            if option.type.removesuffix("[]") not in _TYPES:
                raise ConfigError(
                    f"options.{name}.type={option.type!r}: choose {', '.join(_TYPES)}, with [] for a list"
                )
        for framework, version in self.oldest.items():
            if framework not in self.frameworks or not re.fullmatch(r"\d+(\.\d+)*", version):
                raise ConfigError(
                    f"oldest.{framework}={version!r}: write a framework of the recipe and a version, '2.6'"
                )
        for name in self.refused:
            if name not in StrategyName.__members__ and name.rpartition(".")[2] not in PrecisionName.__members__:
                raise ConfigError(f"refused: {name!r} names no precision and no strategy")
        self._check_rules()

    def _check_rules(self) -> None:
        for name, needs in self.needs.items():
            if needs.path not in (None, *_PATHS):
                raise ConfigError(f"needs.{name}.path={needs.path!r}: choose {', '.join(_PATHS)}")
        known_settings = {*_settings_of_all(), *(f"model.options.{name}" for name in self.options)}
        for name in (name for requirement in self.requires for name in requirement.settings):
            if name not in known_settings:
                raise ConfigError(f"requires: {name!r} is no setting that it can ask for")

    def why_not(self, precision: PrecisionName, framework: str) -> str | None:
        """Return why the recipe refuses *precision* in *framework*, or None where it does not."""
        reason = self.refused.get(f"{framework}.{precision.name}", self.refused.get(precision.name))
        if reason is not None or precision.name in self.precisions:
            return reason
        if self.precisions:
            return f"choose {' or '.join(self.precisions)}"
        return None if capability(precision, framework).trains else f"nothing is trained in it: {INFERENCE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRecipe:
    """A recipe as it was found on disk, with the models that use it."""

    recipe: Recipe
    folder: Path
    is_own: bool  # the user's, not shipped
    models: Sequence[Model]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionOutcome:
    """Whether, and how, a precision runs in a recipe on a device, with ``precision.numerics=auto``."""

    recipe: str
    framework: str
    precision: PrecisionName
    device: str  # as it was asked for: cpu, v100, 8.0
    numerics: Numerics | None  # None: refused
    reason: str | None = None  # why it is refused


def own_recipes(project: Path, shipped: Path) -> Path | None:
    """Return ``<project>/recipes`` if it exists and is neither the shipped folder nor that of another copy of hpcml."""
    folder = project / _OWN
    is_ours = folder.resolve() == shipped.resolve() or is_source_of_hpcml(project)
    return folder if folder.is_dir() and not is_ours else None


def recipe_names(*folders: Path | None) -> list[str]:
    """Return the names of the recipes in *folders*, sorted: the subfolders with a train.py."""
    return sorted({path.parent.name for folder in folders if folder for path in folder.glob(f"*/{_PROGRAM}")})


def find_program(name: str, shipped: Path, own: Path | None) -> Path:
    """Return the train.py of the recipe *name*; raise `ConfigError` where there is none, or more than one."""
    places = [folder / name / _PROGRAM for folder in (shipped, own) if folder]
    found = [path for path in places if os.path.isfile(path)]  # noqa: PTH113 - Path.is_file raises for a name too long
    if not found:
        raise ConfigError(f"model.recipe={name} is not there: choose {', '.join(recipe_names(shipped, own))}")
    if len(found) > 1:
        raise ConfigError(
            f"model.recipe={name} ships with hpcml, and {found[1].parent} has the same name: give yours another"
        )
    return found[0]


def outcome(recipe: Recipe, framework: str, precision: PrecisionName, device: Device, label: str) -> PrecisionOutcome:
    """Return whether and how *precision* runs, by the same rules that planning applies; *label* names the device."""
    settings = {"model.framework": framework, "device": device.kind, "precision": precision.name}
    rules = (rule for rule in recipe.requires if settings.keys() >= {*rule.settings})  # the others ask for more
    complaints = (complaint for rule in rules if (complaint := rule.complaint(settings)) is not None)
    reason = why_refused(precision, device, framework) or recipe.why_not(precision, framework) or next(complaints, None)
    numerics = decide_numerics(precision, Numerics.auto, device, framework) if reason is None else None
    return PrecisionOutcome(
        recipe=recipe.name, framework=framework, precision=precision, device=label, numerics=numerics, reason=reason
    )


def read_recipe(folder: Path) -> Recipe:
    """Return the declaration in *folder*/recipe.toml; raise `ConfigError` with the file and the mistake."""
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
    """Raise `ConfigError` where *recipe* does not support what *run* asks; it names setting, value and choices."""
    model = run.model
    if model.framework not in recipe.frameworks:
        raise ConfigError(_none_of("model.framework", str(model.framework), recipe.name, recipe.frameworks))
    if reason := recipe.refused.get(run.strategy.name.name):
        raise ConfigError(f"strategy={run.strategy.name.name} is refused by the recipe {recipe.name}: {reason}")
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
    for name in ("compile", "cudnn_benchmark"):
        if getattr(run.training, name) and model.framework != "torch":
            raise ConfigError(
                f"training.{name}=true is torch's: set it to false with model.framework={model.framework}"
            )
    if reason := recipe.why_not(run.precision.name, str(model.framework)):
        raise ConfigError(f"precision={run.precision.name.name} is refused by the recipe {recipe.name}: {reason}")
    _check_options(model.options, recipe)


def oldest_version(run: Run, recipe: Recipe) -> tuple[str, str] | None:
    """Return the oldest version of the run's framework that will do, and what asks for it; None where nothing does.

    Asked are hpcml_train, the strategy and the *recipe*; of several the one that asks most.
    """
    framework = str(run.model.framework)
    kind = KINDS[run.strategy.name]
    asked = [(OLDEST.get(framework), f"model={run.model.name}"), (kind.oldest, f"strategy={run.strategy.name.name}")]
    asked.append((recipe.oldest.get(framework), f"the recipe {recipe.name}"))
    known = [(version, why) for version, why in asked if version is not None]
    return max(known, key=lambda pair: [int(part) for part in pair[0].split(".")], default=None)


def check_requirements(run: Run, recipe: Recipe, found_out: Mapping[str, object]) -> None:
    """Raise `ConfigError` where settings of *run* contradict each other by the recipe's `Requirement`s.

    *found_out* is what planning knows besides the settings: the `device` (cpu or cuda), and `part_size` (samples that
    are computed at once) and `stages` (of a pipeline) where there are any.
    """
    if not recipe.requires:
        return
    settings = {key.removesuffix(".name"): value for key, value in run.settings.items()}
    for requirement in recipe.requires:
        if complaint := requirement.complaint({**settings, **found_out}):
            raise ConfigError(complaint)


def check_modules(run: Run, recipe: Recipe, python: str, has_module: Callable[[str], bool]) -> None:
    """Raise `ConfigError` where the interpreter *python* of the run lacks a module that *recipe* imports.

    *has_module* tells whether that interpreter can import a module; it is asked for one name at a time.
    """
    needs = recipe.needs.get(run.data.name, Needs())
    wanted = {str(run.model.framework): f"model.framework={run.model.framework}"}
    wanted |= dict.fromkeys(recipe.modules, f"model={run.model.name}")
    if needs.module is not None:
        wanted[needs.module] = f"data={run.data.name}"
    if run.strategy.name is StrategyName.horovod:
        wanted["horovod"] = "strategy=horovod"
    for module, setting in wanted.items():
        if not has_module(module):
            raise ConfigError(
                f"{setting}: the Python of this run ({python}) has no {module}: {_how_to_get(module)}, "
                "or use a container that has it"
            )


def _how_to_get(module: str) -> str:
    if module == "horovod":
        return "docs/horovod.md says how it is built"
    return "pip install " + (f"'hpcml[{_EXTRAS[module]}]'" if module in _EXTRAS else _PACKAGES.get(module, module))


def _settings_of_all() -> set[str]:
    """Return the settings of every run that a recipe may ask for."""
    parts = {"training": Training, "strategy": Strategy, "data": Data}
    nested = {f"{part}.{item.name}" for part, kind in parts.items() for item in fields(kind)}
    return nested | {*_GROUPS, *_FOUND_OUT, "model.framework"}


def _check_options(options: Mapping[str, object], recipe: Recipe) -> None:
    for name, value in options.items():
        option = recipe.options.get(name)
        if option is None:
            raise ConfigError(_none_of("model.options", name, recipe.name, sorted(recipe.options)))
        if complaint := option.complaint(value):
            raise ConfigError(f"model.options.{name}={value!r} {complaint}")


def _none_of(key: str, value: str, recipe: str, choices: list[str]) -> str:
    if not choices:
        return f"{key}={value}: the recipe {recipe} has none"
    return f"{key}={value} is not in the recipe {recipe}: choose {' or '.join(choices)}"


_WAYS = ("one_of", "multiple_of", "at_least", "at_most")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A rule between settings: where all of `when` holds, `setting` must satisfy the one given condition.

    Exactly one of `one_of`, `multiple_of`, `at_least` and `at_most` is given, else `ConfigError`. A setting without a
    value is not checked. In recipe.toml:

        [[requires]]
        setting = "training.batch_size"
        multiple_of = "strategy.microbatches"
        when = { strategy = "pipeline" }
        because = "each microbatch has the same size"
    """

    setting: str  # as it is typed (precision, training.compile, model.options.NAME), or what planning finds out
    when: dict[str, Any] = field(default_factory=dict)  # setting -> its value, or a list of values
    one_of: list[Any] = field(default_factory=list)
    multiple_of: int | str | None = None  # a number, or the setting that is it
    at_least: float | None = None
    at_most: float | str | None = None  # a number, or the setting that is it
    plus: int = 0  # to the setting that `at_most` names
    because: str = ""

    def __post_init__(self) -> None:
        ways = [way for way in _WAYS if getattr(self, way) not in (None, [])]
        if len(ways) != 1:
            raise ConfigError(f"requires.setting={self.setting!r}: say one of {', '.join(_WAYS)}, not {len(ways)}")

    def __str__(self) -> str:
        where = " and ".join(f"{name}={_either(wanted)}" for name, wanted in self.when.items())
        return f"{self.setting} must be {self._demand()}{where and f' with {where}'}{self._reason()}"

    @property
    def settings(self) -> list[str]:
        """All settings that the rule names, `setting` first."""
        bounds = [bound for bound in (self.multiple_of, self.at_most) if isinstance(bound, str)]
        return [self.setting, *self.when, *bounds]

    def complaint(self, settings: Mapping[str, object]) -> str | None:
        """Return what is wrong with *settings* (flat: name -> value), with values and reason; None where nothing is."""
        applies = all(settings.get(name) in _as_list(wanted) for name, wanted in self.when.items())
        if not applies or self._holds(settings):
            return None
        first, *others = (f"{name}={_typed(settings[name])}" for name in dict.fromkeys(self.settings))
        where = f" with {', '.join(others)}" if others else ""
        return f"{first}{where} must be {self._demand()}{self._reason()}"

    def _holds(self, settings: Mapping[str, object]) -> bool:
        value = settings.get(self.setting)
        if self.one_of:
            return value is None or value in self.one_of
        if not isinstance(value, int | float):
            return True
        if self.multiple_of is not None:
            unit = _number(self.multiple_of, settings)
            return unit is None or unit < 1 or value % unit == 0
        if self.at_least is not None:
            return value >= self.at_least
        most = _number(self.at_most, settings)
        return most is None or value <= most + self.plus

    def _demand(self) -> str:
        if self.one_of:
            return _either(self.one_of)
        if self.multiple_of is not None:
            return f"a multiple of {self.multiple_of}"
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        most = self.at_most if isinstance(self.at_most, str) else f"{self.at_most:g}"
        return f"at most {most}" + (f" + {self.plus}" if self.plus else "")

    def _reason(self) -> str:
        return f": {self.because}" if self.because else ""


def _number(bound: float | str | None, settings: Mapping[str, object]) -> float | None:
    found = settings.get(bound) if isinstance(bound, str) else bound
    return found if isinstance(found, int | float) else None


def _as_list(wanted: object) -> list[object]:
    return wanted if isinstance(wanted, list) else [wanted]


def _either(wanted: object) -> str:
    return " or ".join(map(_typed, _as_list(wanted)))


def _typed(value: object) -> str:
    """Return *value* as one would type it; an empty text, which could not be seen, as two quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value) or "''"


def _is_text(value: str) -> bool:
    """Return whether *value* has none of the halves that Python makes of bytes which are no UTF-8."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)
