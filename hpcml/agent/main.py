"""Where an agent begins: ``python -P -m hpcml.agent.main PATH``; `hpcml.agent.turns` says what PATH may be."""

import os
import sys
from typing import NoReturn

from hpcml.search_path import standard_library_first

RANK = "--rank"  # the words after it are those of hpcml.agent.mpi.rank


def stand_in_for_closed() -> None:
    """Open /dev/null for each of input, output and error that was closed when this Python began.

    Else a journal or a socket would get its number, and what is meant for the log would be an error, or go there. To be
    called before anything else is opened.
    """
    for name in ("stdin", "stdout", "stderr"):  # in the order of their numbers: each gets the lowest that is free
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - stays open


def main(words: list[str]) -> int:
    """Be the agent of a node, or with RANK the rank of an MPI job; return the exit status."""
    stand_in_for_closed()
    if words[:1] == [RANK]:
        from hpcml.agent.mpi.rank import be_rank  # noqa: PLC0415 - not before it is known where modules are found

        return be_rank(words[1:])
    from hpcml.agent.turns import take_turns  # noqa: PLC0415 - as above

    return take_turns(words)


def begin() -> NoReturn:
    """Be what the words of this process say, and end it with their exit status."""
    standard_library_first()
    if sys.getfilesystemencoding() != "utf-8":
        from hpcml.paths import begin_in_utf8  # noqa: PLC0415 - for names of files in another encoding

        begin_in_utf8()
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    begin()
