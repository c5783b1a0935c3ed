"""From where in a project its own interpreter imports: folders that ``pip install -e`` and PYTHONPATH have put there.

A run imports the same packages from its copy of the code: the counterparts of these folders come first on its path.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

_TIMEOUT_S = 20
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


def paths_into(top: Path, program: str, cwd: Path) -> list[str]:
    """Return the folders below *top* that the Python of *program* imports from, in its order; real paths.

    *program* is the first word of a command: an interpreter, a script with a first line that names one, or anything
    else, which may start the ``python`` on PATH. *cwd* is where it is started. Empty where there is no such Python, or
    it gives no answer within 20 seconds: then the run imports as it would without this.
    """
    python = _interpreter(program, cwd)
    if python is None:
        return []
    try:
        done = subprocess.run(
            [python, "-c", _ASK],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
            cwd="/",
        )
        said = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
    real = (os.path.realpath(path) for path in said if os.path.isabs(path))  # noqa: PTH117 - texts
    # What lies in an environment below the project is linked to and has no counterpart.
    return [path for path in dict.fromkeys(real) if Path(path).is_relative_to(top) and "site-packages" not in path]


def _interpreter(program: str, cwd: Path) -> str | None:
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
