"""The walltime that a job has now, asked from inside of it: ``python -P -m hpcml.schedulers.time_limit SCHEDULER``.

The agent runs this, by the variable HPCML_TIME_LIMIT of the job script. Printed is one line of JSON, as
``{"limit_s": 3600}``, with null where the job has no limit. With ``--left`` behind, for a job that has been suspended,
``left_s`` is in it, too, where the scheduler tells how much of the limit is left.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from hpcml.errors import HpcmlError
from hpcml.paths import begin_in_utf8
from hpcml.schedulers.names import cluster_schedulers
from hpcml.schedulers.registry import backend_of

LEFT = "--left"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the limit of the job that this process is in; return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        answer = _ask(words)
    except HpcmlError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(f"{json.dumps(answer)}\n")
    return 0


def _ask(words: Sequence[str]) -> dict[str, int | None]:
    scheduler, *more = words or [""]
    if not scheduler or more not in ([], [LEFT]):
        raise HpcmlError(f"usage: python -m hpcml.schedulers.time_limit {'|'.join(cluster_schedulers())} [{LEFT}]")
    backend = backend_of(scheduler)
    if backend.time_limit_s is None:
        raise HpcmlError(f"{scheduler} has nobody to ask for the walltime of a job")
    environ = dict(os.environ)
    limit_s = backend.time_limit_s(environ)
    if not more or backend.time_left_s is None:
        return {"limit_s": limit_s}
    return {"limit_s": limit_s, "left_s": backend.time_left_s(environ)}


if __name__ == "__main__":
    begin_in_utf8()
    sys.exit(main())
