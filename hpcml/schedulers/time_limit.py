"""The walltime that a job has now, asked from inside of it: ``python -P -m hpcml.schedulers.time_limit SCHEDULER``.

The agent runs this, by the variable HPCML_TIME_LIMIT of the job script. Printed is one line of JSON, as
``{"limit_s": 3600, "left_s": 3000}``: `limit_s` is null where the job has no limit, and `left_s` also where the
scheduler counts the time for which a job is suspended.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcml.errors import HpcmlError
from hpcml.paths import begin_in_utf8
from hpcml.schedulers.names import cluster_schedulers
from hpcml.schedulers.registry import open_submitter


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the limit of the job that this process is in; return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        limit_s, left_s = _ask(words)
    except HpcmlError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(f"{json.dumps({'limit_s': limit_s, 'left_s': left_s})}\n")
    return 0


def _ask(words: Sequence[str]) -> tuple[int | None, int | None]:
    if len(words) != 1:
        raise HpcmlError(f"usage: python -m hpcml.schedulers.time_limit {'|'.join(cluster_schedulers())}")
    return open_submitter(words[0], submissions=Path("none")).time_limit(dict(os.environ))


if __name__ == "__main__":
    begin_in_utf8()
    sys.exit(main())
