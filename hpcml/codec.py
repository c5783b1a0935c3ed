"""Frozen dataclasses to JSON values and back, without losing anything: `decode(T, encode(x)) == x`."""

from __future__ import annotations

import functools
import types
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from hpcml.errors import ConfigError

_SCALARS = frozenset({str, int, float, bool, type(None)})
Json = Any  # what json.dumps takes; recursive aliases do not help mypy here


def encode(value: object) -> Json:
    """Return *value* as plain dicts, lists and scalars; enums by name, tuples as lists."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def decode(kind: Any, value: Json, *, where: str = "") -> Any:  # noqa: ANN401, PLR0911 - one return for each kind
    """Rebuild an instance of *kind*; an unknown or missing key raises `ConfigError` that names its place."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return decode(next(choice for choice in arguments if choice is not type(None)), value, where=where)
    if origin in (list, tuple):
        return origin(decode(arguments[0], item, where=where) for item in value)
    if origin is dict:
        return {key: decode(arguments[1], item, where=f"{where}.{key}") for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind[value]
    if is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    if kind is float and isinstance(value, int):
        return float(value)  # JSON writes 1.0 as 1 in some tools
    return value


def _decode_dataclass(kind: Any, value: dict[str, Json], where: str) -> Any:  # noqa: ANN401
    hints, known = _shape(kind)
    if unknown := sorted(set(value) - set(known)):
        raise ConfigError(f"unknown key {where}{'.' if where else ''}{unknown[0]}")
    missing = [
        name
        for name, field in known.items()
        if name not in value and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise ConfigError(f"missing key {where}{'.' if where else ''}{missing[0]}")
    return kind(
        **{name: decode(hints[name], item, where=f"{where}.{name}".lstrip(".")) for name, item in value.items()}
    )


@functools.cache
def _shape(kind: Any) -> tuple[dict[str, Any], dict[str, Field[Any]]]:  # noqa: ANN401
    """Return a dataclass's hints and fields by name; resolving hints costs more than all the rest of `decode`."""
    return get_type_hints(kind), {field.name: field for field in fields(kind)}


def flatten(value: Json, prefix: str = "") -> dict[str, Json]:
    """Return ``{"model.name": "cnn"}`` for ``{"model": {"name": "cnn"}}``; lists and empty dicts stay whole."""
    if not isinstance(value, dict) or not value:
        return {prefix: value} if prefix else {}
    flat: dict[str, Json] = {}
    for key, item in value.items():
        flat.update(flatten(item, f"{prefix}.{key}" if prefix else str(key)))
    return flat
