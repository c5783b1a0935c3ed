"""The provenance recorded in a run's manifest: user, host, command line, software and state of the code."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path

from hpcml import __version__
from hpcml.model.secrets import masked
from hpcml.runs.manifest import Provenance

_DIFF_LIMIT_BYTES = 10 << 20
_GIT_TIMEOUT_S = 60  # a file system that does not answer
# Whatever the user's configuration says; the whole repository, wherever in it this is
_AS_GIT_APPLY_READS_IT = (
    *("--no-color", "--no-ext-diff", "--no-textconv", "--no-relative", "--src-prefix=a/", "--dst-prefix=b/"),
    "--submodule=diff",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The state of the code around a folder: commit and uncommitted changes, as git reports them.

    `commit` and `dirty` are None for what git cannot tell, such as outside a repository; `diff` is a patch for ``git
    apply``, empty without changes.
    """

    commit: str | None
    dirty: bool | None
    diff: bytes


NO_CODE = Code(commit=None, dirty=None, diff=b"")


def git(folder: Path, *words: str) -> bytes | None:
    """Run git in *folder* with the arguments *words*; return its standard output.

    None where git fails (a status other than 0), is not installed, or takes longer than a minute.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def top_of(folder: Path, *options: str) -> Path | None:
    """Return the root of the working tree around *folder*; None where there is none, or no git."""
    answer = git(folder, *options, "rev-parse", "--show-toplevel")
    return Path(os.fsdecode(answer.rstrip(b"\n"))) if answer else None


def distrusted_by_git(folder: Path) -> str | None:
    """Return the repository around *folder* of which git tells nothing, since it is another user's; None for none."""
    top = top_of(folder, "-c", "safe.directory=*")
    return None if top is None or top_of(folder) is not None else str(top)


def describe_code(folder: Path) -> Code:
    """Return commit and uncommitted changes of the repository around *folder*.

    The diff is against HEAD, covers the whole repository and its submodules, and has binary files in it. It is cut at
    10 MiB and is no patch any more then. `NO_CODE` where there is no commit, no git, or git does not answer.
    """
    commit = git(folder, "rev-parse", "HEAD")
    if commit is None:
        return NO_CODE
    changes = git(folder, "status", "--porcelain") or b""
    diff = git(folder, "diff", "--binary", *_AS_GIT_APPLY_READS_IT, "HEAD") or b""
    if len(diff) > _DIFF_LIMIT_BYTES:
        diff = diff[:_DIFF_LIMIT_BYTES] + b"\n[cut by hpcml: the diff was %d bytes long]\n" % len(diff)
    return Code(commit=commit.decode().strip(), dirty=bool(changes.strip()), diff=diff)


def describe(command_line: Sequence[str], user_config: Sequence[str], now: datetime) -> Provenance:
    """Return the provenance of runs submitted by this call: who, where, when, by which command and with which software.

    Secrets in *command_line* are left out, since manifests may be shown to others. *now* carries its time
    zone. The submission's id and size, and each run's code, are added by `launch`.
    """
    return Provenance(
        command_line=masked(command_line),
        submitted_at=now.isoformat(timespec="seconds"),
        submitted_from=socket.gethostname(),
        user=user_name(),
        cwd=str(Path.cwd()),
        hpcml_version=__version__,
        python=platform.python_version(),
        packages=_packages(),
        user_config=list(user_config),
    )


def user_name() -> str:
    """Return the login name of this user; "unknown" for a user id without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in many containers
        return "unknown"


def _packages() -> dict[str, str]:
    """Return the installed packages with their versions, in the order of their names."""
    found: dict[str, str] = {}
    for each in metadata.distributions():
        with suppress(KeyError, OSError):  # newer importlib.metadata, of a package that is damaged
            if name := each.metadata["Name"]:
                found[name] = each.metadata["Version"] or ""
    return {name: found[name] for name in sorted(found, key=str.lower)}
