"""Reads the text of a definition as Apptainer does: stages, what their heads say, sections, arguments. Pure.

A line that begins with ``Bootstrap:`` begins a stage, wherever it stands, and one whose first word begins with ``%`` a
section (pkg/build/types/parser and internal/pkg/build/args of Apptainer 1.4). A piece is the lines of a stage's head,
or of a section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from hpcml.errors import ConfigError, require

_STAGE = re.compile(r"bootstrap:", re.IGNORECASE)
_ARGUMENT = re.compile(r"{{\s*(\w+)\s*}}", re.ASCII)
_REMARK = re.compile(r"#[^!]")
_ARGUMENTS = "%arguments"
_SECTIONS = frozenset(
    f"%{name}"
    for name in (
        *("arguments", "environment", "files", "help", "labels", "post", "pre", "runscript", "setup"),
        *("startscript", "test"),
        *("appenv", "appfiles", "apphelp", "appinstall", "applabels", "apprun", "appstart", "apptest"),
    )
)

Piece = list[str]


def pieces_of(text: str) -> list[Piece]:
    """Return the lines of a definition in pieces; remarks before the first stage belong to its head."""
    pieces: list[Piece] = [[]]
    for line in text.split("\n"):
        if line.lstrip().startswith("%") or (_STAGE.match(line) and not _is_remark(pieces[-1])):
            pieces.append([])
        pieces[-1].append(line)
    return [piece for piece in pieces if any(line.strip() for line in piece)]


def is_section(piece: Sequence[str]) -> bool:
    """Tell whether *piece* is a section, and not the head of a stage."""
    return piece[0].lstrip().startswith("%")


def section_name(piece: Sequence[str]) -> str:
    """Return the name of a section, as ``%post``; empty for the head of a stage."""
    return piece[0].split()[0].lower() if is_section(piece) else ""


def head_of(piece: Sequence[str]) -> dict[str, str]:
    """Return what the head of a stage says, by its names in small letters; nothing for a section.

    >>> head_of(["# mine", "BootStrap: docker", "From: alpine:3  # small"])
    {'bootstrap': 'docker', 'from': 'alpine:3'}
    """
    found: dict[str, str] = {}
    for line in () if is_section(piece) else piece:
        name, colon, value = line.partition("#")[0].partition(":")
        if colon:
            found[name.strip().lower()] = value.strip()
    return found


def last_stage(pieces: Sequence[Piece]) -> int:
    """Return the index of the piece with the head of the last stage."""
    return max((i for i, piece in enumerate(pieces) if head_of(piece)), default=0)


def check(text: str, path: object) -> None:
    """Raise `ConfigError` for a line that Apptainer would take for something else than what its writer meant."""
    n_stages = 0
    for number, line in enumerate(text.split("\n"), 1):
        word = (line.split() or [""])[0]
        if word.startswith("%"):
            is_name = word.lower() in _SECTIONS
            hint = "write it at the beginning of its line" if is_name else "there is none of that name"
            require(is_name and line.startswith("%"), f"{path}:{number}: {word} begins no section: {hint}")
        n_stages += _STAGE.match(line) is not None
    first = head_of(next(iter(pieces_of(text)), [""]))
    require(
        n_stages == 0 or not first or "bootstrap" in first,
        f"{path}: Apptainer wants Bootstrap: before {''.join([*first][:1])}: write it first",
    )


def with_arguments(text: str, given: Mapping[str, str], path: object) -> str:
    """Return *text* with the values of ``{{ NAME }}`` in their places, and without the sections ``%arguments``.

    A value is that of *given* (``--build-arg``), else of the stage's own ``%arguments``. As Apptainer does, what stands
    behind a ``#`` is left alone. Raises `ConfigError` for a name without a value, and for one of *given* that is not in
    the text.
    """
    pieces, used, done = pieces_of(text), set[str](), list[str]()
    if given or any(section_name(piece) == _ARGUMENTS for piece in pieces) or _ARGUMENT.search(text):
        for stage in _stages(pieces):
            known = {**_defaults(stage), **given}
            for piece in stage:
                if section_name(piece) != _ARGUMENTS:
                    done += [_filled(line, known, used, path) for line in piece]
        text = "\n".join(done)
    unknown = sorted({*given} - used)
    require(
        not unknown,
        f"container.build_args.{''.join(unknown[:1])}: {path} has no {{{{ {''.join(unknown[:1])} }}}}",
    )
    return text


def _is_remark(piece: Sequence[str]) -> bool:
    return all(not line.strip() or line.lstrip().startswith("#") for line in piece)


def _stages(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    stage: list[Piece] = []
    for piece in pieces:
        if stage and head_of(piece):
            yield stage
            stage = []
        stage.append(piece)
    yield stage


def _defaults(stage: Sequence[Piece]) -> dict[str, str]:
    found = {}
    for piece in stage:
        for line in piece[1:] if section_name(piece) == _ARGUMENTS else ():
            name, sign, value = line.strip().partition("=")
            if sign and not name.startswith("#"):
                found[name.strip()] = value.strip()
    return found


def _filled(line: str, known: Mapping[str, str], used: set[str], path: object) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1]
        if _REMARK.search(line[: match.start()]):
            return match[0]
        if name not in known:
            raise ConfigError(
                f"{path}: {match[0]} has no value: give it one in {_ARGUMENTS}, or by --build-arg {name}=... "
                f"(container.build_args.{name})"
            )
        used.add(name)
        return _ARGUMENT.sub(lambda inner: known.get(inner[1], inner[0]), known[name])

    return _ARGUMENT.sub(value, line)
