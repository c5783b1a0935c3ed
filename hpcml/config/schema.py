"""The frozen spec as a schema that Hydra can compose into: OmegaConf makes nodes of frozen dataclasses read-only."""

from __future__ import annotations

import functools
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import omegaconf


@functools.cache
def mutable_twin(schema: type) -> type:
    """Return a dataclass with the fields and defaults of *schema*, not frozen and checking nothing."""
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
