"""Where Python looks for modules: its own come first, whatever a folder of PYTHONPATH calls its files.

A user's `secrets.py` or `queue.py` is for the program, and must not stand in for what hpcml imports. This module loads
nothing but what every Python has loaded when it begins.
"""

import os
import sys


def standard_library_first() -> None:
    """Have this process find Python's own modules first; the programs that it starts have a path of their own."""
    library = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib is not to be loaded yet
    first = [folder for folder in sys.path if folder in (library, f"{library}/lib-dynload")]
    sys.path[:] = [*first, *(folder for folder in sys.path if folder not in first)]
