"""Two ordinary users with a group in common, and what each does: functions run in a process that has become one."""

from __future__ import annotations

import encodings.ascii  # noqa: F401 - loaded at first use, where the library may be closed to the user
import os
import pickle
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

R = TypeVar("R")
GROUP = 65_500
DEFAULT_ACL = "system.posix_acl_default"
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 1, 2, 4, 16, 32
_NOBODY_NAMED = 0xFFFFFFFF


@dataclass(frozen=True)
class User:
    """Somebody in `GROUP`."""

    uid: int

    def does(self, function: Callable[..., R], *args: object, umask: int = 0o002) -> R:
        """Call *function* as this user; what it returns or raises comes back."""
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            with os.fdopen(write_end, "wb") as answers:
                answers.write(pickle.dumps(_as(self.uid, umask, function, args)))
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as answers:
            said = answers.read()
        os.waitpid(pid, 0)
        outcome = pickle.loads(said)  # noqa: S301 - written by ourselves
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[no-any-return]


ADA, EVE = User(65_501), User(65_502)
ROOT = User(0)


@contextmanager
def folder_of_the_group() -> Iterator[Path]:
    """Make a project's folder as on a cluster, 2770 of root: each of the group may do everything in it."""
    folder = Path(tempfile.mkdtemp(prefix="hpcml-project-"))
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2770)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def needs_root() -> pytest.MarkDecorator:
    return pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two users")


def _as(uid: int, umask: int, function: Callable[..., R], args: tuple[object, ...]) -> R | BaseException:
    try:
        os.umask(umask)
        if uid:
            os.setgroups([GROUP])
            os.setgid(GROUP)
            os.setuid(uid)
        return function(*args)
    except BaseException as error:  # noqa: BLE001 - all that happens there is told here
        return error


def let_in_by_acl(folder: Path, user: User) -> None:
    """Give *user* all rights in whatever is made in *folder* from now on: setfacl -d -m u:USER:rwx (man 5 acl)."""
    entries = [
        (_USER_OBJ, 7, _NOBODY_NAMED), (_USER, 7, user.uid), (_GROUP_OBJ, 7, _NOBODY_NAMED),
        (_MASK, 7, _NOBODY_NAMED), (_OTHER, 0, _NOBODY_NAMED),
    ]  # fmt: skip
    words = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, rights, who) for tag, rights, who in entries)
    try:
        os.setxattr(folder, DEFAULT_ACL, words)
    except OSError as error:
        pytest.skip(f"this file system takes no ACL: {error.strerror}")
