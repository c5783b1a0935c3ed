"""Reads a word of the command line by Hydra's grammar, with quotes put where people leave them out.

What the grammar cannot read is a text: ``~/data``, ``acn[01]``. Where a key takes a text its spelling is kept, though
the grammar would read a number: ``container.tag=1.10``, ``container.pip=[a==1.0]``, ``precision=16``.
"""

from __future__ import annotations

import re
from typing import get_args

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException

from hpcml.config.command_line import in_quotes
from hpcml.config.schema import groups, kinds_by_key
from hpcml.errors import ConfigError, require

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_NOT_TEXT = re.compile(  # it begins as a list, or has quotes: its writer meant more
    r"^[\[{(]|['\"]|^\w+\(|\$\{(?![^{}]*\})"
)


def parse(word: str, parser: OverridesParser) -> Override:
    """Return what Hydra's grammar makes of *word*, with quotes put where they are needed.

    Raises `ConfigError` for what no quotes would mend: a bracket or a quote that is not closed, an empty part.
    """
    key, sign, value = word.partition("=")
    takes_text = sign and _takes_text(key.lstrip("+~"))
    is_choice = key.lstrip("+") in groups()
    tried = (
        f"{key}={','.join(_as_text(part, parser, is_choice=is_choice) for part in split(value))}"
        if takes_text
        else word
    )
    if (override := _read(tried, parser)) is not None:
        return override
    parts = split(value)
    mended = f"{key}={','.join(part if _read(f'x={part}', parser) else in_quotes(part) for part in parts)}"
    is_text = bool(sign) and not _NOT_TEXT.search(value) and not _CONTROL.search(value) and all(map(str.strip, parts))
    if is_text and (override := _read(mended, parser)) is not None:
        return override
    raise ConfigError(f"{word!r} is no override: {_what_to_write(word)}")


def value_in(word: str) -> object:
    """Return the value that *word* (``key=value``) gives, of no sweep; raise `ConfigError` where it cannot be read."""
    override = parse(word, OverridesParser.create())
    require(not override.is_sweep_override(), f"{word}: one value is asked for, and this is a sweep")
    return override.value()


def _takes_text(key: str) -> bool:
    kinds = kinds_by_key()
    kind, above = kinds.get(key), kinds.get(key.rpartition(".")[0])
    if key in groups() or (kind is None and above is not None and get_args(above.type)[1:] == (str,)):
        return True  # the name of an option, or a value below a dictionary of texts
    return kind is not None and (kind.type is str or get_args(kind.type)[-1:] == (str,))


def _as_text(value: str, parser: OverridesParser, *, is_choice: bool = False) -> str:
    """Return *value* with quotes where the grammar cannot read it, or would read a number and write it otherwise."""
    if value[:1] + value[-1:] in ("[]", "{}") and not _CONTROL.search(value):
        return f"{value[0]}{','.join(_item(part, parser, value[0]) for part in split(value[1:-1]))}{value[-1]}"
    override = _read(f"x={value}", parser)
    if override is None:
        return value if _NOT_TEXT.search(value) or _CONTROL.search(value) or not value.strip() else in_quotes(value)
    read = override.value()
    return in_quotes(value) if isinstance(read, bool | int | float) and (is_choice or str(read) != value) else value


def _item(part: str, parser: OverridesParser, bracket: str) -> str:
    name, colon, text = part.partition(":") if bracket == "{" else ("", "", part)
    return f"{name}{colon}{_as_text(text.strip(), parser)}"


def split(value: str) -> list[str]:
    """Return what stands between the commas of *value* that are in no brackets and no quotes, and have no backslash."""
    parts, depth, quote = [""], 0, ""
    signs = iter(value)
    for sign in signs:
        if sign == "\\":
            parts[-1] += sign + next(signs, "")
            continue
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign == "," and depth == 0:
            parts.append("")
            continue
        else:
            depth = max(0, depth + (sign in "[({") - (sign in "])}"))
        parts[-1] += sign
    return parts


def _read(word: str, parser: OverridesParser) -> Override | None:
    try:
        return parser.parse_overrides([word])[0]
    except OverrideParseException:
        return None
    except (HydraException, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{word!r} is no override: {str(error).partition(chr(10))[0] or 'it is nested too deeply'}"
        ) from error


def _what_to_write(word: str) -> str:
    """Return how a word that Hydra cannot read is put right."""
    key, sign, value = word.partition("=")
    name = key.lstrip("+~")
    if not sign or not re.fullmatch(r"[\w./@:-]+", name, re.ASCII) or re.search(r"(?:^|[./])\d+[A-Za-z_]", name):
        return (
            "write key=value, with letters, digits, . and _ in the key, where no name begins with a digit "
            "(hpcml run --help lists the keys)"
        )
    if _CONTROL.search(value):
        return "there is a control character in it"
    return f"values of a sweep are written {name}=a,b, a text with such signs in two kinds of quotes: '{name}=\"...\"'"
