"""Describe, submit, watch and compare ML runs on HPC clusters."""

TYPE_CHECKING = False  # not typing's own, which takes as long to import as all of this
if TYPE_CHECKING:
    from hpcml.api.store import open_store

__version__ = "0.1.0"
__all__ = ["__version__", "open_store"]


def __getattr__(name: str) -> object:
    """Load `open_store` when it is asked for: an agent on a node imports hpcml too, and has no use for a database."""
    if name == "open_store":
        from hpcml.api.store import open_store  # noqa: PLC0415

        return open_store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
