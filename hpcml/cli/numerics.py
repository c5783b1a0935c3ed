"""How a command loads NumPy and SciPy: with one thread, and without the parts that they load for others.

Two copies of OpenBLAS come with them. Each starts a thread for every core as it is loaded, and these wait for work by
looking for it: on two cores that is a fifth of the CPU time of `hpcml compare`, which multiplies no large matrices, and
on the 128 cores of a login node a nuisance to others. OpenBLAS asks the environment for their number. That is set while
it is loaded and no longer: programs that the command starts have as many threads as their user says. `numpy.f2py`,
`numpy.random` and some others come by a ``from numpy import *`` of SciPy's, take 0.08 s, and are loaded if used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

_THREADS = "OPENBLAS_NUM_THREADS"  # OpenBLAS, USAGE.md; it is read as the library is loaded
_WITH_OPENBLAS = frozenset({"numpy", "scipy.linalg", "scipy.special"})
_WHEN_USED = frozenset({"numpy.f2py", "numpy.ma", "numpy.polynomial", "numpy.random", "numpy.testing"})


class _Sparing:
    """Finds those modules where Python would, and has them loaded so (importlib.abc.MetaPathFinder)."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _WITH_OPENBLAS and name not in _WHEN_USED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        if name in _WHEN_USED:
            spec.loader = LazyLoader(spec.loader)
        else:
            spec.loader.exec_module = _with_one_thread(spec.loader.exec_module)  # type: ignore[assignment,method-assign]
        return spec


def _with_one_thread(load: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def load_with_one(module: ModuleType) -> None:
        if _THREADS in os.environ:
            load(module)
            return
        os.environ[_THREADS] = "1"
        try:
            load(module)
        finally:
            del os.environ[_THREADS]

    return load_with_one


def spare() -> None:
    """Have NumPy and SciPy loaded so from now on, in this process; a number of threads that its user set counts."""
    sys.meta_path.insert(0, _Sparing)
