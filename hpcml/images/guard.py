"""Runs a program such that it ends with us, however we end: killed, too.

A build is asked to end first, since only it knows its temporary files, and leaves word of what works in its folder: so
it has not the guard of an agent's ranks (`hpcml.agent.supervise`), which kills.
`guarded` is the context that a build runs in; `await_end` waits for what a killed builder has left working.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcml.runs.liveness import ProcessIdentity, is_of_our_namespace

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
def guarded(
    command: Sequence[str],
    *,
    folder: Path,
    environ: Mapping[str, str],
    cwd: Path | None = None,
    processors: int | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Run *command* in *cwd*, or in *folder*; leaving the block ends it and all processes that it started.

    Its output, stderr included, is the process's `stdout`. It begins only once a guard process watches over it: if this
    process is killed, the guard asks the command to end (SIGTERM), and kills it after `GRACE_S` seconds. The command is
    the first of a process group and a session of its own, and has no standard input. It and what it starts run on at
    most *processors* processors; None: on all that this process may.
    """
    process = behind_a_gate(command, folder=cwd or folder, environ=environ)
    assert process.stdin is not None
    assert process.stdout is not None
    guard: subprocess.Popen[bytes] | None = None
    try:
        guard = _guard(process.pid)
        if processors is not None:
            with suppress(OSError):  # it was killed
                os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[-processors:])
        (folder / _GROUP).write_text(f"{process.pid} {ProcessIdentity.of_this_process().place}", encoding="utf-8")
        open_gate(process)
        yield process
    finally:
        process.stdout.close()
        _end(process)
        if guard is not None:
            guard.communicate(b"done\n")


def behind_a_gate(command: Sequence[str], *, folder: Path, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a process that waits for `open_gate` before it becomes *command*, and ends if this process ends before.

    So its process id is known, and can be given to a guard, before the command does anything.
    """
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
    """Let a process of `behind_a_gate` start its command; one that was killed meanwhile is no error."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it was killed: its exit status says so
        process.stdin.write("go\n")
        process.stdin.close()


def await_end(folder: Path, *, on_wait: Callable[[], None], patience_s: float = GRACE_S + 10) -> None:
    """Wait, for at most *patience_s*, until no process of a killed builder of this host works in *folder* any more.

    The builder's guard ends these processes; the folder must not be removed while they still write there. *on_wait* is
    called ten times a second while there is something to wait for. A folder of another host, or one that no process was
    started in, is not waited for.
    """
    try:
        number, _, place = (folder / _GROUP).read_text(encoding="utf-8").partition(" ")
        group = int(number)
    except (OSError, ValueError):
        return
    if not is_of_our_namespace(ProcessIdentity.at(place, group)):
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
