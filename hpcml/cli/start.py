"""Where a command begins: its modules come from the commands' bundle, where there is one (`hpcml.bundled_commands`).

This module itself loads nothing but what Python has loaded before.
"""

import _signal  # type: ignore[import-not-found] # what `signal` is made of, and loaded before
import gc


def main() -> None:
    """Run the command line, as `hpcml.cli.main` has it; until that is loaded, Ctrl-C ends it without a word."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from hpcml.bundled import look_in_library_first  # not before, for Ctrl-C then
    from hpcml.bundled_commands import use_commands

    look_in_library_first()
    gc.disable()  # nothing that is loaded is garbage; that which is called enables it
    use_commands()
    from hpcml.cli.main import main

    main()
