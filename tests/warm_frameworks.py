"""Programs that use a framework, forked from a Python that has imported it: torch takes four seconds, TensorFlow seven.

One such Python for each process of pytest, framework and setting of it; `tests.warm` says what a fork does not show.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests import warm
from tests.effort import is_full

# None of them has threads of its own before it computes, but TensorFlow's allocator, which starts its one again.
_IMPORTED = {
    "torch": ("torch", "torch._dynamo"),  # the latter comes with the first optimiser
    "tensorflow": ("tensorflow",),
    "jax": ("jax", "jax.numpy"),
}
# What frameworks and their libraries read from the environment, some of it when they are imported
_SETTINGS = ("TF_", "XLA_", "JAX_", "KERAS_", "TORCH", "OMP_", "GOMP_", "MKL_", "CUDA_", "CUBLAS_")
_PROGRAM = """
import runpy, sys
del sys.argv[0]
sys.path[0] = {folder!r}
runpy.run_path({path!r}, run_name="__main__")
"""
_TOLERANT = "import warnings; warnings.simplefilter('default')\n"


def start(
    program: Path | str,
    *words: str,
    framework: str | None,
    environ: Mapping[str, str],
    cwd: Path | None = None,
    is_strict: bool = True,
) -> warm.Process:
    """Start *program*, a file or what `python -c` takes, with pipes as its stdin, stdout and stderr.

    Its first import is that of *framework*, if any; *is_strict*: warnings are errors.
    """
    python = [sys.executable, *(["-W", "error"] if is_strict else [])]
    if is_full() or not _can_be_forked(framework, environ):
        command = [*python, *([str(program)] if isinstance(program, Path) else ["-c", program]), *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environ, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    settings = tuple(sorted((name, value) for name, value in environ.items() if name.startswith(_SETTINGS)))
    server = _server(os.getpid(), str(framework), settings)
    if isinstance(program, Path):
        words = (str(program), *words)
        program = _PROGRAM.format(folder=str(program.parent), path=str(program))
    code = program if is_strict else _TOLERANT + program
    return warm.Forked(server, code, words, environ=environ, cwd=cwd or Path.cwd(), stderr=subprocess.PIPE)


def run(
    program: Path | str,
    *words: str,
    framework: str | None,
    environ: Mapping[str, str],
    cwd: Path | None = None,
    is_strict: bool = True,
    given: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run *program* to its end, with *given* on its stdin, and return what it said."""
    with start(program, *words, framework=framework, environ=environ, cwd=cwd, is_strict=is_strict) as process:
        try:
            out, err = process.communicate(given, timeout=900)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess([*words], process.wait(), out, err)


def _can_be_forked(framework: str | None, environ: Mapping[str, str]) -> bool:
    if framework not in _IMPORTED or importlib.util.find_spec(framework) is None:
        return False
    changed = {name for name in {*os.environ, *environ} if os.environ.get(name) != environ.get(name)}
    of_python = {name for name in changed if name.startswith(("PYTHON", "LD_", "LC_", "LANG"))}
    return not of_python or (of_python == {"PYTHONPATH"} and environ.get("PYTHONPATH") == str(warm.ROOT))


@functools.cache
def _server(pid: int, framework: str, settings: tuple[tuple[str, str], ...]) -> socket.socket:  # noqa: ARG001 - as in warm
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    python = [sys.executable, "-W", "error", "-m", "tests.warm"]
    return warm.serve(python, _IMPORTED[framework], {**kept, **dict(settings), "PYTHONPATH": str(warm.ROOT)})
