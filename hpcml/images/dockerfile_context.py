"""The context of a Dockerfile: the folder that COPY takes files from, less what ``.dockerignore`` keeps out.

Names are relative to the folder, as Docker's and Apptainer's are.
"""

from __future__ import annotations

import os
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

from hpcml.images.dockerignore import Ignored

# Apptainer hands the sources of %files to a shell of the machine that builds, as they are written: no sign of a shell.
_SOURCE = re.compile(r"(?![-~#])[^\s;&|<>(){}$`\"'\\\0]+")
_PACKED = {b"\x1f\x8b": "z", b"BZ": "j", b"\xfd7": "J"}  # tar's letters, by the first two bytes of an archive
_MOST_PARTS = 1000  # of a folder of which .dockerignore keeps something out


class Context:
    """The files of *folder* that belong to the Dockerfile; ``.dockerignore`` is read once something is asked."""

    def __init__(self, dockerfile: Path, folder: Path) -> None:
        self.folder = folder
        self._dockerfile = dockerfile

    @cached_property
    def _rules(self) -> Ignored:
        return Ignored.of(self._dockerfile, self.folder)

    def matching(self, source: str) -> list[str]:
        """Return the names that the pattern *source* fits, whether ``.dockerignore`` keeps them out or not."""
        if source in ("", "."):
            return ["."]
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(source))

    def above_with(self, source: str) -> Path | None:
        """Return the next of the folders above that has what *source* fits."""
        return next((folder for folder in [*self.folder.parents][:4] if folder.name and any(folder.glob(source))), None)

    def parts(self, name: str) -> list[str] | None:
        """Return the names, *name* or below it, that are taken whole; none of a name that is kept out.

        None: something below *name* is kept out (`left_out`), and the rest is too much to be named part by part.
        """
        parts = self._rules.kept(self.folder, name)
        is_plain = parts == [name] or all(is_source(part) and not is_pattern(part) for part in parts)
        return parts if is_plain and len(parts) <= _MOST_PARTS else None

    def left_out(self, name: str) -> Iterator[str]:
        """Yield what is kept out of the folder *name*, relative to it."""
        for out in self._rules.left_out(self.folder, name):
            yield str(PurePosixPath(out).relative_to(name))

    def links_out(self, name: str) -> Iterator[tuple[str, Path]]:
        """Yield the links, *name* or below it, that Docker copies as they are, and Apptainer with what they lead to.

        Each with what it leads to: outside of the context, or nowhere.
        """
        context = self.folder.resolve()
        for path in _with_links(self.folder / name):
            link = str(path.relative_to(self.folder))
            led_to = Path(os.path.realpath(path))  # resolve() of Python 3.11 raises for a link to itself
            is_in = led_to.is_relative_to(context) or self._rules.keeps_out(PurePosixPath(link))
            if not (led_to.exists() and is_in):
                yield link, led_to

    def is_closed(self, names: Iterable[str]) -> bool:
        """Tell whether others may not read something of *names*, or below them."""
        modes = (_mode(path) for name in names for path in _all(self.folder / name))
        return any(~mode & (0o005 if stat.S_ISDIR(mode) else 0o004) for mode in modes)

    def packed(self, name: str) -> str | None:
        """Return tar's letter for how the archive *name* is packed, by what is in it; None for another file."""
        path = self.folder / name
        if not path.is_file() or not tarfile.is_tarfile(path):
            return None
        with path.open("rb") as file:
            return _PACKED.get(file.read(2), "")


def is_source(name: str) -> bool:
    """Tell whether a shell reads *name* as it is written, but for patterns (`is_pattern`)."""
    return _SOURCE.fullmatch(name) is not None


def is_pattern(name: str) -> bool:
    """Tell whether *name* has a sign that stands for others."""
    return re.search(r"[*?\[]", name) is not None


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0o777  # it is said where its content is read


def _with_links(path: Path) -> Iterator[Path]:
    """Yield *path*, and the links below it."""
    yield path
    yield from (found for found in _all(path) if found != path and found.is_symlink())


def _all(path: Path) -> Iterator[Path]:
    """Yield *path*, and what is below it."""
    yield path
    for place, folders, files in os.walk(path):
        yield from (Path(place) / name for name in sorted([*folders, *files]))
