"""What `hpcml --help` costs: CPU time of the whole process, user and system, against the least it could be.

Each command is started REPEAT times, in turns, and the smallest CPU time is taken: other work on the machine can only
add to it. CPU time comes from the operating system (os.wait4), so it includes the interpreter's start and end.

The promise: hpcml --help needs at most LIMIT times what Python needs to import click and do nothing.
"""

from __future__ import annotations

import os
import sys

from hpcml_command import command_of

REPEAT = 15
LIMIT = 3.0
HPCML = command_of()
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import click'": [sys.executable, "-c", "import click"],
    "hpcml --help": [HPCML, "--help"],
    "hpcml runs --help": [HPCML, "runs", "--help"],
}


def cpu_ms(argv: list[str]) -> float:
    """Run *argv* with its output thrown away and return the CPU time it used; a failure ends the benchmark."""
    sink = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=sink)
    _, status, used = os.wait4(pid, 0)
    if status:
        sys.exit(f"{' '.join(argv)} ended with status {os.waitstatus_to_exitcode(status)}")
    return (used.ru_utime + used.ru_stime) * 1000


def main() -> int:
    best = dict.fromkeys(COMMANDS, float("inf"))
    for _ in range(REPEAT):
        for name, argv in COMMANDS.items():
            best[name] = min(best[name], cpu_ms(argv))
    floor = best["python -c 'import click'"]
    print("| command | CPU ms (best of 15) | over `import click` |")
    print("|---|---:|---:|")
    for name, ms in best.items():
        print(f"| `{name}` | {ms:.0f} | {ms / floor:.2f} |")
    ratio = best["hpcml --help"] / floor
    print(f"\nhpcml --help: {ratio:.2f} times python with click; the limit is {LIMIT:g}.")
    return 0 if ratio <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
