"""The terminal, or what stands in its place."""

from __future__ import annotations

import os
import sys

from rich.console import Console

_PIPE_WIDTH = 160  # a pipe has no width: wide enough that no table folds


def console() -> Console:
    """Return where tables go: as wide as the terminal; colour and boxes only on one (NO_COLOR is honoured by rich)."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(width=width, highlight=False)
