"""Formats of `hpcml export` that packages add, by entry points in the group ``hpcml.exporters``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hpcml import plugins
from hpcml.errors import require
from hpcml.interop.exported import Export


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """What an entry point names: a format of one file, or of a folder.

    `write_file` writes runs into an open text file (UTF-8), and `is_ours` tells from the first 64 bytes of a file
    whether it is an export of this format, which may be replaced. `write_folder` writes files into an empty folder.
    `contract` is the version of hpcml's contract that it keeps (``hpcml.plugins.CONTRACT``). Raises `ConfigError` where
    it writes neither, or both.
    """

    write_file: Callable[[Export, IO[str]], None] | None = None
    is_ours: Callable[[bytes], bool] | None = None
    write_folder: Callable[[Export, Path], None] | None = None
    contract: int | None = None

    def __post_init__(self) -> None:
        one = (self.write_file is None) != (self.write_folder is None)
        require(one, "an exporter has either write_file or write_folder")
        require((self.write_file is None) == (self.is_ours is None), "an exporter of a file has is_ours, too")


def exporter_of(name: str, *, ours: Collection[str]) -> Exporter:
    """Return the exporter that a package adds as *name*; raises `ConfigError` as `hpcml.plugins.load` does."""
    return plugins.load(plugins.EXPORTERS, name, Exporter, ours=ours)
