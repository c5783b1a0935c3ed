"""The words of ``hpcml run`` put in the order, and completed by the defaults, that Hydra needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import ConfigError

# Hydra's flags that take a value (hydra/_internal/utils.py, get_args_parser); --info takes an optional one.
_WITH_VALUE = frozenset(
    {"-c", "--cfg", "-p", "--package", "-cp", "--config-path", "-cn", "--config-name", "-cd", "--config-dir"}
)
_WITH_DEFAULT = ("cluster", "container", "study", "devices")
_INFO = ("-i", "--info")
_INFO_VALUES = frozenset({"all", "config", "defaults", "defaults-tree", "plugins", "searchpath"})
_OVERRIDE = re.compile(r"(?:[+~]{1,2}[^\s=]|[^-=\s][^=]*=)")


@dataclass(frozen=True, slots=True)
class Words:
    """Flags and overrides apart: argparse's ``nargs="*"`` ends at the first flag that follows an override."""

    flags: tuple[str, ...]
    overrides: tuple[str, ...]


def arrange(arguments: Sequence[str], *, shipped: Path, project: Path) -> Words:
    """Sort *arguments*, accept ``+cluster=x``, and add the project's own options."""
    words = _sort(arguments)
    own = project_conf(project, shipped)
    typed = [_study(word, own) for word in words.overrides]
    overrides = [_verbatim(_plain_group(word), "workload.command") for word in typed]
    keys = {word.lstrip("+~").partition("=")[0] for word in overrides}
    for sweeper in (word for word in overrides if word.startswith("hydra/sweeper=") and word != "hydra/sweeper=basic"):
        raise ConfigError(
            f"{sweeper} waits for each result to choose the next point; hpcml submits a sweep whole: "
            "list the points (seed=0,1,2, range(), choice())"
        )
    if "workload.command" in keys:  # a run of somebody's program must not be recorded as our CNN on our digits
        overrides[:0] = [f"{group}=custom" for group in ("model", "data") if group not in keys]
    if own is not None and "hydra.searchpath" not in keys:
        overrides.append(f"hydra.searchpath=[{_quoted(f'file://{own}')}]")
    return Words(words.flags, tuple(overrides))


def project_conf(project: Path, shipped: Path) -> Path | None:
    """Return ``<project>/conf`` if it holds options for any of our groups and is not the shipped one."""
    conf = project / "conf"
    if not conf.is_dir() or conf.resolve() == shipped.resolve():
        return None
    groups = {entry.name for entry in shipped.iterdir() if entry.is_dir()}
    return conf if any((conf / group).is_dir() for group in groups) else None


def _sort(arguments: Sequence[str]) -> Words:
    flags: list[str] = []
    overrides: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if rest and (word in _WITH_VALUE or (word in _INFO and rest[0] in _INFO_VALUES)):
            flags += [word, rest.pop(0)]
        elif word == "--":
            continue
        elif word.startswith("-"):
            flags.append(word)
        elif _OVERRIDE.match(word):
            overrides.append(word)
        else:
            raise ConfigError(f"{word!r} is no override: write key=value (hpcml run --help lists the keys)")
    return Words(tuple(flags), tuple(overrides))


def _plain_group(word: str) -> str:
    """These have a default, so Hydra wants ``cluster=x``; people write ``+cluster=x`` just as often."""
    return word[1:] if word.startswith(tuple(f"+{group}=" for group in _WITH_DEFAULT)) else word


def _study(word: str, own: Path | None) -> str:
    """Let ``+experiment=x`` choose a study, unless the user has a group of that name.

    hpcml cannot have one: Hydra would take every ``experiment=x`` for a choice in it, and that names a run's folder.
    """
    if own is not None and (own / "experiment").is_dir():
        return word
    return f"study={word.removeprefix('+experiment=')}" if word.startswith("+experiment=") else word


def _verbatim(word: str, key: str) -> str:
    """A command line is full of characters that Hydra's grammar reads as its own: quote what came unquoted."""
    value = word.removeprefix(f"{key}=")
    if value == word or value[:1] in ("'", '"') or value.startswith(("choice(", "null")):
        return word
    return f"{key}={_quoted(value)}"


def _quoted(text: str) -> str:
    """Quote for Hydra's override grammar, where a backslash is special only in front of a quote."""
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', text)
    tail = escaped[len(escaped.rstrip("\\")) :]
    return f'"{escaped}{tail}"'
