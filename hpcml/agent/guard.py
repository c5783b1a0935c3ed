"""A process that outlives the agent by a moment: it kills the workload of an agent that was killed.

Else the cores and GPUs that a run has claimed are free for the next one while its program still runs on them.
PR_SET_PDEATHSIG is the kernel's own means and would not do: it reaches only the rank itself, not what the rank started
(a shell's program, say); a program with set-user-id, as Apptainer's starter may be, clears it (prctl(2)); and it can be
asked for only between fork and exec, where Python must not run code if there are threads.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress

# The lines are the ranks' ids as they start, or "done"; the end of the input is the agent's death. The ids name groups
# and sessions. In /proc/PID/stat, behind the name in parentheses: state, parent, group, session (proc(5)).
_SCRIPT = r"""
trap '' HUP INT TERM USR1 USR2
ranks=
while read -r line; do
    [ "$line" = done ] && exit 0
    ranks="$ranks $line"
done
for rank in $ranks; do kill -KILL "-$rank"; done
for stat in /proc/[0-9]*/stat; do
    read -r line <"$stat" || continue
    set -- ${line##*) }
    case "$ranks " in *" $4 "*) pid=${stat#/proc/}; kill -KILL "${pid%/stat}" ;; esac
done
"""


class Guard:
    """Started before the ranks, so that none is ever without it; where it cannot start, there is none."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):  # no shell: the workload is as safe as it would be without hpcml
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # whoever kills the agent's group must not kill this
                bufsize=0,
            )

    def watch(self, pid: int) -> None:
        """Have the session that *pid* leads killed if this process dies."""
        self._say(str(pid))

    def dismiss(self) -> None:
        """End it: the workload has ended."""
        self._say("done")
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.close()
            self._process.wait()

    def _say(self, line: str) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):  # somebody has killed it
                self._process.stdin.write(f"{line}\n".encode("ascii"))
