"""The part of a job script below its directives: modules, the site's lines, and the one line that starts the agent."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcml.errors import ConfigError, require
from hpcml.schedulers.request import Request

_FOLLOW_S = 60  # within which all nodes have to leave at a checkpoint at which the first has left
TIME_LIMIT = "HPCML_TIME_LIMIT"  # what the agent runs to hear how long the job may run
REQUEUE = "HPCML_REQUEUE"  # what the agent runs, with the manifest as its last word, to have a run queued again


def refuse_line_breaks(lines: Iterable[str]) -> None:
    """Raise `ConfigError` for what would be more than one line of a job script, or no text at all to the shell."""
    for line in lines:
        require(not set(line) & set("\n\r\0"), f"{line!r} holds a line break: nothing may add lines to a job script")


def words_of_directive(text: str) -> list[str]:
    """Return what the user wrote as one of ``resources.extra_directives`` as words of a command line."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"resources.extra_directives: {text!r} cannot be split into words: {error}") from error


def agent_command(source: str) -> list[str]:
    """Return what runs the agent of one run: *source* is its directory, or a manifest in it.

    The words are those of this Python, by its full path: the nodes must see the same installation.
    """
    return [*_agent(), source]


def agent_array_command(batch_file: str) -> list[str]:
    """Return what runs the agent of those runs of *batch_file* whose turn it is in a job array.

    The agent reads the index from the variables that the scheduler sets in an array's element.
    """
    return [*_agent(), "--batch", batch_file]


def requeue_command(scheduler: str, *, is_shared: bool) -> list[str]:
    """Return what puts a run back into the queue from inside its job; of a shared job, only the run goes back.

    The agent adds the manifest of the run as the last word; `hpcml.schedulers.requeue` is what then runs.
    """
    words = [sys.executable, "-P", "-m", "hpcml.schedulers.requeue", scheduler]
    return [*words, "--alone"] if is_shared else words


def time_limit_command(scheduler: str) -> list[str]:
    """Return what prints the walltime of the job that it is in; `hpcml.schedulers.time_limit` is what then runs."""
    return [sys.executable, "-P", "-m", "hpcml.schedulers.time_limit", scheduler]


def _agent() -> list[str]:
    # -P: a job starts where its user stood, and a queue.py or json.py there must not become a part of the agent
    # -c: with -m Python loads ten modules more, from a file each, before it looks for the agent's
    return [sys.executable, "-P", "-c", "from hpcml.agent.main import begin; begin()"]


def _python_path() -> list[str]:
    """Return the line by which a job finds hpcml where PYTHONPATH leads this Python to it (pip install --target).

    PBS and --export=NONE hand on no variables, and a module may replace them. Nothing where hpcml is found otherwise: a
    PYTHONPATH that is the program's is inherited or not, as the site wants it.
    """
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if Path(folder).is_absolute()]
    if os.path.realpath(Path(__file__).parents[2]) not in map(os.path.realpath, folders):
        return []
    return [f'export PYTHONPATH={shlex.quote(os.pathsep.join(folders))}"${{PYTHONPATH:+:$PYTHONPATH}}"']


def body(
    request: Request,
    command: Sequence[str],
    *,
    requeue: Sequence[str] = (),
    time_limit: Sequence[str] = (),
    launcher: Sequence[str] = (),
) -> list[str]:
    """Return the lines after the directives and after whatever a backend adds; the last replaces the shell.

    The shell stops at the first line that fails, but does not mind unset variables: `module` reads some, and so do the
    start-up files of most sites. *command* starts the agent, and *launcher* (srun, say) starts that on each node;
    *requeue* is exported to it as HPCML_REQUEUE, *time_limit* as HPCML_TIME_LIMIT. The site's own lines
    (`Cluster.prelude`) come after its modules.
    """
    lines: list[str] = []
    if request.cluster.modules:
        # A batch shell reads no start-up files: where `module` is not inherited, it is defined here.
        lines.append("command -v module >/dev/null || . /etc/profile")
        lines += [f"module load {shlex.quote(name)} || exit 1" for name in request.cluster.modules]
    told = {REQUEUE: requeue, TIME_LIMIT: time_limit}
    exports = [f"export {name}={shlex.quote(shlex.join(words))}" for name, words in told.items() if words]
    exports += _python_path()
    return [*lines, "set -e", *request.cluster.prelude, *exports, f"exec {shlex.join([*launcher, *command])}"]


def until_agents_end(ends_at: str) -> str:
    """Return the head of a loop of bash that looks each second which of *agents*, started on *nodes*, have ended.

    It leaves `status`, of the first that failed, `why`, in words, and `term_at`, when the others are to be ended:
    *ends_at* where one failed, later where it left at a checkpoint. The loop's condition is that any is left; what is
    done about the others, and its ``done``, follow.
    """
    return f"""\
# Nothing is ever read from this: bash loses the status of what ends at the moment at which a signal ends a `wait`.
exec {{never}}<> <(:)
while [ "${{#agents[@]}}" -gt 0 ]; do
    read -rt 1 -u "$never"
    [ $? -gt 1 ] || sleep 1  # it could not be opened
    for rank in "${{!agents[@]}}"; do
        kill -0 "${{agents[rank]}}" 2>/dev/null && continue
        wait "${{agents[rank]}}"
        code=$?
        unset "agents[rank]"
        [ "$status" -ne 0 ] || status=$code
        case $code in
            0) ;;
            {os.EX_TEMPFAIL}) : "${{term_at:=$((SECONDS + {_FOLLOW_S}))}}" ;;  # left at a checkpoint
            *)
                [ -n "$why" ] || term_at={ends_at}
                : "${{why:=node $rank (${{nodes[rank]}}) ended first, with exit status $code}}" ;;
        esac
    done"""
