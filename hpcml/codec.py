"""Frozen dataclasses to JSON values and back without loss: `decode(T, encode(x)) == x`.

run.json, image records and the flat parameters in the store are written with it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from hpcml.errors import ConfigError

Json = Any  # what json.dumps takes; recursive aliases do not help mypy here
_SHOWN = 60  # characters of a value in an error
_INTEGERS = 2**63  # what a database can keep
_KINDS: Mapping[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "text"),
    int: ((int,), "whole number"),
    float: ((int, float), "number"),
    bool: ((bool,), "true or false"),
    list: ((list, tuple), "list"),
    dict: ((dict,), "table"),
}
_hints: Callable[[Any], dict[str, Any]] = functools.cache(
    get_type_hints
)  # which takes longer than all the rest of `decode`


def encode(value: object) -> Json:
    """Return *value* as plain dicts, lists and scalars for `json.dumps`; enums become their names, tuples lists.

    >>> encode(Precision(name=PrecisionName.fp32))["name"]
    'fp32'
    """
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def decode(kind: Any, value: Json, *, where: str = "") -> Any:  # noqa: ANN401
    """Rebuild an instance of the type *kind* from JSON values; what is an instance of a dataclass already stays.

    Raises `ConfigError` for an unknown or missing key, for a value of another type, and for a name that an enum lacks,
    with its place below *where* ("cluster.queues"). Classes check themselves as they are made, and may raise it
    too.
    """
    kind = _member(kind, value)
    if kind is None or (is_dataclass(kind) and isinstance(value, kind)):  # type: ignore[arg-type] # a class
        return value
    _check(kind, value, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind[value]
        except KeyError as error:
            raise ConfigError(f"{where}={value[:_SHOWN]!r} is none of {', '.join(kind.__members__)}") from error
    if is_dataclass(kind):
        _check_keys(kind, value, where)
    parts = {key: decode(inner, item, where=place) for key, inner, item, place in _inside(kind, value, where)}
    if is_dataclass(kind):
        return kind(**parts)  # type: ignore[operator] # as above
    origin = get_origin(kind)
    if origin in (list, tuple):
        return origin(parts.values())
    if origin is dict:
        return parts
    return float(value) if kind is float else value  # JSON writes 1.0 as 1 in some tools


def check_type(kind: Any, value: Json, *, where: str) -> None:  # noqa: ANN401
    """Raise `ConfigError` where a JSON value, or one inside of it, is of another type than *kind* says.

    Keys that a class does not know, or that are missing, are passed over, and so are names that an enum lacks.
    """
    kind = _member(kind, value)
    if kind is not None:
        _check(kind, value, where)
        for _, inner, item, place in _inside(kind, value, where):
            check_type(inner, item, where=place)


def _member(kind: Any, value: Json) -> Any:  # noqa: ANN401
    """Return the first type of the union *kind* that *value* may be, or its first; None for a permitted None."""
    if not isinstance(kind, types.UnionType):
        return kind
    members = [member for member in get_args(kind) if member is not types.NoneType]
    if value is None and len(members) < len(get_args(kind)):
        return None
    for member in members:
        with suppress(ConfigError):
            _check(member, value, "")
            return member
    return members[0]


def _check(kind: Any, value: Json, where: str) -> None:  # noqa: ANN401
    """Raise `ConfigError` where *value* is of another type than *kind*, whatever is inside of it."""
    plain = dict if is_dataclass(kind) else get_origin(kind) or kind
    plain = list if plain is tuple else str if isinstance(plain, type) and issubclass(plain, Enum) else plain
    if plain not in _KINDS:
        return
    allowed, word = _KINDS[plain]
    is_bool = isinstance(value, bool)
    is_too_large = isinstance(value, int) and not is_bool and abs(value) >= _INTEGERS
    if not isinstance(value, allowed) or (is_bool and plain is not bool) or is_too_large:
        shown = repr(value)
        is_out_of_range = is_too_large and plain in (int, float)
        wrong = "is out of range: whole numbers lie between -2^63 and 2^63" if is_out_of_range else f"is no {word}"
        raise ConfigError(f"{where}={shown[:_SHOWN]}{'...' if len(shown) > _SHOWN else ''} {wrong}")


def _check_keys(kind: Any, value: Mapping[str, Json], where: str) -> None:  # noqa: ANN401
    required = {field.name: field.default is field.default_factory is MISSING for field in fields(kind)}
    place = f"{where}." if where else ""
    if unknown := sorted(value.keys() - required.keys()):
        raise ConfigError(f"unknown key {place}{unknown[0]}")
    for name, is_required in required.items():
        if is_required and name not in value:
            raise ConfigError(f"missing key {place}{name}")


def _inside(kind: Any, value: Json, where: str) -> Iterator[tuple[Any, Any, Json, str]]:  # noqa: ANN401
    """Yield key, type, value and place of everything in a class's table, a dict, a list or a tuple."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (list, tuple):
        yield from ((at, arguments[0], item, f"{where}[{at}]") for at, item in enumerate(value))
    elif origin is dict or is_dataclass(kind):
        known = _hints(kind) if is_dataclass(kind) else dict.fromkeys(value, arguments[1])
        yield from (
            (key, known[key], item, f"{where}.{key}".lstrip(".")) for key, item in value.items() if key in known
        )


def flatten(value: Json, prefix: str = "") -> dict[str, Json]:
    """Return nested dicts as one flat dict with dotted keys; lists and empty dicts stay whole.

    >>> flatten({"model": {"name": "cnn"}, "seed": 0})
    {'model.name': 'cnn', 'seed': 0}
    """
    if not isinstance(value, dict) or not value:
        return {prefix: value} if prefix else {}
    flat: dict[str, Json] = {}
    for key, item in value.items():
        flat |= flatten(item, f"{prefix}.{key}" if prefix else str(key))
    return flat
