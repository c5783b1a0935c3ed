"""The schema of a run, as Hydra gets it, and what each key of it takes.

The classes of hpcml/model/run are the schema. OmegaConf would make nodes of frozen dataclasses read-only, so
`mutable_twin` makes copies of them that are not frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import omegaconf
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from hpcml.model.run import Run
from hpcml.paths import resource_dir

NAME = "run_schema"  # in the defaults list of conf/run.yaml


@dataclass(frozen=True, slots=True)
class KeyType:
    """What a key takes: a Python type such as int, list[str] or a dataclass, and whether it may be null."""

    type: Any
    is_optional: bool


@cache
def kinds_by_key(schema: type = Run, prefix: str = "") -> Mapping[str, KeyType]:
    """Return what each key takes; keys are dotted, sections are among them."""
    kinds: dict[str, KeyType] = {}
    for name, hint in get_type_hints(schema).items():
        others = [each for each in get_args(hint) if each is not type(None)]
        is_optional = type(None) in get_args(hint) and len(others) == 1
        kind = KeyType(others[0] if is_optional else hint, is_optional)
        kinds[f"{prefix}{name}"] = kind
        if is_dataclass(kind.type):
            kinds |= kinds_by_key(kind.type, f"{prefix}{name}.")  # type: ignore[arg-type]
    return kinds


@cache
def groups() -> frozenset[str]:
    """Return the groups of options that hpcml has, as precision: those of a user's own are not among them."""
    return frozenset(folder.name for folder in resource_dir("conf").iterdir() if folder.is_dir())


@cache
def register() -> None:
    """Give the schema to Hydra's store, which keeps it as long as the process lives."""
    node = OmegaConf.structured(mutable_twin(Run))
    by_program = (node.workload.env, node.container.environment, node.container.labels)
    for names in (*by_program, node.resources.pbs.options, node.cluster.pbs.chunk):  # the user makes up the keys
        OmegaConf.set_struct(names, value=False)
    ConfigStore.instance().store(name=NAME, node=node)


@cache
def mutable_twin(schema: type) -> type:
    """Return a dataclass with the fields and defaults of *schema* that is not frozen and checks nothing.

    A field without a default gets OmegaConf's ``MISSING`` (``???``). Nested dataclasses become twins as well, in lists
    and dicts too. For OmegaConf only: values are checked when `decode` makes a `Run` of them.
    """
    hints = get_type_hints(schema)
    twins = []
    for original in fields(schema):
        hint = _twin_hint(hints[original.name])
        if isinstance(hint, type) and is_dataclass(hint):
            default = field(default_factory=hint)  # there from the start, so that each of its keys can be set
        elif original.default_factory is not MISSING:
            default = field(default_factory=original.default_factory)
        elif original.default is not MISSING:
            default = field(default=original.default)
        else:
            default = field(default=omegaconf.MISSING)
        twins.append((original.name, hint, default))
    return make_dataclass(schema.__name__, twins, kw_only=True)


def _twin_hint(hint: Any) -> Any:  # noqa: ANN401 - a type hint is anything
    if isinstance(hint, type) and is_dataclass(hint):
        return mutable_twin(hint)
    if get_origin(hint) in (dict, list):
        return get_origin(hint)[tuple(_twin_hint(argument) for argument in get_args(hint))]
    return hint
