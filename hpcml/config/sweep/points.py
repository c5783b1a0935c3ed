"""The points of a sweep, composed as Hydra would, but with one composition for many points.

Composing takes Hydra tens of milliseconds, nearly all of it for files and defaults lists, on which a plain value
(``seed=range(1000)``) has no influence. So points that differ only in plain values share one composition, in which the
values are set one after another in the way Hydra sets them. Whatever is not certain to be a plain value is left to
Hydra. config/compose uses `Sweep`. The results are the same as Hydra's own, point by point; the tests compare the two.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from hydra._internal import config_loader_impl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.defaults_list import DefaultsList
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.utils import env_override
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import (
    BooleanNode,
    DictConfig,
    FloatNode,
    IntegerNode,
    ListConfig,
    Node,
    OmegaConf,
    StringNode,
    ValueNode,
    open_dict,
    read_write,
)
from omegaconf.errors import OmegaConfBaseException

from hpcml.config.sweep.size import MOST_RUNS, check_points, check_values
from hpcml.errors import ConfigError

HYDRA_REFUSALS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError)
# What comes out of Hydra's and OmegaConf's inside where they do not check what they are given: a list where a name is
# meant, a name longer than a file's may be, brackets nested a thousand deep.
HYDRA_STUMBLES = (OSError, TypeError, AttributeError, AssertionError, LookupError, ArithmeticError, RecursionError)

_PATHS = ("data.path", "workload.cwd")
_DOTTED = re.compile(r"[\w-]+(\.[\w-]+)*")
_INT = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")  # a part of what is a number to Hydra's grammar
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:e[+-]?[0-9]+)?")
# Resolvers may give another value each time they are asked (${hydra:job.num}); these references do not.
_STEADY = re.compile(r"\$\{(?:(?!\.*hydra\b)[\w.]+|oc\.env:[^${}]+)\}")

_TYPED = (BooleanNode, FloatNode, IntegerNode, StringNode)

T = TypeVar("T")


class SweepFoundError(BaseException):
    """Leaves Hydra where its command line asks for a sweep; no `Exception`, since Hydra makes warnings of those.

    It carries what Hydra had by then: its configuration, with flags and overrides, and its loader.
    """

    def __init__(self, config: DictConfig, loader: ConfigLoader) -> None:
        super().__init__()
        self.config = config
        self.loader = loader


class StopAtSweep(Callback):
    """Hydra's callback before a sweep: flags and overrides are parsed by then, and no point is composed yet.

    Hydra finds the class by its dotted name in a word that `hpcml.config.compose` adds.
    """

    def on_multirun_start(self, config: DictConfig, **_: object) -> None:
        """Leave Hydra by raising `SweepFoundError`."""
        raise SweepFoundError(config, GlobalHydra.instance().config_loader())


class Composition:
    """One configuration composed by Hydra, whose values can be changed; only changed sections are resolved again.

    *task* is the configuration without Hydra's own part, which is *settings*. *project* is the folder against which
    relative paths in it are made absolute. `directories` are the configuration folders that were searched.
    """

    def __init__(self, task: DictConfig, settings: DictConfig, project: Path) -> None:
        self.settings = settings
        self.directories = tuple(x.path for x in settings.runtime.config_sources if x.schema == "file")
        self._task = task
        self._project = project
        self._interpolating: set[str] = set()  # sections that a leaf of another section may change
        self._missing: dict[str, list[str]] = {}  # by section; absent: to be looked for
        self._values: dict[str, Any] = {}
        self._stale: set[str] = {str(name) for name in task}
        self._nodes: dict[str, ValueNode | None] = {}

    def can_set(self, keys: Sequence[str]) -> bool:
        """Return whether *keys* are plain values that can be replaced repeatedly, with no trace of the one before.

        False in any doubt: the points are then composed one by one, which is slow and right.
        """
        raw = OmegaConf.to_container(self._task, resolve=False)
        assert isinstance(raw, dict)
        if self.settings.job.env_set or not _is_steady(raw):
            return False
        self._interpolating = {str(name) for name, value in raw.items() if _interpolates(value)}
        return all(_is_leaf(self._task, key) for key in keys)

    def set_leaf(self, key: str, value: object) -> None:
        """Set *key* as Hydra does for ``key=value``; raise OmegaConf's error where the schema refuses the value.

        *key* is dotted (``train.lr``). After an error the value of *key* is not defined.
        """
        section = key.partition(".")[0]
        self._stale |= self._interpolating
        if _interpolates(value):
            self._interpolating.add(section)
        if (node := self._plain_node(key)) is not None and not any(map(_is_special, (value, node._val))):  # noqa: SLF001
            node._set_value(value)  # noqa: SLF001 - what `update` ends with; its way there takes ten times as long
            if section == key and section not in self._stale:  # the section is the value
                self._values[section] = node._val  # noqa: SLF001 - as it is resolved: it refers to nothing
            else:
                self._stale.add(section)
        else:
            self._nodes.pop(key, None)  # which may be replaced by another
            OmegaConf.update(self._task, key, value, merge=True)
            self._stale.add(section)
            for name in self._stale:
                self._missing.pop(name, None)

    def _plain_node(self, key: str) -> ValueNode | None:
        """Return the node that holds a number, a text or yes or no for *key*; None where it may be anything else."""
        if key not in self._nodes:
            *sections, leaf = key.split(".")
            parent: Any = self._task
            for name in sections:
                parent = parent[name]
            node = parent._get_node(leaf)  # noqa: SLF001
            self._nodes[key] = node if type(node) in _TYPED and key not in _PATHS else None
        return self._nodes[key]

    def interpolates(self) -> bool:
        """Return whether any value refers to another one (``${...}``)."""
        return _interpolates(OmegaConf.to_container(self._task, resolve=False))

    def values(self) -> dict[str, Any]:
        """Return the whole configuration as plain values, resolved, with enums by name.

        Raises `ConfigError` for values that are not set (``???``), and OmegaConf's errors where a reference cannot be
        resolved. Relative values of ``data.path`` and ``workload.cwd`` come out absolute.
        """
        for name in self._stale:
            if name not in self._missing:
                self._missing[name] = _missing_in(self._task, name)
        if missing := sorted(key for keys in self._missing.values() for key in keys):
            raise ConfigError(
                f"not decided: {', '.join(missing)} (set {missing[0]}=...; hpcml run --help lists choices)"
            )
        names = [str(name) for name in self._task]
        has_paths = not self._stale.isdisjoint(("data", "workload")) or bool(self._interpolating)
        with _absolute_paths(self._task, self._project) if has_paths else nullcontext():
            for name in names:
                if name in self._stale:
                    self._values[name] = _resolved(self._task[name])
        self._stale.clear()
        return {name: self._values[name] for name in names}


def _is_special(value: object) -> bool:
    return isinstance(value, str) and ("${" in value or value == "???")


def _missing_in(task: DictConfig, name: str) -> list[str]:
    if OmegaConf.is_missing(task, name):
        return [name]
    section = task[name]
    return sorted(OmegaConf.missing_keys(section)) if OmegaConf.is_config(section) else []


def _resolved(value: object) -> Any:  # noqa: ANN401 - whatever a configuration may hold
    if OmegaConf.is_config(value):
        return OmegaConf.to_container(value, resolve=True, enum_to_str=True)
    return value.name if isinstance(value, Enum) else value


@contextmanager
def _absolute_paths(task: DictConfig, project: Path) -> Iterator[None]:
    """Paths are meant from where they were typed; on the node that place is another one."""
    typed: list[tuple[DictConfig, str, Any]] = []
    try:
        for section, leaf in ((task.data, "path"), (task.workload, "cwd")):
            if (path := getattr(section, leaf)) is not None:
                raw = OmegaConf.to_container(section, resolve=False)
                assert isinstance(raw, dict)
                typed.append((section, leaf, raw[leaf]))
                section[leaf] = str(project / _of_home(path))
        yield
    finally:
        for section, leaf, before in typed:  # an interpolation has to be one again for the next point
            section[leaf] = before


def _of_home(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: there is no such user here, whose home ~ would be") from error


def _is_leaf(task: DictConfig, key: str) -> bool:
    *sections, leaf = key.split(".")
    parent: Any = task
    for name in sections:
        if name not in parent or OmegaConf.is_interpolation(parent, name):
            return False
        parent = parent[name]
        if not isinstance(parent, DictConfig):
            return False
    # Unresolved, a container is its node and a leaf its raw value.
    return any(name == leaf and not isinstance(value, Node) for name, value in parent.items_ex(resolve=False))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _interpolates(value: object) -> bool:
    return any("${" in text for text in _texts(value))


def _is_steady(value: object) -> bool:
    return all(text.count("${") == len(_STEADY.findall(text)) for text in _texts(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """One place in the command line whose words differ from point to point, and do no more than set one leaf."""

    position: int
    key: str
    values: dict[str, Any]  # by the whole word, key=value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What the words of all points are to Hydra."""

    axes: tuple[_Axis, ...] = ()
    looks: bool = False  # some word's effect depends on the value it finds: +key, ~key
    chosen: tuple[int, ...] = ()  # places of words that choose files, not values

    def combination(self, point: tuple[str, ...]) -> tuple[str, ...]:
        """Return the words that Hydra has to compose."""
        free = {axis.position for axis in self.axes}
        return tuple(word for position, word in enumerate(point) if position not in free)


