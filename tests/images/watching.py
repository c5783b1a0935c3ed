"""What tests see of builds while they run: their processes, their lines, and the disk that they write to."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.images.user import ImageUser

LONGEST_S = 60


@contextmanager
def small_disk(user: ImageUser, mib: int) -> Iterator[None]:
    """Let the folder of images be a file system of its own with so little room."""
    user.images.mkdir()
    options = f"size={mib}m,uid={user.folder.stat().st_uid},mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "hpcml-test", str(user.images)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(user.images)], check=True)


def processes_of(user: ImageUser) -> dict[int, str]:
    """Return the command lines of all that works for the user, by process id."""
    found: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            environ = (path / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(user.folder) in words + environ:
            found[int(path.name)] = words
    return found


def await_command(user: ImageUser, command: str) -> dict[int, str]:
    """Return what works for the user as soon as *command* runs in a build."""
    deadline = time.monotonic() + LONGEST_S
    while command not in (found := processes_of(user)).values():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def await_silence(user: ImageUser) -> None:
    deadline = time.monotonic() + 20
    while found := processes_of(user):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def await_line(builder: subprocess.Popen[str], word: str) -> None:
    assert builder.stderr is not None
    for line in builder.stderr:
        if word in line:
            return
    raise AssertionError(f"{word} never came")
