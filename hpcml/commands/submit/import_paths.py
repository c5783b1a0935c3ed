"""From where in a project its own interpreter imports: folders that ``pip install -e`` and PYTHONPATH have put there.

A run imports the same packages from its copy of the code: the counterparts of these folders come first on its path.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path, PurePath
from typing import Self

_PATIENCE_S = 20.0
_MOST_AT_ONCE = 4
_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_MOST_BYTES = 256  # of a first line
# Asked are sys.path, where .pth files are, and the finders that setuptools installs where a .pth file cannot do it.
_ASK = """
import json, os, sys
found = [path for path in sys.path if path]
for name, module in list(sys.modules.items()):
    if name.startswith("__editable___"):
        mapping = getattr(module, "MAPPING", {})
        found += [os.path.dirname(place) for package, place in mapping.items() if "." not in package]
print(json.dumps(found))
"""


class Interpreters:
    """Asks the Pythons of programs where they import from, each of them once, while other things are done.

    To be used in a ``with`` block, at the end of which those that have not answered are ended.
    """

    def __init__(self, *, patience_s: float = _PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._asked: dict[str, subprocess.Popen[bytes]] = {}
        self._said: dict[str, list[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._asked.values():
            process.kill()
            process.communicate()
        self._asked.clear()

    def begin(self, program: str, cwd: Path) -> None:
        """Begin to ask the Python of *program*, as `paths_into` does, unless many are being asked."""
        python = interpreter_of(program, cwd)
        if python is not None and len(self._asked) < _MOST_AT_ONCE:
            self._ask(python)

    def paths_into(self, top: Path, program: str, cwd: Path) -> list[str]:
        """Return the folders below *top* that the Python of *program* imports from, in its order; real paths.

        *program* is the first word of a command: an interpreter, a script with a first line that names one, or anything
        else, which may start the ``python`` on PATH. *cwd* is where it is started. Empty where there is no such Python,
        or it gives no answer within 20 seconds: then the run imports as it would without this.
        """
        python = interpreter_of(program, cwd)
        if python is None:
            return []
        self._ask(python)
        if (process := self._asked.pop(python, None)) is not None:
            self._said[python] = _answer_of(process, self._patience_s)
        real = (os.path.realpath(path) for path in self._said[python] if os.path.isabs(path))  # noqa: PTH117 - texts
        # What lies in an environment below the project is linked to and has no counterpart.
        return [path for path in dict.fromkeys(real) if Path(path).is_relative_to(top) and "site-packages" not in path]

    def _ask(self, python: str) -> None:
        if python in self._asked or python in self._said:
            return
        try:
            self._asked[python] = subprocess.Popen(
                [python, "-c", _ASK],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
        except OSError:
            self._said[python] = []


def _answer_of(process: subprocess.Popen[bytes], patience_s: float) -> list[str]:
    try:
        said, _ = process.communicate(timeout=patience_s)
        found: list[str] = json.loads(said) if process.returncode == 0 else []
    except (subprocess.TimeoutExpired, ValueError):
        process.kill()
        process.communicate()
        return []
    return found


def interpreter_of(program: str, cwd: Path) -> str | None:
    """Return the Python that *program* is, names in its first line, or else finds on PATH; None without one."""
    if PurePath(program).name == "uv":  # whose environment is the project's own, whatever PATH says
        projects = (folder for folder in (cwd, *cwd.parents) if (folder / "pyproject.toml").is_file())
        pythons = (project / ".venv" / "bin" / "python" for project in projects)
        return next((str(python) for python in pythons if python.exists()), None)
    found = shutil.which(str(cwd / program) if os.sep in program else program)
    if found is None:
        return None
    if _PYTHON.fullmatch(Path(found).name):
        return found
    return _of_script(found) or shutil.which("python")


def _of_script(path: str) -> str | None:
    """Return the interpreter that the first line of a script names, if it is a Python."""
    try:
        with Path(path).open("rb") as file:
            line = file.readline(_MOST_BYTES)
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    words = os.fsdecode(line[2:]).split()
    if words and Path(words[0]).name == "env":
        words = [word for word in (shutil.which(word) for word in words[1:] if not word.startswith("-")) if word]
    return words[0] if words and _PYTHON.fullmatch(Path(words[0]).name) else None