class Sweep(Generic[T]):
    """All points of a sweep, in the order of Hydra's basic sweeper; *settle* turns each into what the caller wants.

    `points` are tuples of words. *settle* is called with the composition of a point, which is valid during the call
    only, and the point's words; what it returns is the result, and an exception that it raises is one too. Raises
    `ConfigError` for more than *most* points, before any is made.
    """

    def __init__(
        self,
        found: SweepFoundError,
        project: Path,
        settle: Callable[[Composition, tuple[str, ...]], T],
        *,
        most: int = MOST_RUNS,
    ) -> None:
        self._config = found.config
        self._loader = found.loader
        self._project = project
        self._settle = settle
        self._parser = OverridesParser.create(config_loader=found.loader)
        self.points = self._split(most)
        self._results: list[T | Exception | None] = [None] * len(self.points)
        self._refused_at = len(self.points)
        self._first: DictConfig | None = None  # the first point's composition, until it is used

    def settled(self) -> list[T | Exception]:
        """Return for each point the result of *settle*, or the exception that it raised for the point.

        Raises the error of the first point that Hydra itself refuses, and `ConfigError` for a sweep without points.
        Groups are composed in the order of their first points, so *settle* may be called in another order than that of
        the results.
        """
        if not self.points:
            raise ConfigError("the sweep has no points: one of its range() or glob() is empty")
        plan = self._plan()
        groups: dict[tuple[str, ...], list[int]] = {}
        for index, point in enumerate(self.points):
            groups.setdefault(plan.combination(point), []).append(index)
        refusal: Exception | None = None
        for indexes in groups.values():
            try:
                self._settle_group(indexes, plan)
            except (*HYDRA_REFUSALS, *HYDRA_STUMBLES) as error:  # a later group may hold an earlier point
                refusal = error
        if refusal is not None:
            raise refusal
        return [result for result in self._results if result is not None]

    def _split(self, most: int) -> list[tuple[str, ...]]:
        # As BasicSweeper.sweep does; its batches say when to launch, and nothing is launched here.
        params = OmegaConf.to_container(self._config.hydra.sweeper, resolve=True)
        assert isinstance(params, dict)
        words = [f"{key}={value}" for key, value in (params.get("params") or {}).items()]
        words += typed(self._config.hydra.overrides.task)
        overrides = self._parser.parse_overrides(words)
        check_points(overrides, most)
        check_values(overrides)
        (batch,) = BasicSweeper.split_arguments(overrides, None)
        return [tuple(point) for point in batch]

    def _plan(self) -> _Plan:
        """Find the places whose words are certain to set one leaf only; in doubt there are none."""
        first = self.points[0]
        try:
            with _heard() as heard:
                self._first = self._compose(0)
        except (*HYDRA_REFUSALS, *HYDRA_STUMBLES):  # the first group is composed again, and says so
            return _Plan()
        defaults = heard[-1]
        words = self._parser.parse_overrides(list(first))
        plain = {word.input_line for word in defaults.config_overrides}
        keys = [word.key_or_group if word.input_line in plain else None for word in words]
        if any(word.is_hydra_override() for word in words) or not all(_DOTTED.fullmatch(key) for key in keys if key):
            return _Plan()
        axes = []
        for position, (word, key) in enumerate(zip(words, keys, strict=True)):
            others = [other for place, other in enumerate(keys) if other and place != position]
            if key is None or word.type is not OverrideType.CHANGE or any(_overlap(key, other) for other in others):
                continue
            if (values := self._scalars(position)) is not None:
                axes.append(_Axis(position=position, key=key, values=values))
        return _Plan(
            axes=tuple(axes),
            looks=any(key and (word.is_add() or word.is_delete()) for word, key in zip(words, keys, strict=True)),
            chosen=tuple(position for position, key in enumerate(keys) if key is None),
        )

    def _scalars(self, position: int) -> dict[str, Any] | None:
        """Return the values of all points at *position*, if they differ and each is steady and no container."""
        words = list(dict.fromkeys(point[position] for point in self.points))
        if len(words) < 2:
            return None
        values: dict[str, Any] = {word: _number_in(word) for word in words}
        unread = [word for word, value in values.items() if value is None]
        overrides: list[Override] = self._parser.parse_overrides(unread)
        values |= {word: override.value() for word, override in zip(unread, overrides, strict=True)}
        plain = all(value is None or isinstance(value, str | int | float) for value in values.values())
        return values if plain and _is_steady(list(values.values())) else None

    def _settle_group(self, indexes: Sequence[int], plan: _Plan) -> None:
        """Settle points that differ in nothing but the plan's axes."""
        if len(indexes) > 1 and indexes[0] < self._refused_at:
            config = self._compose(indexes[0])
            with _as_job(config, indexes[0]):
                composition = self._composition(config)
                if composition.can_set([axis.key for axis in plan.axes]) and not self._looks_around(indexes[0], plan):
                    self._settle_together(composition, indexes, plan.axes)
                    return
        for index in indexes:
            self._settle_alone(index)

    def _settle_together(self, composition: Composition, indexes: Sequence[int], axes: Sequence[_Axis]) -> None:
        said: dict[str, str] = {}
        for index in indexes:
            if index > self._refused_at:
                return
            point = self.points[index]
            try:
                for axis in axes:
                    word = point[axis.position]
                    if said.get(axis.key) != word:
                        composition.set_leaf(axis.key, axis.values[word])
                        said[axis.key] = word
            except OmegaConfBaseException:
                said.clear()
                self._settle_alone(index)  # which raises, and in Hydra's words
            else:
                self._settle_one(index, composition, point)

    def _settle_alone(self, index: int) -> None:
        if index > self._refused_at:
            return
        config = self._compose(index)
        with _as_job(config, index):
            composition = self._composition(config)
            self._settle_one(index, composition, tuple(typed(config.hydra.overrides.task)))

    def _settle_one(self, index: int, composition: Composition, overrides: tuple[str, ...]) -> None:
        try:
            self._results[index] = self._settle(composition, overrides)
        except Exception as error:  # noqa: BLE001 - the caller's, and his to raise: not to be taken for Hydra's
            self._results[index] = error

    def _looks_around(self, index: int, plan: _Plan) -> bool:
        """Return whether a word of the combination may find another value than it found in the point *index*."""
        if not plan.looks:
            return False
        point = self.points[index]
        words = (*plan.combination(point), *(word for axis in plan.axes for word in axis.values))
        files = self._loader.load_sweep_config(self._config, [point[position] for position in plan.chosen])
        return _interpolates(list(words)) or self._composition(files).interpolates()

    def _compose(self, index: int) -> DictConfig:
        if index == 0 and self._first is not None:
            config, self._first = self._first, None
            return config
        try:
            config = self._loader.load_sweep_config(self._config, list(self.points[index]))
        except (*HYDRA_REFUSALS, *HYDRA_STUMBLES):
            self._refused_at = index
            raise
        return config

    def _composition(self, config: DictConfig) -> Composition:
        task = copy.deepcopy(config)
        with read_write(task), open_dict(task):
            del task["hydra"]
        return Composition(task, config.hydra, self._project)


