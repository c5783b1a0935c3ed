"""What tests see of builds while they run: their processes, their lines, and the disk that they write to."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.images.user import LONGEST_S, ImageUser

__all__ = ["LONGEST_S", "await_command", "await_line", "await_silence", "processes_of", "small_disk"]


@contextmanager
def small_disk(user: ImageUser, mib: int, place: Path | None = None) -> Iterator[None]:
    """Let *place*, or the folder of images, be a file system of its own with so little room."""
    place = place or user.images
    place.mkdir()
    options = f"size={mib}m,uid={user.folder.stat().st_uid},mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "hpcml-test", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


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
    """Return what works for the user as soon as *command* runs in a build that was started."""
    deadline = time.monotonic() + LONGEST_S
    while command not in (found := processes_of(user)).values():
        for builder in user.started:
            assert builder.poll() is None, (command, builder.returncode, _rest(builder))
        assert time.monotonic() < deadline, (command, found)
        time.sleep(0.05)
    return found


def await_silence(user: ImageUser) -> None:
    """Wait until nothing works for the user any more."""
    deadline = time.monotonic() + LONGEST_S
    while found := processes_of(user):
        assert time.monotonic() < deadline, {pid: (words, _state(pid)) for pid, words in found.items()}
        time.sleep(0.1)


def await_line(builder: subprocess.Popen[str], word: str) -> None:
    """Read what *builder* says until a line with *word*; one that says something else is shown whole."""
    assert builder.stderr is not None
    impatience = threading.Timer(LONGEST_S, builder.kill)  # which ends a wait for a line that never comes
    impatience.start()
    said: list[str] = []
    try:
        for line in builder.stderr:
            said.append(line)
            if word in line:
                return
    finally:
        impatience.cancel()
    builder.wait(LONGEST_S)
    raise AssertionError(f"{word!r} never came; exit status {builder.returncode}: {''.join(said)}")


def _rest(builder: subprocess.Popen[str]) -> tuple[str, str]:
    return builder.communicate(timeout=LONGEST_S)


def _state(pid: int) -> str:
    """Return what a process waits in, for a message."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        return " ".join(line for line in status.splitlines() if line.startswith(("State", "PPid"))) + (
            f" in {Path(f'/proc/{pid}/exe').readlink()}"
        )
    except OSError as error:
        return str(error)
