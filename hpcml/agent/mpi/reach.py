"""Starts a program on another node of a PBS job, in rsh's words: ``python -m hpcml.agent.mpi.reach HOST COMMAND...``.

Open MPI without PBS's own library starts its daemons by it (``plm_rsh_agent``). What runs there is what PBS gives for
that: pbs_tmrsh, else ssh, else pbsdsh; HPCML_MPI_REACH names one.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from hpcml.paths import begin_in_utf8

REACHES = ("pbs_tmrsh", "ssh", "pbsdsh")
_CANNOT_START = 127


def words_for(reach: str, host: str, command: str, environ: Mapping[str, str]) -> list[str]:
    """Return what *reach* is started with, to run the line *command* in a shell on *host*.

    PBS starts programs with a PATH of two folders: those of this job go with the line.
    """
    places = [f"{name}={environ[name]}" for name in ("PATH", "LD_LIBRARY_PATH") if environ.get(name)]
    line = ["/usr/bin/env", *places, "/bin/sh", "-c", command]
    match reach:
        case "pbs_tmrsh":
            return ["pbs_tmrsh", host, *line]
        case "ssh":
            return ["ssh", "-o", "BatchMode=yes", host, shlex.join(line)]
        case _:
            return ["pbsdsh", "-h", host, "--", *line]


def choose(environ: Mapping[str, str]) -> str | None:
    """Return the program that reaches other nodes here; None where there is none."""
    wanted = environ.get("HPCML_MPI_REACH")
    path = f"{environ.get('PATH', '')}:/opt/pbs/bin"
    return next((name for name in ([wanted] if wanted else REACHES) if shutil.which(name, path=path)), None)


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Become what reaches the host; exit with status 127 where there is none."""
    host, *command = sys.argv[1:] if words is None else words
    reach = choose(os.environ)
    if reach is None:
        sys.stderr.write(f"hpcml: no {', '.join(REACHES)} on this node to reach {host}\n")
        sys.exit(_CANNOT_START)
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/opt/pbs/bin"
    argv = words_for(reach, host, " ".join(command), os.environ)
    os.execvp(argv[0], argv)  # noqa: S606 - a list of words


if __name__ == "__main__":
    begin_in_utf8()
    main()
