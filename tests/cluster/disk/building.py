"""A file system that fails, or is slow, in one place: a library for LD_PRELOAD, compiled."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.parts import require

_SOURCE = Path(__file__).with_name("failing.c")


def build_failing_disk(folder: Path) -> Path:
    """Compile it into *folder*; where there is no compiler, skip the test."""
    require("a C compiler", None if shutil.which("cc") else "no cc on PATH")
    library = folder / "failing.so"
    flags = ["-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", str(library), str(_SOURCE), "-ldl"], check=True)
    return library
