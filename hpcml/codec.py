"""Frozen dataclasses to JSON values and back without loss: `decode(T, encode(x)) == x`.

run.json, image records and the flat parameters in the store are written with it.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from hpcml.errors import ConfigError

Json = Any  # what json.dumps takes; recursive aliases do not help mypy here
_SCALARS = frozenset({str, int, float, bool, type(None)})
_SHOWN = 60  # characters of a value in an error


def encode(value: object) -> Json:
    """Return *value* as plain dicts, lists and scalars for `json.dumps`; enums become their names, tuples lists.

    >>> encode(Precision(name=PrecisionName.fp32))["name"]
    'fp32'
    """
    kind: Any = type(value)
    if kind in _SCALARS:
        return value
    if names := _field_names(kind):
        return {name: encode(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


@functools.cache
def _field_names(kind: Any) -> tuple[str, ...]:  # noqa: ANN401
    """Return the names of a dataclass's fields; () of any other type."""
    is_enum = isinstance(kind, type) and issubclass(kind, Enum)
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) and not is_enum else ()


def decode(kind: Any, value: Json, *, where: str = "") -> Any:  # noqa: ANN401, PLR0911 - one return for each kind
    """Rebuild an instance of the type *kind* from JSON values; what is an instance of a dataclass already stays.

    Raises `ConfigError` for an unknown or missing key, for a value of another type, and for a name that an enum lacks,
    with its place below *where* ("cluster.queues"). Classes check themselves as they are made, and may raise it
    too.
    """
    own: Any = type(value)
    if _field_names(own) and isinstance(kind, type) and isinstance(value, kind):
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, types.UnionType):
        if value is None:
            return None
        return decode(_fitting(arguments, value), value, where=where)
    check_type(kind, value, where=where, is_deep=False)
    if origin in (list, tuple):
        return origin(decode(arguments[0], item, where=f"{where}[{at}]") for at, item in enumerate(value))
    if origin is dict:
        return {key: decode(arguments[1], item, where=f"{where}.{key}") for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind[value]
        except KeyError as error:
            raise ConfigError(f"{where}={value[:_SHOWN]!r} is none of {', '.join(kind.__members__)}") from error
    if is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    if kind is float and isinstance(value, int):
        return float(value)  # JSON writes 1.0 as 1 in some tools
    return value


_KINDS: Mapping[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "text"),
    int: ((int,), "whole number"),
    float: ((int, float), "number"),
    bool: ((bool,), "true or false"),
    list: ((list, tuple), "list"),
    dict: ((dict,), "table"),
}
_INTEGERS = 2**63  # what a database can keep


def check_type(kind: Any, value: Json, *, where: str, is_deep: bool = True) -> None:  # noqa: ANN401
    """Raise `ConfigError` where a JSON value, or with *is_deep* one inside of it, is of another type than *kind* says.

    Keys that a class does not know, or that are missing, are passed over, and so are names that an enum lacks.
    """
    origin, arguments, is_class = get_origin(kind), get_args(kind), is_dataclass(kind)
    if isinstance(kind, types.UnionType):
        if value is not None:
            check_type(_fitting(arguments, value), value, where=where, is_deep=is_deep)
        return
    plain = list if origin in (list, tuple) else dict if origin is dict or is_class else kind
    plain = str if isinstance(plain, type) and issubclass(plain, Enum) else plain
    if plain in _KINDS:
        _check_plain(plain, value, where)
    if not is_deep or plain not in (list, dict):
        return
    if is_class:
        hints, _ = _shape(kind)
        inside = [(hints[key], item, f".{key}") for key, item in value.items() if key in hints]
    elif plain is list:
        inside = [(arguments[0], item, f"[{at}]") for at, item in enumerate(value)]
    else:
        inside = [(arguments[1], item, f".{key}") for key, item in value.items()]
    for inner, item, place in inside:
        check_type(inner, item, where=f"{where}{place}".lstrip("."))


def _check_plain(plain: Any, value: Json, where: str) -> None:  # noqa: ANN401
    allowed, word = _KINDS[plain]
    is_yes_or_no = isinstance(value, bool) and plain is not bool
    is_too_large = isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _INTEGERS
    if not isinstance(value, allowed) or is_yes_or_no or is_too_large:
        shown = repr(value)
        is_out_of_range = is_too_large and plain in (int, float)
        wrong = "is out of range: whole numbers lie between -2^63 and 2^63" if is_out_of_range else f"is no {word}"
        raise ConfigError(f"{where}={shown[:_SHOWN]}{'...' if len(shown) > _SHOWN else ''} {wrong}")


def _fitting(kinds: Sequence[Any], value: Json) -> Any:  # noqa: ANN401
    """Return the first of *kinds* that *value* may be; the first of all where it may be none."""
    some = [kind for kind in kinds if kind is not type(None)]
    for kind in some if len(some) > 1 else ():
        with suppress(ConfigError):
            check_type(kind, value, where="", is_deep=False)
            return kind
    return some[0]


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
    """Return nested dicts as one flat dict with dotted keys; lists and empty dicts stay whole.

    >>> flatten({"model": {"name": "cnn"}, "seed": 0})
    {'model.name': 'cnn', 'seed': 0}
    """
    if not isinstance(value, dict) or not value:
        return {prefix: value} if prefix else {}
    flat: dict[str, Json] = {}
    _flatten_into(flat, value, f"{prefix}." if prefix else "")
    return flat


def _flatten_into(flat: dict[str, Json], value: Mapping[str, Json], prefix: str) -> None:
    for key, item in value.items():
        if isinstance(item, dict) and item:
            _flatten_into(flat, item, f"{prefix}{key}.")
        else:
            flat[sys.intern(f"{prefix}{key}")] = item  # the keys of thousands of runs are the same
