"""Describe, submit, watch and compare ML runs on HPC clusters."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcml.api.executor import Executor
    from hpcml.api.store import open_store
    from hpcml.api.submission import compose
    from hpcml.api.tuning import tune

__version__ = "0.1.0"
__all__ = ["Executor", "__version__", "compose", "open_store", "tune"]


def __getattr__(name: str) -> object:
    """Load the Python API when it is asked for: an agent on a node imports hpcml too, and has no use for a database."""
    if name == "open_store":
        from hpcml.api.store import open_store  # noqa: PLC0415

        return open_store
    if name == "compose":
        from hpcml.api.submission import compose  # noqa: PLC0415

        return compose
    if name == "Executor":
        from hpcml.api.executor import Executor  # noqa: PLC0415

        return Executor
    if name == "tune":
        from hpcml.api.tuning import tune  # noqa: PLC0415

        return tune
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
