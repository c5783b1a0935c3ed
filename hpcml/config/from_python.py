"""Settings that are Python's values, as the words of ``hpcml run`` that say the same: `setting_word`, `sweep_word`.

What fills a placeholder of the user's own program is no word for Hydra, which would take its quotes away: `arguments`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import PurePath

from hpcml.config.command_line import in_quotes
from hpcml.errors import ConfigError, require

_NAME = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)  # needs no quotes, unless it is one of those
_READ_AS_OTHER = frozenset({"null", "true", "false", "nan", "inf"})
_ARGUMENT = re.compile(r"(?:\+{0,2}workload\.)?args\.([^\s=]+)")
_COMMA_THAT_IS_MEANT = r"\,"
_KEY = re.compile(r"[A-Za-z_][\w./@-]*", re.ASCII)  # of a mapping: Hydra's grammar has no quotes there


def setting_word(key: str, value: object) -> str:
    """Return the word that sets *key* to *value*: None, a truth value, number, text, path, enum, list or mapping.

    Raises `ConfigError` for other values, and for a mapping whose keys Hydra's grammar cannot write.

    >>> setting_word("workload.metrics", [{"pattern": "loss (?P<value>.+)", "name": "loss"}])
    'workload.metrics=[{pattern:"loss (?P<value>.+)",name:loss}]'
    """
    _check_key(key)
    return f"{key}={_written(key, value)}"


def sweep_word(key: str, values: Iterable[object]) -> tuple[str, bool]:
    """Return the word that gives *key* each of *values* in turn, and whether it is a sweep, which ``-m`` allows.

    Raises `ConfigError` where *values* are a single text or none, and as `setting_word`.

    >>> sweep_word("seed", range(3))
    ('seed=0,1,2', True)
    """
    _check_key(key)
    written = [_written(key, value) for value in _listed(key, values)]
    return f"{key}={','.join(written)}", len(written) > 1


def arguments(
    settings: Mapping[str, object], sweep: Mapping[str, Iterable[object]]
) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return what fills placeholders of a program: by the key (``args.lr``) the placeholder's name and its values.

    Texts are as they are; other values are written as settings are.

    >>> arguments({"args.name": "it's"}, {"args.lr": [0.1, 1], "seed": range(3)})
    {'args.name': ('name', ("it's",)), 'args.lr': ('lr', ('0.1', '1'))}
    """
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for key, values in [*((key, [value]) for key, value in settings.items()), *sweep.items()]:
        if isinstance(key, str) and (match := _ARGUMENT.fullmatch(key)):
            require(key not in found, f"{key} is in settings and in sweep: leave one of them out")
            found[key] = match[1], tuple(_argument(key, value) for value in _listed(key, values))
    return found


def argument_word(key: str, values: Sequence[str], *, is_sweep: bool) -> str:
    """Return the word that says of `arguments` on a command line; one with ``-m`` splits it at commas (*is_sweep*)."""
    return f"{key}={','.join(value.replace(',', _COMMA_THAT_IS_MEANT) if is_sweep else value for value in values)}"


def with_metrics(settings: Sequence[str], metrics: Sequence[str], *, is_printed: bool) -> list[str]:
    """Return *settings* with the first of *metrics* as what runs are judged by; all are read as they are printed.

    A recipe reports its own: nothing is read of what it prints (*is_printed* is False).
    """
    begin = "workload.metrics=["
    judged = [] if any(word.startswith("objective.metric=") for word in settings) else [metrics[0]]
    words = [*settings, *(setting_word("objective.metric", name) for name in judged)]
    if not is_printed:
        return words
    rules = setting_word("workload.metrics", [{"name": name} for name in dict.fromkeys(metrics)])
    others = [word for word in settings if word.startswith(begin)]
    if others:
        rules = f"{rules[:-1]},{others[-1].removeprefix(begin)}"
    return [*(word for word in words if word not in others), rules]


def _listed(key: str, values: object) -> list[object]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ConfigError(f"sweep[{key!r}]={values!r}: a list of values is asked for")
    listed = list(values)
    require(bool(listed), f"sweep[{key!r}] has no values")
    return listed


def _argument(key: str, value: object) -> str:
    if isinstance(value, Enum):
        return value.name
    return str(value) if isinstance(value, str | PurePath) else _written(key, value)


def _check_key(key: object) -> None:
    require(
        isinstance(key, str) and bool(re.fullmatch(r"[+~]{0,2}[^\s=+~][^\s=]*", key)),
        f"{key!r} is no key of a setting, as precision or training.steps are",
    )


def _written(key: str, value: object) -> str:
    if isinstance(value, Enum):
        value = value.name
    if isinstance(value, str | PurePath):
        return _text(str(value))
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_name(key, name)}:{_written(key, each)}' for name, each in value.items())}}}"
    is_scalar = isinstance(value, bytes) or getattr(value, "ndim", None) == 0  # of NumPy's or torch's
    if isinstance(value, Iterable) and not is_scalar:
        return f"[{','.join(_written(key, each) for each in value)}]"
    return _scalar(key, value)


def _text(text: str) -> str:
    is_name = _NAME.fullmatch(text) and text.lower() not in _READ_AS_OTHER
    return text if is_name else in_quotes(text)


def _name(key: str, name: object) -> str:
    if isinstance(name, str) and _KEY.fullmatch(name):
        return name
    raise ConfigError(f"{key}: {name!r} cannot be written as a key of a mapping: put it into a file of ./conf")


def _scalar(key: str, value: object) -> str:
    item = getattr(value, "item", None)  # a number of NumPy's or torch's
    plain = item() if callable(item) else value
    if plain is None:
        return "null"
    if isinstance(plain, bool):
        return str(plain).lower()
    if isinstance(plain, int | float):
        return repr(plain)
    raise ConfigError(f"{key}={value!r}: a {type(value).__name__} is no value of a setting")
