"""Reading files of run directories, which anybody may have written: regular files alone, never waited for.

A named pipe in the place of a file would stop its reader for ever, and a device may never end.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from hpcml.errors import HpcmlError

_MOST_BYTES = 64 << 20  # of a file that is read whole: a run.json has a few KiB
_DEEPEST = 100  # of nested JSON: what is deeper exhausts the stack of whoever looks through it


def open_regular(path: Path | str) -> BinaryIO:
    """Open the regular file *path*, or the one that it links to, for reading bytes.

    Raises `OSError` where it cannot be opened, and where it is a folder, a named pipe, a socket or a device: those are
    not even touched.
    """
    _refuse_others(os.stat(path).st_mode, path)  # noqa: PTH116 - path may be a text
    # not to wait for the writer of a pipe that has come in between
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _refuse_others(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _refuse_others(mode: int, path: Path | str) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is no regular file", str(path))


def open_inside(folder: Path, path: Path) -> BinaryIO:
    """Open the regular file *path* below *folder*, wherever that lies itself, but follow no link that leads out of it.

    Raises `OSError` as `open_regular` does, and where the file lies elsewhere.
    """
    real = os.path.realpath(path)
    if not Path(real).is_relative_to(os.path.realpath(folder)):
        raise OSError(errno.EPERM, f"is a link out of {folder}", str(path))
    return open_regular(real)


def read_whole(path: Path, *, most: int = _MOST_BYTES) -> bytes:
    """Return the content of a regular file of at most *most* bytes; raise `OSError` for any other."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size  # a buffer for the most costs more than reading a short file
        content = file.read(min(size, most) + 1)
        if size < len(content) <= most:  # it has grown
            content += file.read(most + 1 - len(content))
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
