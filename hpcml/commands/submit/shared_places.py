"""Places outside of a run's copy that a program's own text says it writes to: all runs of a sweep share them.

What is not said in so many words is not found: a place that depends on a variable may be each run's own, and counts as
such. `python_places` reads Python; here are shells, settings, and languages in which a line tells.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from hpcml.commands.submit import python_places
from hpcml.commands.submit.python_places import PlaceInPython
from hpcml.commands.submit.shell_places import lines_of, of_shell, place_in
from hpcml.runs.original import reached_files

_NOTEBOOK = ".ipynb"
_SETTINGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf")
_SHELL = (".sh", ".bash", ".zsh", ".mk", ".slurm", ".pbs", ".sbatch")
# Variables by which a library, known by its name in the program, is told where all that it writes goes
_OF_LIBRARIES = {"MLFLOW_TRACKING_URI": "mlflow", "nnUNet_results": "nnunet"}
_OF_URI = re.compile(r"^(?:sqlite:///|file:(?://)?)")  # before a path
_SETTING = re.compile(r"""^[\s{,]*["']?([\w.-]+)["']?\s*[:=]\s*(["']?)([^"'#,]+?)\2\s*(?:[,}#].*)?$""")
_QUOTED = re.compile(r"""(["'])((?:~|/)[^"'%{}$]*)\1""")
_ASSIGNED = re.compile(
    r"""(?:#\s*define\s+|(?:^|[\s*]))([A-Za-z][\w.]*)(?:\[\w*\])?(?:\s*(?:<-|:?=)\s*|\s+)(["'])((?:~|/)[^"'%{}$]*)\2\s*[;,]?\s*(?:[#!/].*)?$"""
)
_LINE_WRITES = re.compile(
    r"""fopen\s*\([^)]{0,200}["'][wa]b?\+?["']|\bopen\s*\(?.{0,200}(?:["']\+?>{1,2}|["'][wa]b?\+?["']|replace|unknown|append|O_CREAT|O_WRONLY|O_RDWR)|
    ofstream|saveRDS|\bsave\w*\s*\(|\bwrite[\w.]*\s*\(|\bsink\s*\(|ggsave|\b(?:pdf|png|svg)\s*\(|setwd|\bchdir|
    \bdbConnect|sqlite3?_open|CSV\.write|jldopen|File::create|os\.Create|WriteFile|to_csv""",
    re.VERBOSE | re.IGNORECASE,
)
_REST_COMMENTED = re.compile(r"\s//.*")
_COMMENTED = re.compile(r"\s*(?://|#(?!\s*define)|!|--|\*|%)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlace:
    """A place that a line of a program's file writes to; of a notebook, a line of all its cells of code together."""

    file: str
    line: int | None  # None: it is no file's, but a variable's
    place: str

    @property
    def where(self) -> str:
        """File and line, as a person finds them."""
        if self.line is None:
            return f"the program, by {self.file}"
        return f"{self.file}, line {self.line}{' of its code' if self.file.endswith(_NOTEBOOK) else ''}"


def shared_places(words: Sequence[str], cwd: Path, top: Path, environ: Mapping[str, str]) -> list[SharedPlace]:
    """Return where the program of *words*, started in *cwd*, says that it writes outside of the tree *top*, in order.

    What a word sets is not what the program sets by default: of ``--out X`` its default is left out.
    """
    texts = {
        path: _code_of(text) if path.suffix == _NOTEBOOK else text for path, text in reached_files(words, cwd).items()
    }
    options = {key: place for path, text in texts.items() if path.suffix in _SETTINGS for key, place in _settings(text)}
    names = {re.split("=", word.lstrip("-+"), maxsplit=1)[0].replace("-", "_") for word in words}
    found = python_places.of_files(texts, options=options, given=names, environ=environ)
    shells = [("the command", word) for word in words if re.search(r"\s", word)]
    for path, text in texts.items():
        name = os.path.relpath(path, cwd)
        if (
            path.suffix in _SHELL
            or text.startswith(("#!/bin/bash", "#!/bin/sh", "#!/usr/bin/env bash"))
            or _is_make(path)
        ):
            shells.append((name, text))
        elif path.suffix not in (*_SETTINGS, ".py", ".md", ".txt", ".rst", _NOTEBOOK, ".csv"):
            found += [PlaceInPython(path=path, line=line, place=place) for line, place in _by_line(text)]
    places = [SharedPlace(file=os.path.relpath(each.path, cwd), line=each.line, place=each.place) for each in found] + [
        SharedPlace(file=name, line=line, place=place)
        for name, text in shells
        for line, place in of_shell(text, environ)
    ]
    return _outside([*places, *_by_variables(words, texts, environ)], top)


def _by_variables(words: Sequence[str], texts: Mapping[Path, str], environ: Mapping[str, str]) -> Iterator[SharedPlace]:
    for name, library in _OF_LIBRARIES.items():
        value = _OF_URI.sub("", environ.get(name, ""))
        is_used = any(library in text.lower() for text in (*words, *texts.values()))
        if is_used and os.path.isabs(value):  # noqa: PTH117 - a text
            yield SharedPlace(file=name, line=None, place=value)


def _code_of(notebook: str) -> str:
    """Return the cells of code of a notebook, one after the other; nothing where it is none."""
    with suppress(ValueError, KeyError, TypeError):
        cells = [each["source"] for each in json.loads(notebook)["cells"] if each["cell_type"] == "code"]
        lines = "\n".join(each if isinstance(each, str) else "".join(each) for each in cells).splitlines()
        return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in lines)
    return ""


def _outside(places: Sequence[SharedPlace], top: Path) -> list[SharedPlace]:
    kept: dict[str, SharedPlace] = {}
    for each in places:
        meant = Path(os.path.expanduser(each.place))  # noqa: PTH111 - of ~ that is nobody's, too
        if not meant.is_relative_to(top):
            kept.setdefault(os.path.normpath(meant), each)
    above = {str(folder) for path in kept for folder in PurePath(path).parents}
    return [each for path, each in kept.items() if path not in above]


def _is_make(path: Path) -> bool:
    return PurePath(path).name.lower() in ("makefile", "gnumakefile")


def _settings(text: str) -> Iterator[tuple[str, str]]:
    for _, line in lines_of(text):
        if (found := _SETTING.match(line)) and (place := place_in(found[3])) is not None:
            yield found[1].rpartition(".")[2].replace("-", "_"), place


def _by_line(text: str) -> Iterator[tuple[int, str]]:
    """Yield what lines write to in which a place, or a name for one, stands beside what writes."""
    known: dict[str, str] = {}
    for number, raw in lines_of(text):
        line = _REST_COMMENTED.sub("", raw)
        if _COMMENTED.match(line):
            continue
        if (found := _ASSIGNED.search(line)) and (place := place_in(found[3])) is not None:
            known[found[1]] = place
            continue
        if _LINE_WRITES.search(line) is None:
            continue
        for found in _QUOTED.finditer(line):
            if (place := place_in(found[2])) is not None:
                yield number, place
        for word in re.findall(r"[A-Za-z][\w.]*", line):
            if word in known:
                yield number, known[word]