@contextmanager
def _heard() -> Iterator[list[DefaultsList]]:
    """Give the lists of files that Hydra composes of within the block."""
    heard: list[DefaultsList] = []
    inside: Any = config_loader_impl
    make = inside.create_defaults_list

    def hear(**words: Any) -> DefaultsList:  # noqa: ANN401 - as Hydra's own
        heard.append(make(**words))
        return heard[-1]

    inside.create_defaults_list = hear
    try:
        yield heard
    finally:
        inside.create_defaults_list = make


def typed(words: ListConfig) -> list[str]:
    """Return overrides as they were typed, in their order, without resolving their interpolations."""
    plain = OmegaConf.to_container(words, resolve=False)
    assert isinstance(plain, list)
    return [str(word) for word in plain]


def _number_in(word: str) -> int | float | None:
    """Return the value of ``key=value`` where it is a plain number; None where Hydra's grammar has to read it.

    The grammar takes a tenth of a millisecond for each word.
    """
    key, _, text = word.partition("=")
    if _DOTTED.fullmatch(key) is None:
        return None
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else None


def _overlap(key: str, other: str) -> bool:
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


@contextmanager
def _as_job(config: DictConfig, number: int) -> Iterator[None]:
    """Let ``${hydra:...}`` and the environment answer as in a job of Hydra's (hydra.core.utils.run_job)."""
    singleton = HydraConfig.instance()
    before = singleton.cfg
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.job.id = str(number)
        config.hydra.job.num = number
        config.hydra.runtime.output_dir = config.hydra.sweep.dir
    singleton.set_config(config)
    try:
        with env_override(dict(config.hydra.job.env_set)):
            yield
    finally:
        singleton.cfg = before
