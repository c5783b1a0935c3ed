"""A program that ends with us, however we end; and that is waited for by whoever cleans up after us."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

GRACE_S = 20  # to remove its temporary files, which only it knows
_GROUP = "group"  # in the folder of a build: the process group that works there
# Reads a word; if there comes an end instead, asks the process group $1 to leave, and makes it after $2 seconds.
_GUARD = """
read -r word && exit
kill -TERM "-$1"
while [ "$2" -gt 0 ] && kill -0 "-$1"; do sleep 1; set -- "$1" $(($2 - 1)); done
kill -KILL "-$1"
"""
# Begins when it is told to, or never: whoever dies before there is a guard leaves nothing that works.
_GATE = 'read -r word || exit 1; exec "$@" </dev/null'


@contextmanager
def guarded(command: Sequence[str], *, folder: Path, environ: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run *command* in *folder*, with its lines in `stdout`; leaving the block ends it and all that it started."""
    process = behind_a_gate(command, folder=folder, environ=environ)
    assert process.stdin is not None
    assert process.stdout is not None
    guard: subprocess.Popen[bytes] | None = None
    try:
        guard = _guard(process.pid)
        (folder / _GROUP).write_text(f"{process.pid} {socket.gethostname()}", encoding="utf-8")
        open_gate(process)
        yield process
    finally:
        process.stdout.close()
        _end(process)
        if guard is not None:
            guard.communicate(b"done\n")


def behind_a_gate(command: Sequence[str], *, folder: Path, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """Return a process that becomes *command* at `open_gate`, and ends if we end before."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _GATE, "hpcml-image-gate", *command],
        cwd=folder,
        env=dict(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C is for us: we end it, and wait until it has cleaned up
    )


def open_gate(process: subprocess.Popen[str]) -> None:
    """Let the command begin."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it was killed: its exit status says so
        process.stdin.write("go\n")
        process.stdin.close()


def await_end(folder: Path, *, on_wait: Callable[[], None], patience_s: float = GRACE_S + 10) -> None:
    """Wait until nothing works in *folder* any more that a builder of this host left there when it was killed.

    Its guard ends it; who removes the folder meanwhile removes it under the hands of who fills it.
    """
    try:
        number, _, host = (folder / _GROUP).read_text(encoding="utf-8").partition(" ")
        group = int(number)
    except (OSError, ValueError):
        return
    if host != socket.gethostname():
        return
    deadline = time.monotonic() + patience_s
    while _lives(group) and time.monotonic() < deadline:
        on_wait()
        time.sleep(0.1)


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except PermissionError:
        return True  # of another user
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _guard(group: int) -> subprocess.Popen[bytes]:
    """Start a process that ends *group* if we die without a word.

    The kernel's own death signal (prctl) is lost where Apptainer enters a user namespace.
    """
    words = ["/bin/sh", "-c", _GUARD, "hpcml-image-guard", str(group), str(GRACE_S)]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=nowhere,
        stderr=nowhere,
        env={"PATH": os.defpath},  # without the key of the registry
        start_new_session=True,
    )


def _end(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with suppress(ProcessLookupError):  # what it has left of its session
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
