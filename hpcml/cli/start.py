"""Where a command begins: its modules come from the commands' bundle, where there is one (`hpcml.bundled_commands`).

This module itself loads nothing but what Python has loaded before.
"""

import gc

from hpcml.bundled_commands import use_commands

_NEW_BEFORE_A_SEARCH = 1_000_000  # objects; Python searches for cycles after 700, through all that was loaded


def main() -> None:
    """Run the command line, as `hpcml.cli.main` has it."""
    gc.set_threshold(_NEW_BEFORE_A_SEARCH, 20, 20)
    use_commands()
    from hpcml.cli.main import main

    main()
