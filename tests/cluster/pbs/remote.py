"""An ssh, or an mpiexec, to another node of the double: ``remote.py ssh|mpiexec WORDS``. Standard library only.

What runs there is in a session of its own with an environment of its own, which no signal to the job reaches. If this
end is killed, ssh's other end is hung up on; mpiexec passes on what it is told.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def words_of(kind: str, words: list[str]) -> list[str]:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] in ("-o", "-n", "-host") else rest[1:]
    if kind == "mpiexec":
        return rest  # its node was an option
    return ["/bin/sh", "-c", " ".join(rest[1:])]  # as sshd does: one line for a shell


def serve(kind: str, words: list[str], client: int, answer: int) -> None:
    """Be the other node: run the words, hang up on them when the client's end of the pipe closes."""
    os.setsid()
    environ = {name: os.environ[name] for name in ("HOME", "LOGNAME") if name in os.environ} | {"PATH": "/usr/bin:/bin"}
    # Signals that the client ignores are not ignored there
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    child = subprocess.Popen(
        words_of(kind, words), env=environ, cwd="/", stdin=subprocess.DEVNULL, start_new_session=True
    )

    def watch() -> None:
        while told := os.read(client, 1):
            os.killpg(child.pid, told[0])
        os.killpg(child.pid, signal.SIGHUP)

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    os.write(answer, bytes([128 - code if code < 0 else code]))
    os._exit(0)


def main() -> int:
    kind, *words = sys.argv[1:]
    there, here = os.pipe()
    back, answer = os.pipe()
    other_end = os.fork()
    if other_end == 0:
        os.close(here)
        os.close(back)
        serve(kind, words, there, answer)
    os.close(answer)
    os.close(there)
    if kind == "mpiexec":
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda told, _frame: os.write(here, bytes([told])))
    if said := os.read(back, 1):
        return said[0]
    _, status = os.waitpid(other_end, 0)
    sys.stderr.write(f"{kind}: the other end is gone, by status {os.waitstatus_to_exitcode(status)}\n")
    return 255


if __name__ == "__main__":
    sys.exit(main())
