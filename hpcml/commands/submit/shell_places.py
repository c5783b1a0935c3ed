"""What lines of a shell write to, by absolute places and places in a home; and which words are such places."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_NOBODYS = re.compile(r"/(?:dev/(?!shm/)|proc/|sys/|usr/|etc/|bin/|sbin/|lib\w*/|opt/|run/|nix/)")
_PLACE = re.compile(r"(?:~|\$HOME|\$\{HOME\})(?=/|$)|/(?=[\w.])")
_DATABASE = re.compile(r"^(?:sqlite|duckdb)(?:\+\w+)?://")
OF_SHELLS = frozenset({"PWD", "OLDPWD"})  # another one in a run
_COMMENT = re.compile(r"(?:^|\s)#.*")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_SET = re.compile(r"""(?:^|[;&]|\bexport |\breadonly )\s*(\w+)[:?]?=\s*(["']?)(\S*?)\2(?=$|[\s;&])""")
_DEFAULT = re.compile(r"\$\{(\w+):?[-=]([^}]*)\}")
_LONGEST_LINE = 1000  # characters: of longer ones some of these patterns take the square of their time
_WORD = r"""["']?((?:~|/)[^\s"';|&<>()]+)["']?"""
_SHELL_WRITES = (
    re.compile(rf"(?<![<&])>>?\s*{_WORD}"),
    re.compile(rf"\btee\s+(?:-\w+\s+)*{_WORD}"),
    re.compile(rf"\b(?:cp|mv|rsync|touch)\s(?:[^;&|]*\s)?{_WORD}\s*(?:$|[;&|])"),
    re.compile(rf"(?:^|[;&|(])\s*cd\s+{_WORD}"),
    re.compile(
        r"\s--?(?![\w-]*(?:init|load|restore|resume|pretrained|from|conf))"  # what is read
        r"(?:[\w-]*[_-])?(?:out|save|log(?!i[nst])|result|(?:ckpt|checkpoint)s?[_-]?(?:dir|folder|root))"  # no --layout
        rf"[\w-]*[= ]\s*{_WORD}",
        re.IGNORECASE,
    ),
)


def place_in(text: str, *, most_general: bool = False) -> str | None:
    """Return the place outside of any run's folder that *text* is, with ~ for a home; None where it is none.

    *most_general*: the home itself, and the root of a file system, count too.

    >>> place_in("/tmp/model.pt"), place_in("$HOME/out"), place_in("sqlite:////tmp/a.db"), place_in("out/a.pt")
    ('/tmp/model.pt', '~/out', '/tmp/a.db', None)
    >>> place_in("/dev/null"), place_in("~"), place_in("~", most_general=True)
    (None, None, '~')
    """
    if _DATABASE.match(text):
        text = _DATABASE.sub("", text).removeprefix("/")
    if (found := _PLACE.match(text)) is None or "\n" in text or _NOBODYS.match(text):
        return None
    place = ("~" if found.end() > 1 else "") + text[found.end() :] if found[0] != "/" else text
    place = text if found[0] in ("/", "~") else place
    is_general = place.rstrip("/") in ("~", "") or place.count("/") < (1 if place.startswith("~") else 2)
    return None if is_general and not most_general else place


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of *text* with their numbers, but for those that nobody wrote by hand."""
    return ((number, line) for number, line in enumerate(text.splitlines(), start=1) if len(line) <= _LONGEST_LINE)


def of_shell(text: str, environ: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield what lines of a shell's script write to, with variables that the script or the environment has set."""
    known: dict[str, str | None] = {"HOME": "~", **dict.fromkeys(OF_SHELLS)}

    def expanded(part: str) -> str:
        part = _DEFAULT.sub(lambda of: known.get(of[1]) or environ.get(of[1]) or of[2], part)
        return _VARIABLE.sub(lambda of: _value(of[1] or of[2]) or of[0], part)

    def _value(name: str) -> str | None:
        value = known[name] if name in known else environ.get(name)
        if value is None or len(value) > _LONGEST_LINE or place_in(value, most_general=True) is None:
            return None
        return value

    for number, raw in lines_of(text):
        line = _COMMENT.sub("", raw)
        for name, _, value in _SET.findall(line):
            known[name] = expanded(value)
        told = expanded(line)
        for pattern in _SHELL_WRITES:
            for found in pattern.finditer(told):
                place = place_in(found[1])
                if place is not None and "$" not in place and "`" not in place and "*" not in place:
                    yield number, place
