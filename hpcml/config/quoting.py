"""Puts quotes where people leave them out, since Hydra's grammar would refuse a word or read a number in it.

What is a text whatever it looks like keeps its spelling: ``container.environment.A=1.10``, ``container.pip=[a==1.0]``;
so does the name of an option: ``precision=16``.
"""

from __future__ import annotations

import re
from functools import cache

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException

from hpcml.config.command_line import Words, in_quotes, kinds_by_key
from hpcml.errors import ConfigError, require
from hpcml.model.run import Run
from hpcml.paths import resource_dir

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_NOT_TEXT = re.compile(  # it begins as a list, or has quotes: its writer meant more
    r"^[\[{(]|['\"]|^\w+\(|\$\{(?![^{}]*\})"
)
_IN_BRACKETS = re.compile(r"[{(]([-+\w.]+(?:,[-+\w.]+)+)[)}]")
_VARIABLES = (  # texts, whatever they look like
    *("container.environment.", "container.labels.", "workload.env."),
    *("resources.pbs.options.", "cluster.pbs.chunk."),
)
_MAY_CHANGE = re.compile(r"(?:^|,)\s*(?:[-+.\d]|(?:true|false|nan|inf)\s*(?:$|,))", re.IGNORECASE)  # read as no text
_LISTS_OF_TEXTS = ("container.pip", "container.apt", "container.post", "container.options", "container.binds")


def readable(words: Words) -> Words:
    """Return *words* with quotes around values that Hydra's grammar cannot read: ``~/data``, ``acn[01]``.

    Raises `ConfigError` for what no quotes would mend: a bracket or a quote that is not closed, an empty part.
    """
    parser = OverridesParser.create()
    return Words(words.flags, tuple(_quoted_where_needed(word, parser) for word in words.overrides))


def value_in(word: str) -> object:
    """Return the value that *word* (``key=value``) gives, of no sweep; raise `ConfigError` where it cannot be read."""
    (readable_word,) = readable(Words((), (word,))).overrides
    (override,) = OverridesParser.create().parse_overrides([readable_word])
    require(not override.is_sweep_override(), f"{word}: one value is asked for, and this is a sweep")
    return override.value()


def _quoted_where_needed(word: str, parser: OverridesParser) -> str:
    key, sign, value = word.partition("=")
    if key.lstrip("+").startswith(_VARIABLES) or (_MAY_CHANGE.search(value) and key.lstrip("+") in _texts()):
        word = f"{key}={','.join(_spelled(part, parser) for part in _split(value))}"
    elif key.lstrip("+") in groups_of_options():
        word = f"{key}={','.join(_option(part, parser) for part in _split(value))}"
    elif f"{key.lstrip('+')}." in _VARIABLES and value[:1] + value[-1:] == "{}":
        pairs = [pair.partition(":") for pair in _split(value[1:-1])]
        word = f"{key}={{{','.join(f'{name}{colon}{_spelled(text.strip(), parser)}' for name, colon, text in pairs)}}}"
    elif key.lstrip("+") in _LISTS_OF_TEXTS and not _can_be_read(word, parser):
        word = f"{key}={','.join(_texts_quoted(part, parser) for part in _split(value))}"
    if _can_be_read(word, parser):
        return word
    value = word.partition("=")[2]
    mended = (
        f"{key}={','.join(part if _can_be_read(f'x={part}', parser) else in_quotes(part) for part in _parts(value))}"
    )
    is_text = bool(value) and not _NOT_TEXT.search(value) and not _CONTROL.search(value)
    if sign and is_text and all(_parts(value)) and _can_be_read(mended, parser):
        return mended
    raise ConfigError(f"{word!r} is no override: {_what_to_write(word)}")


@cache
def groups_of_options() -> frozenset[str]:
    """Return the groups that hpcml has, as precision: those of a user's own are not among them."""
    return frozenset(folder.name for folder in resource_dir("conf").iterdir() if folder.is_dir())


@cache
def _texts() -> frozenset[str]:
    """Return the keys whose values are texts."""
    return frozenset(key for key, kind in kinds_by_key(Run).items() if kind is str)


def _spelled(value: str, parser: OverridesParser) -> str:
    """Return *value* in quotes where Hydra would read a number or a truth value and write it in another way: 1.10."""
    if not _can_be_read(f"x={value}", parser):
        return value
    read = _read(value, parser)
    return in_quotes(value) if isinstance(read, bool | int | float) and str(read) != value else value


def _option(value: str, parser: OverridesParser) -> str:
    """Return the name of an option in quotes where Hydra would read a number, and refuse that without saying which."""
    if not _can_be_read(f"x={value}", parser):
        return value
    return in_quotes(value) if isinstance(_read(value, parser), bool | int | float | None) else value


def _read(value: str, parser: OverridesParser) -> object:
    (override,) = parser.parse_overrides([f"x={value}"])
    return override.value()


def _texts_quoted(value: str, parser: OverridesParser) -> str:
    """Return a list with quotes around those of its texts that Hydra's grammar cannot read: ``[timm==1.0.9]``."""
    if not (value.startswith("[") and value.endswith("]")):
        return value
    texts = [text.strip() for text in _split(value[1:-1])]
    if any(_CONTROL.search(text) for text in texts):
        return value
    bare = [
        text if _can_be_read(f"x=[{text}]", parser) or set(text) & {"'", '"'} else in_quotes(text) for text in texts
    ]
    return f"[{','.join(bare)}]"


def _split(value: str) -> list[str]:
    """Return what stands between the commas of *value* that are in no brackets and no quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in value:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        else:
            depth += (sign in "[({") - (sign in "])}")
            if sign == "," and depth == 0:
                parts.append("")
                continue
        parts[-1] += sign
    return parts


def _can_be_read(word: str, parser: OverridesParser) -> bool:
    try:
        parser.parse_overrides([word])
    except OverrideParseException:
        return False
    return True


def _parts(value: str) -> list[str]:
    """Return what stands between commas outside of brackets: the points of a sweep."""
    return re.split(r",(?![^\[]*\])", value)


def _what_to_write(word: str) -> str:
    """Return how a word that Hydra cannot read is put right."""
    key, sign, value = word.partition("=")
    name = key.lstrip("+~")
    if not sign or not re.fullmatch(r"[\w./@:-]+", name, re.ASCII) or re.search(r"(?:^|[./])\d+[A-Za-z_]", name):
        return (
            "write key=value, with letters, digits, . and _ in the key, where no name begins with a digit "
            "(hpcml run --help lists the keys)"
        )
    return _how_to_write(name, value)


def _how_to_write(name: str, value: str) -> str:
    if _CONTROL.search(value):
        return "there is a control character in it"
    if not all(part.strip() for part in value.split(",")):
        return f"a list of values has an empty part; no blanks and no comma too many, as in {name}=a,b"
    for opening, closing in ("[]", "{}", "()"):
        if value.count(opening) != value.count(closing):
            return f"an {opening} or {closing} is missing; a text with one is written '{name}=\"...\"'"
    if value.count("'") % 2 or value.count('"') % 2:
        return (
            f'a quote is not closed; a text with one is written {name}="it\'s", and all of it in quotes for the shell'
        )
    if (values := _IN_BRACKETS.fullmatch(value)) is not None:
        return f"the values of a sweep stand without brackets: -m {name}={values[1]}"
    texts = '"..."'
    if value.startswith("[") and value.endswith("]"):
        texts = "[" + ",".join(texts for _ in _split(value[1:-1])) + "]"
    return f"a text with such signs is written in two kinds of quotes: write '{name}={texts}'"
