"""Where a run came from: who, where, with which words, which software and which code."""

from __future__ import annotations

import getpass
import platform
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path

from hpcml import __version__
from hpcml.manifest import Provenance
from hpcml.places import without_password

_GIT_TIMEOUT_S = 30
_DIFF_LIMIT_BYTES = 10 << 20
# Whatever the user's configuration says; the whole repository, wherever in it this is
_AS_GIT_APPLY_READS_IT = (
    *("--no-color", "--no-ext-diff", "--no-textconv", "--no-relative", "--src-prefix=a/", "--dst-prefix=b/"),
    "--submodule=short",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The user's working tree: None for what git cannot tell, such as outside a repository."""

    commit: str | None
    dirty: bool | None
    diff: bytes
    is_cut: bool = False  # the diff was too long, and is no patch any more


NO_CODE = Code(commit=None, dirty=None, diff=b"")


def describe_code(folder: Path) -> Code:
    """Return commit and uncommitted changes of the repository around *folder*; the diff is cut at 10 MiB."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return NO_CODE
    changes = _git(folder, "status", "--porcelain") or b""
    diff = _git(folder, "diff", "--binary", *_AS_GIT_APPLY_READS_IT, "HEAD") or b""
    is_cut = len(diff) > _DIFF_LIMIT_BYTES
    if is_cut:
        diff = diff[:_DIFF_LIMIT_BYTES] + b"\n[cut by hpcml: the diff was %d bytes long]\n" % len(diff)
    return Code(commit=commit.decode().strip(), dirty=bool(changes.strip()), diff=diff, is_cut=is_cut)


def describe(
    command_line: Sequence[str], folder: Path, code: Code, user_config: Sequence[str], now: datetime
) -> Provenance:
    """Return everything about this call that a run records."""
    return Provenance(
        command_line=[without_password(word) for word in command_line],
        submitted_at=now.isoformat(timespec="seconds"),
        submitted_from=socket.gethostname(),
        user=user_name(),
        cwd=str(folder),
        hpcml_version=__version__,
        python=platform.python_version(),
        packages=_packages(),
        git_commit=code.commit,
        git_dirty=code.dirty,
        user_config=list(user_config),
    )


def _git(folder: Path, *words: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):  # no git here, or a repository on a dead file system
        return None
    return done.stdout if done.returncode == 0 else None


def user_name() -> str:
    """Return who is at work here."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in many containers
        return "unknown"


def _packages() -> dict[str, str]:
    found = {dist.name: dist.version for dist in metadata.distributions() if dist.name}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))
