"""Where a command begins: its modules come from the commands' bundle, where there is one (`hpcml.bundled_commands`).

This module itself loads nothing but what Python has loaded before.
"""

import gc

from hpcml.bundled_commands import use_commands


def main() -> None:
    """Run the command line, as `hpcml.cli.main` has it."""
    gc.disable()  # nothing that is loaded is garbage; that which is called enables it
    use_commands()
    from hpcml.cli.main import main

    main()
