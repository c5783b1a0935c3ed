"""Folders of a project from which its Python imports: ``pip install -e``, uv and PYTHONPATH have put them there.

A run imports the same packages from its copy of the code: the counterparts of these folders come first on its path.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from urllib.parse import unquote, urlsplit

from hpcml.paths import home_of_user


def imported_folders(top: Path, program: str, cwd: Path) -> list[str]:
    """Return the folders below *top* that the Python of *program*, started in *cwd*, imports from; real paths.

    They are read from the files that installers leave in its environment, that of the ``python`` on PATH and the user's
    own; nothing is started.
    """
    sites = [site for prefix in _prefixes(program, cwd) for site in sorted(prefix.glob("lib/python3*/site-packages"))]
    named = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *_named_by_pth(sites)]
    found = _below(top, named)
    for root in _below(top, _editable(sites)):
        if not any(Path(path).is_relative_to(root) for path in found):  # else the folder of its packages is known
            found.append(root)
    return found


def _prefixes(program: str, cwd: Path) -> Iterator[Path]:
    if PurePath(program).name == "uv":  # whose environment is the project's own, whatever PATH says
        yield from (folder / ".venv" for folder in (cwd, *cwd.parents) if (folder / "pyproject.toml").is_file())
        return
    starts = (shutil.which(str(cwd / program) if os.sep in program else program), shutil.which("python"))
    yield from dict.fromkeys(Path(start).parents[1] for start in starts if start is not None)
    yield home_of_user() / ".local"


def _named_by_pth(sites: Sequence[Path]) -> Iterator[str]:
    for file in (file for site in sites for file in sorted(site.glob("*.pth"))):
        with suppress(OSError):
            yield from file.read_text(errors="replace").splitlines()


def _editable(sites: Sequence[Path]) -> Iterator[str]:
    """Yield the projects that are installed as links to their sources (PEP 610)."""
    for file in (file for site in sites for file in sorted(site.glob("*.dist-info/direct_url.json"))):
        with suppress(OSError, ValueError, KeyError, TypeError):
            origin = json.loads(file.read_text())
            if origin["dir_info"]["editable"]:
                yield unquote(urlsplit(origin["url"]).path)


def _below(top: Path, paths: Iterator[str] | Sequence[str]) -> list[str]:
    real = (os.path.realpath(path) for path in paths if os.path.isabs(path))  # noqa: PTH117 - texts
    # What lies in an environment below the project is linked to and has no counterpart.
    return [path for path in dict.fromkeys(real) if Path(path).is_relative_to(top) and "site-packages" not in path]
