"""``python -m NAME``: whether there is such a module, as far as that is certain before the run is queued.

A package of the user's own, with an ``__init__.py`` below where the command starts, comes before any that is installed.
What is installed is asked of the Python of the command, and of a run on a cluster, whose Python may be another, only
where the name is like that of a module beside it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path, PurePath

from hpcml.config.guess import did_you_mean

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_CODE = re.compile(r"-[A-Za-z]*c")
_FLAG = re.compile(r"-[A-Za-z]*m|--module")  # python -um; torchrun has the long one
_OURS = ("hpcml_client", "hpcml_train")  # which every run finds
_PATIENCE_S = 20.0
_ASK = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


def no_module(words: Sequence[str], cwd: Path, path: str, *, is_inside: bool, is_here: bool) -> Iterator[str]:
    """Yield what is wrong with the module that *words*, started in *cwd*, name behind ``-m``; nothing if it is there.

    *path* is the PYTHONPATH of the run. *is_inside*: the Python is that of an image; *is_here*: it is that of this
    machine.
    """
    name = _module(words)
    if name is None:
        return
    top, *below = name.split(".")
    if top in _OURS:
        return
    folders = [cwd, *(cwd / folder for folder in path.split(os.pathsep) if folder)]
    packages = [folder / top for folder in folders if os.path.isdir(folder / top)]  # noqa: PTH112 - raises none
    if any(_is_module(folder, top) for folder in folders):
        return
    if packages and _is_package(packages[0]):
        yield from _missing_in(packages[0], name, below, cwd)
        return
    if packages or is_inside:
        return  # a folder without __init__.py may be a package, and hides none that is installed
    beside = [other.stem for folder in folders for other in (*folder.glob("*.py"), *folder.glob("*/__main__.py"))]
    near = did_you_mean(top, beside)
    if (is_here or near) and not _is_installed(top, words[0], path):
        remedy = near or "activate the environment that has it before hpcml run"
        yield f"python -m {name}: there is no module {top} here, seen from {cwd}; {remedy}"


def _missing_in(package: Path, name: str, below: Sequence[str], cwd: Path) -> Iterator[str]:
    folder = package
    for part in below:
        if _is_module(folder, part) or not _is_package(folder):
            return
        if not os.path.isdir(folder / part):  # noqa: PTH112
            near = did_you_mean(part, [other.stem for other in folder.glob("*.py")])
            yield (
                f"python -m {name}: there is no {part} in {os.path.relpath(folder, cwd)}, seen from {cwd}"
                f"{f'; {near}' if near else ''}"
            )
            return
        folder /= part
    if _is_package(folder) and not _is_module(folder, "__main__"):
        yield (
            f"python -m {name}: {os.path.relpath(folder, cwd)} is a package without a __main__.py, which cannot be "
            f"run: name a module in it, {name}.NAME"
        )


def _module(words: Sequence[str]) -> str | None:
    """Return the name behind the first -m of a Python's words; None without one, or where they have a script before."""
    if not _PYTHON.fullmatch(PurePath(words[0]).name):
        return None
    for flag, name in pairwise(words[1:]):
        if _CODE.fullmatch(flag):
            return None
        if _FLAG.fullmatch(flag):
            return name if _NAME.fullmatch(name) else None
        if not flag.startswith("-") and os.path.splitext(flag)[1]:  # noqa: PTH122 - a script, whose own flags follow
            return None
    return None


def _is_module(folder: Path, name: str) -> bool:
    return any(folder.glob(f"{name}.py")) or any(folder.glob(f"{name}.*.so")) or any(folder.glob(f"{name}.pyc"))


def _is_package(folder: Path) -> bool:
    """Tell whether *folder* is a package of which all modules are in it."""
    try:
        return "__path__" not in (folder / "__init__.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _is_installed(name: str, python: str, path: str) -> bool:
    """Ask *python* for a module at the top, which loads nothing of it; if it cannot tell, the module may be there."""
    found = shutil.which(python)
    if found is None:
        return True
    try:
        asked = subprocess.run(
            [found, "-c", _ASK, name],
            env={**os.environ, "PYTHONPATH": path},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return asked.returncode != 1 or bool(asked.stderr)
