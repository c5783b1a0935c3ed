"""The part of a job script below its directives: modules, the site's lines, and the one line that starts the agent."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from hpcml.schedulers.request import Request


def agent_command(run_dir: str) -> list[str]:
    """Return what runs the agent of one run."""
    return [*_agent(), run_dir]


def agent_array_command(batch_file: str) -> list[str]:
    """Return what runs the agent of that run of *batch_file* whose turn it is in a job array."""
    return [*_agent(), "--batch", batch_file]


def _agent() -> list[str]:
    # -P: a job starts where its user stood, and a queue.py or json.py there must not become a part of the agent
    return [sys.executable, "-P", "-m", "hpcml.agent.main"]


def body(request: Request, command: Sequence[str], *, launcher: Sequence[str] = ()) -> list[str]:
    """Return the lines after the directives and after whatever a backend adds; the last replaces the shell.

    The shell stops at the first line that fails, but does not mind unset variables: `module` reads some, and so do
    the start-up files of most sites.
    """
    lines: list[str] = []
    if request.cluster.modules:
        # A batch shell reads no start-up files: where `module` is not inherited, it is defined here.
        lines.append("command -v module >/dev/null || . /etc/profile")
        lines += [f"module load {shlex.quote(name)} || exit 1" for name in request.cluster.modules]
    return [*lines, "set -e", *request.cluster.prelude, f"exec {shlex.join([*launcher, *command])}"]
