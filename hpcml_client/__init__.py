"""What a program inside a run may import: standard library only, Python 3.8 and newer.

``run = hpcml_client.connect()`` is the whole of it for most programs (docs/your-own-program.md).
"""

from importlib import import_module

TYPE_CHECKING = False  # not typing's own, which an agent does without
if TYPE_CHECKING:
    from typing import List

    from hpcml_client.checkpoints import EX_TEMPFAIL, Checkpoints, Saved
    from hpcml_client.client import Client, connect

__all__ = ["EX_TEMPFAIL", "Checkpoints", "Client", "Saved", "connect"]


_MODULES = ("checkpoints", "client")


def __getattr__(name: str) -> object:
    """Load what is asked for: hpcml itself writes journals, and has no use for the rest."""
    if name in _MODULES:
        return import_module(f"hpcml_client.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module("hpcml_client.client" if name in ("Client", "connect") else "hpcml_client.checkpoints")
    return getattr(module, name)


def __dir__() -> "List[str]":
    """Name what can be asked for, too: for whoever types a tabulator."""
    return sorted({*globals(), *__all__, *_MODULES})
