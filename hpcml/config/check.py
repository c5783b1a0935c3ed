"""Holds each word of the command line against the schema of a run, before Hydra reads any."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin

import omegaconf
from hydra.core.override_parser.types import Override, Sweep
from omegaconf import BooleanNode, EnumNode, FloatNode, IntegerNode, StringNode
from omegaconf.errors import ValidationError

from hpcml.config.schema import KeyType, kinds_by_key
from hpcml.errors import ConfigError, require
from hpcml.spelling import did_you_mean

_SCALARS: dict[type, Any] = {int: IntegerNode, float: FloatNode, bool: BooleanNode, str: StringNode}
_IN_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "one text: leave out the brackets"}
_OF_RECIPES = ("training.", "model.", "data.", "layout.", "profile.")  # that a program of the user's own has no use for
_OPTIONAL = ("devices", "study")  # groups of which nothing is chosen by default
_RANGE = re.compile(r"(\d+)\.\.(\d+)")  # as behind the --


def check_key(key: str, word: str, *, is_own: bool) -> KeyType | None:
    """Return what *key* takes, None below a dict or a list, where any name may stand.

    Raises `ConfigError` naming *word* where there is no such key; *is_own*: a program of the user's own is started.
    """
    kinds = kinds_by_key()
    if (kind := kinds.get(key)) is not None:
        return kind
    names = key.split(".")
    for depth in range(len(names) - 1, 0, -1):
        above = ".".join(names[:depth])
        if (kind := kinds.get(above)) is None or is_dataclass(kind.type):
            continue
        if get_origin(kind.type) in (dict, list):
            return None
        raise ConfigError(f"{word}: {above} has a value, and nothing below it: write {above}={word.partition('=')[2]}")
    raise ConfigError(f"unknown key {key}: {_meant_by(key, is_own=is_own)}")


def check_value(key: str, kind: KeyType, value: object) -> None:
    """Raise `ConfigError` where *value*, as Hydra's grammar read it, is none that *key* takes."""
    if isinstance(value, str) and ("${" in value or value == omegaconf.MISSING) and not is_dataclass(kind.type):
        return
    if value is None:
        require(kind.is_optional, f"{key}=null: {key} needs a value: leave the word out for its default")
    elif is_dataclass(kind.type):
        below = [each for each in kinds_by_key() if each.startswith(f"{key}.")]
        require(isinstance(value, dict), f"{key}={value}: {key} is a section: set one of its keys, {', '.join(below)}")
    elif get_origin(kind.type) is dict:
        require(isinstance(value, dict), f"{key}={value}: {key} has names below it: write {key}.NAME=VALUE")
    elif get_origin(kind.type) is list:
        require(isinstance(value, list), f"{key}={value}: {key} is a list: write '{key}=[{_items(kind.type, value)}]'")
    else:
        _check_scalar(key, kind.type, value)


def _items(kind: object, value: object) -> str:
    (each,) = get_args(kind)
    if is_dataclass(each):
        return f"{{{', '.join(f'{field.name}: ...' for field in fields(each)[:2])}}}"
    return str(value) if re.fullmatch(r"[\w./*=@+-]*\w[\w./*=@+-]*", str(value)) else "a,b"


def _check_scalar(key: str, kind: Any, value: Any) -> None:  # noqa: ANN401 - a type, and any value
    try:
        if isinstance(kind, type) and issubclass(kind, Enum):
            EnumNode(kind, value)
        elif kind in _SCALARS:
            _SCALARS[kind](value)
    except ValidationError as error:
        if kind in _SCALARS:
            takes = _IN_WORDS[kind]
            if ends := _RANGE.fullmatch(str(value)):
                takes += f"; a range of them is written -m '{key}=range({ends[1]},{int(ends[2]) + 1})'"
        else:
            guess = did_you_mean(str(value), names := [each.name for each in kind])
            takes = f"one of {', '.join(names)}{f'; {guess}' if guess else ''}"
        raise ConfigError(f"{key}={value}: {key} is {takes}") from error


def check_override(word: Override, *, options: Collection[str], is_own: bool) -> None:
    """Raise `ConfigError` where *word* sets no key of a run, or a value that its key does not take.

    *options* are those of the group that it chooses from, if any; *is_own*: a program of the user's own is started.
    """
    key, text, value = word.key_or_group, str(word.input_line), word.value()
    values = _values(value)
    if options:
        for name in values if not word.is_delete() and isinstance(values, list) else []:
            check_option(key, name, options)
    elif not word.is_hydra_override() and word.package is None and (kind := check_key(key, text, is_own=is_own)):
        require(
            not word.is_delete(),
            f"{text}: every run has {key}: write {key}=VALUE, or leave the word out for its default",
        )
        for each in values:
            check_value(key, kind, each)


def _values(value: object) -> list[Any]:
    """Return the values of a word; those of a range, which are numbers all, by its first."""
    if not isinstance(value, Sweep):
        return [value]
    listed = getattr(value, "list", None)
    if listed is None:
        return [start] if (start := getattr(value, "start", None)) is not None else []
    return [Override._convert_value(each) for each in listed]  # noqa: SLF001


def check_option(group: str, name: object, options: Collection[str]) -> None:
    """Raise `ConfigError` where *name* is none of the *options* of *group*."""
    name = "null" if name is None and group not in _OPTIONAL else name
    if isinstance(name, str) and name not in options and "${" not in name:
        guess = did_you_mean(name, options)
        raise ConfigError(
            f"Could not find '{group}/{' '.join(name.split())}': {f'{guess} ' if guess else ''}"
            f"{group} is one of {', '.join(options)}"
        )


def _meant_by(key: str, *, is_own: bool) -> str:
    """Return what somebody may have meant by *key*, which there is not; *is_own*: of their program, perhaps."""
    known = kinds_by_key()
    if not is_own or "." in key:
        return did_you_mean(key, known) or "hpcml run --help lists the keys"
    guess = did_you_mean(key, [each for each in known if not each.startswith(_OF_RECIPES)])
    option = f"an option of your program stands behind the --: hpcml run [-m] -- python train.py --{key} VALUE[,VALUE]"
    return f"{guess} {option[0].upper()}{option[1:]}" if guess else option
