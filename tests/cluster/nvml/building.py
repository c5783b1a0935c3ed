"""The fake NVML, compiled: a file that is loaded as the real one, by HPCML_NVML_LIBRARY or LD_LIBRARY_PATH."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.parts import require

NAME = "libnvidia-ml.so.1"
_SOURCE = Path(__file__).with_name("fake_nvml.c")


def build_library(folder: Path) -> Path:
    """Compile the fake into *folder*; where there is no compiler, skip the test, or fail it in CI."""
    compiler = shutil.which("cc")
    require("a C compiler", None if compiler else "no cc on PATH")
    assert compiler is not None
    library = folder / NAME
    flags = ["-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", f"-Wl,-soname,{NAME}"]
    subprocess.run([compiler, *flags, "-o", str(library), str(_SOURCE), "-lm"], check=True)
    return library
