"""Reading files of run directories, which anybody may have written: regular files alone, never waited for.

A named pipe in the place of a file would stop its reader for ever, and a device may never end.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from hpcml.errors import HpcmlError

_MOST_BYTES = 64 << 20  # of a file that is read whole: a run.json has a few KiB
_BLOCK_BYTES = 1 << 16
_DEEPEST = 100  # of nested JSON: what is deeper exhausts the stack of whoever looks through it


def open_regular(path: Path | str) -> BinaryIO:
    """Open the regular file *path*, or the one that it links to, for reading bytes.

    Raises `OSError` where it cannot be opened, and where it is a folder, a named pipe, a socket or a device: those are
    not even touched.
    """
    return os.fdopen(open_descriptor(path)[0], "rb")


def open_descriptor(path: Path | str) -> tuple[int, int]:
    """Open *path* as `open_regular` does; return its descriptor, which the caller closes, and its bytes.

    A file object looks at its file several times more, which takes longer than reading a short one.
    """
    _refuse_others(os.stat(path), path)  # noqa: PTH116 - path may be a text
    # not to wait for the writer of a pipe that has come in between
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        _refuse_others(status, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def _refuse_others(status: os.stat_result, path: Path | str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is no regular file", str(path))


def open_inside(folder: Path, path: Path) -> BinaryIO:
    """Open the regular file *path* below *folder*, wherever that lies itself, but follow no link that leads out of it.

    Raises `OSError` as `open_regular` does, and where the file lies elsewhere.
    """
    real = os.path.realpath(path)
    if not Path(real).is_relative_to(os.path.realpath(folder)):
        raise OSError(errno.EPERM, f"is a link out of {folder}", str(path))
    return open_regular(real)


def read_whole(path: Path | str, *, most: int = _MOST_BYTES) -> bytes:
    """Return the content of a regular file of at most *most* bytes; raise `OSError` for any other."""
    descriptor, size = open_descriptor(path)
    try:
        content = os.read(descriptor, min(size, most) + 1)  # a buffer for the most would cost more than a short file
        while len(content) <= most and (more := os.read(descriptor, min(_BLOCK_BYTES, most + 1 - len(content)))):
            content += more
    finally:
        os.close(descriptor)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"has more than {most >> 20} MiB", str(path))
    return content


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever the file says
    """Return the JSON value in the regular file *path*.

    Raises `OSError` where it cannot be read, and `ValueError` for what is no JSON, or nested deeper than 100 levels.
    """
    return parse_json(read_whole(path))


def parse_json(text: bytes | str) -> Any:  # noqa: ANN401
    """Return the JSON value that *text* is; raise `ValueError` for what is none, or nested deeper than 100 levels."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {_DEEPEST} levels") from None
    brackets = (text.count("["), text.count("{")) if isinstance(text, str) else (text.count(b"["), text.count(b"{"))
    if max(brackets) > _DEEPEST // 2 and _is_deeper(value, _DEEPEST):
        raise ValueError(f"nested deeper than {_DEEPEST} levels")
    return value


def _is_deeper(value: Any, levels: int) -> bool:  # noqa: ANN401
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_is_deeper(part, levels - 1) for part in parts)


def read_raw(path: Path) -> dict[str, Any]:
    """Return run.json as plain JSON values, of any format; raise `HpcmlError` where it cannot be read."""
    return object_in(path, lambda: read_whole(path))


def object_in(path: Path, content: Callable[[], str | bytes]) -> dict[str, Any]:
    """Return the JSON object that *content* of the run.json in *path* is; raise `HpcmlError` where it is none."""
    try:
        raw = parse_json(content())
    except OSError as error:
        raise HpcmlError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise HpcmlError(f"{path} is damaged: {error}") from error
    if not isinstance(raw, dict):
        raise HpcmlError(f"{path} is no run.json")
    return raw


def open_folders(path: Path) -> None:
    """Give their owner all rights in the folder *path* and every one below, as far as that is allowed to us.

    No link is followed, not even one that somebody puts in the place of a folder meanwhile.
    """
    _open_folder(str(path), None)


def _open_folder(name: str, above: int | None) -> None:
    with suppress(OSError):
        folder = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        try:
            os.chmod(f"/proc/self/fd/{folder}", 0o700)  # noqa: PTH101 - of what was opened, which has no other name
            with os.scandir(f"/proc/self/fd/{folder}") as entries:
                below = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            for entry in below:
                _open_folder(entry, folder)
        finally:
            os.close(folder)
