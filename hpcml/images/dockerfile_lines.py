"""Takes a Dockerfile apart into instructions with their here-documents, and quotes for the shell of a build."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from hpcml.errors import ConfigError

_INSTRUCTION = re.compile(r"([A-Za-z]+)(?:\s+(.*))?", re.DOTALL)
_OTHER = r""""(?:\\.|[^"\\])*"|'[^']*'|\(\(.*?\)\)"""  # quotes, and arithmetic, in which << shifts bits
_HEREDOC = re.compile(rf"""(?<![<\w])\d*<<(?P<tabs>-?)(?P<quote>["']?)(?P<word>[A-Za-z_]\w*)(?P=quote)|{_OTHER}""")
_TAKE_HEREDOCS = frozenset({"RUN", "COPY", "ADD"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Heredoc:
    """A here-document: ``COPY <<"WORD" /target`` and the lines up to WORD.

    *is_quoted*: its variables stay as they are written.
    """

    word: str
    lines: tuple[str, ...]
    is_quoted: bool

    @property
    def text(self) -> str:
        """Return all lines, each with its end."""
        return "".join(f"{line}\n" for line in self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction: *words* are all that stands behind its *name*, which is in capitals."""

    line: int  # of the file, from 1: its first
    name: str
    words: str
    heredocs: tuple[Heredoc, ...] = ()


def instructions(text: str, path: object) -> Iterator[Instruction]:
    """Yield the instructions of the Dockerfile *text*; comments and continuations are taken out.

    Raises `ConfigError`, which names *path* and line, for a here-document without an end.
    """
    lines = enumerate(text.splitlines(), 1)
    goes_on, begun, first = _goes_on("\\"), "", 0
    for number, line in lines:
        directive = re.fullmatch(r"#\s*escape\s*=\s*(\S)\s*", line)
        if directive and not first:
            goes_on = _goes_on(directive[1])
        if line.lstrip().startswith("#") or not line.strip():
            continue
        first = first if begun else number
        begun += line if begun else line.lstrip()
        if goes_on.search(begun):
            begun = goes_on.sub("", begun) or " "
            continue
        name, words = _split(begun)
        heredocs = tuple(_heredocs(words, lines, f"{path}:{first}")) if name in _TAKE_HEREDOCS else ()
        yield Instruction(line=first, name=name, words=words, heredocs=heredocs)
        begun = ""
    if begun.strip():
        name, words = _split(begun)
        yield Instruction(line=first, name=name, words=words)


def _goes_on(escape: str) -> re.Pattern[str]:
    """Return what ends a line that the next one continues: the sign alone, not behind another one of its kind."""
    sign = re.escape(escape)
    return re.compile(rf"(?<!{sign}){sign}[ \t]*$")


def _split(line: str) -> tuple[str, str]:
    match = _INSTRUCTION.fullmatch(line.strip())
    return (match[1].upper(), (match[2] or "").strip()) if match else (line.strip(), "")


def _heredocs(words: str, lines: Iterator[tuple[int, str]], where: str) -> Iterator[Heredoc]:
    """Read the here-documents that *words* announce from the *lines* behind them."""
    for match in _HEREDOC.finditer(words):
        if match["word"] is None:
            continue
        body = []
        for _, line in lines:
            stripped = line.lstrip("\t") if match["tabs"] else line
            if stripped == match["word"]:
                break
            body.append(stripped)
        else:
            raise ConfigError(f"{where}: the here-document <<{match['word']} has no end: a line {match['word']} alone")
        yield Heredoc(word=match["word"], lines=tuple(body), is_quoted=bool(match["quote"]))


def without_heredocs(words: str) -> str:
    """Return *words* without what announces here-documents."""
    return _HEREDOC.sub(lambda match: match[0] if match["word"] is None else "", words).strip()


def listed(words: str) -> list[str] | None:
    """Return the words of a JSON list, as RUN, COPY and others take; None for anything else."""
    if not words.startswith("["):
        return None
    try:
        found = json.loads(words)
    except ValueError:
        return None
    return found if isinstance(found, list) and all(isinstance(word, str) for word in found) else None


def unquoted(value: str) -> str:
    """Return *value* without the quotes around it."""
    value = value.strip()
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def printing(text: str) -> str:
    r"""Return the command, on one line, that prints *text* of several in the shell of a build.

    >>> print(printing("one\n'two'\n"))
    printf %b 'one\n'"'"'two'"'"'\n'
    """
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return f"printf %b {quoted(escaped)}"


def quoted(*words: str) -> str:
    """Return the *words* for a shell; of ``{{``, which Apptainer reads as its own, nothing is left to it."""
    return shlex.join(words).replace("{{", "{''{")


def in_double_quotes(text: str) -> str:
    """Return *text* as it stands between double quotes of a shell."""
    return re.sub(r'([$`"\\])', r"\\\1", text).replace("{{", '{""{')
