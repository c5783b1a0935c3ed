"""The texts of the files that the words of a command reach: scripts, the modules that they import, their settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from hpcml.runs.files import read_whole

_MOST_READ = 1 << 20  # bytes of a file that may be a script
_MOST_REACHED, _MOST_OF_THEM = 100, 4 << 20  # files that a program's words reach, and bytes of them
SOURCES = frozenset(  # endings, in small letters, of files of source
    {
        *(".py", ".pyx", ".ipynb", ".sh", ".bash", ".zsh", ".jl", ".r", ".m", ".pl", ".lua", ".rb"),
        *(".c", ".h", ".cc", ".hh", ".cpp", ".hpp", ".cxx", ".hxx", ".cu", ".cuh", ".f", ".for", ".f90", ".f95"),
        *(".f03", ".f08", ".rs", ".go", ".java", ".scala", ".kt", ".swift"),
    }
)
_FILE = re.compile(
    r"(?<![\w/.-])(?:\./)?((?!/)[\w./-]*\w\.(?:py|sh|bash|R|r|jl|pl|lua|c|cc|cpp|cu|f90|go|rs|ya?ml|json|toml|ini|cfg|conf|mk|env)|[Mm]akefile)\b"
)
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<dots>\.*)(?P<module>[\w.]*)[ \t]+)?import[ \t]+(?P<names>[^\n#]*)", re.MULTILINE
)


def reached_files(words: Sequence[str], cwd: Path) -> dict[Path, str]:
    """Return the texts of the files that *words* are, seen from *cwd*, and of those that these name in turn.

    Named is a module by its import, and a file of source or of settings by its path from *cwd* or from the folder of
    the one that names it. Left out are compiled programs, files of more than 1 MiB, and what comes after 100 files or
    4 MiB.
    """
    texts: dict[Path, str] = {}
    waiting = [cwd / word for word in words]
    waiting += [cwd / each for each in ("Makefile", "makefile") if any(Path(word).name == "make" for word in words)]
    for code in (word for word in words if " " in word):  # of bash -c
        waiting += _named_in(code, cwd / "code", cwd)
    for before, module in pairwise(words):  # python -m package.train
        if before == "-m" and re.fullmatch(r"[\w.]+", module):
            below = module.replace(".", "/")
            waiting += [cwd / f"{below}.py", cwd / below / "__main__.py", cwd / "src" / f"{below}.py"]
    seen = set(waiting)
    left = _MOST_OF_THEM
    while waiting and len(texts) < _MOST_REACHED and left > 0:
        path = waiting.pop(0)
        with suppress(OSError, ValueError):
            content = read_whole(path, most=_MOST_READ)
            if b"\0" in content:
                continue
            texts[path] = content.decode("utf-8", "surrogateescape")
            left -= len(content)
            for named in _named_in(texts[path], path, cwd):
                if named not in seen:
                    seen.add(named)
                    waiting.append(named)
    return texts


def _named_in(text: str, path: Path, cwd: Path) -> Iterator[Path]:
    """Yield the files beside *path*, or below *cwd*, that *text* names or imports; they may be none."""
    folders = list(dict.fromkeys((path.parent, cwd)))
    names = dict.fromkeys(_FILE.findall(text))
    if path.suffix == ".py":
        for found in _IMPORT.finditer(text):
            yield from _modules(found, path, folders)
        for folder, name in _hydras(text):
            yield path.parent / folder / f"{name}.yaml"
    for name in names:
        yield from (folder / name for folder in folders)


def _hydras(text: str) -> Iterator[tuple[str, str]]:
    """Yield folder and name of the settings that ``@hydra.main(config_path="conf", config_name="config")`` reads."""
    for call in re.findall(r"hydra\.main\(([^)]*)\)", text):
        said = dict(re.findall(r"""config_(path|name)\s*=\s*["']([^"']+)["']""", call))
        if "name" in said:
            yield said.get("path", "."), said["name"].removesuffix(".yaml")


def _modules(found: re.Match[str], path: Path, folders: Sequence[Path]) -> Iterator[Path]:
    """Yield where the modules lie that an import imports: ``import a, b.c`` or ``from .a import b, c``."""
    level = len(found["dots"] or "")
    start = [path.parents[level - 1]] if 0 < level <= len(path.parents) else folders
    parts = [each.strip(" ()").partition(" ")[0] for each in found["names"].split(",")]
    module = found["module"]
    dotted = parts if module is None else [module, *(f"{module}.{part}" for part in parts)]
    for each in dotted:
        below = each.strip(".").replace(".", "/")
        for folder in start if below else ():
            yield from (folder / f"{below}.py", folder / below / "__init__.py")
