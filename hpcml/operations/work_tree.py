"""What git says of a working tree: the files that it tracks or would add, and those that it ignores."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from hpcml.errors import ConfigError
from hpcml.operations.code_store import File, Link

_TIMEOUT_S = 60
MOST_BYTES = 256 << 20
_MOST_FILES = 20_000
_NAMED = 3  # of the biggest files, in an error
_COMPILED = ("__pycache__", ".pyc")  # of the files as they will be edited: Python might take them for those of the copy


@dataclass(slots=True)
class WorkTree:
    """A working tree as it is now. *links* are symbolic links of it, and to what git ignores in it."""

    top: Path
    files: list[File] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    ignored: set[str] = field(default_factory=set)  # paths, each linked to where it is

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self.files)

    def is_ignored(self, path: PurePosixPath) -> bool:
        """Tell whether git ignores *path*, or a folder above it."""
        return any(str(part) in self.ignored for part in (path, *path.parents))


def top_of(folder: Path) -> Path | None:
    """Return the root of the working tree around *folder*; None where there is none, or no git."""
    said = git(folder, "rev-parse", "--show-toplevel")
    return None if not said else Path(os.fsdecode(said.rstrip(b"\n")))


def is_kept(folder: Path) -> bool:
    """Tell whether *folder* lies in a working tree that keeps anything of it."""
    top = top_of(folder)
    if top is None:
        return False
    path = os.path.relpath(os.path.realpath(folder), top)
    return path == "." or git(top, "check-ignore", "--", path) is None


def read_work_tree(folder: Path, *, without: Path) -> WorkTree | None:
    """Return the working tree around *folder*, but for what lies in *without*; None where git keeps nothing of it.

    Raises `ConfigError` where it is too large to be copied for a job.
    """
    top = top_of(folder)
    if top is None:
        return None
    tree = WorkTree(top=top)
    _read(tree, PurePosixPath(), os.path.realpath(without))
    if tree.is_ignored(PurePosixPath(os.path.relpath(os.path.realpath(folder), top))):
        return None
    _refuse_too_large(tree)
    return tree


def git(
    folder: Path, *words: str, environ: Mapping[str, str] | None = None, given: bytes | None = None
) -> bytes | None:
    """Return what git prints; None where it fails, is not there, or its file system does not answer."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            env={**os.environ, **(environ or {})},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _read(tree: WorkTree, prefix: PurePosixPath, without: str) -> None:
    """Add the repository at *prefix* to *tree*, and those inside it."""
    for name in sorted(_listed(tree.top / prefix, "-co")):
        path = prefix / name
        place = tree.top / path
        try:
            status = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed, and git has not been told
        if _lies_in(place, without):
            continue
        if stat.S_ISDIR(status.st_mode):  # a submodule, or another repository
            if top_of(place) == place:
                _read(tree, path, without)
        elif stat.S_ISLNK(status.st_mode):
            tree.links.append(Link(path=str(path), target=_target(tree.top, path)))
        elif stat.S_ISREG(status.st_mode):
            executable = bool(status.st_mode & stat.S_IXUSR)
            tree.files.append(File(path=str(path), source=place, is_executable=executable, size=status.st_size))
    for name in sorted(_listed(tree.top / prefix, "-oi", "--directory")):
        path = prefix / name
        if not path.name.endswith(_COMPILED) and not _lies_in(tree.top / path, without):
            tree.ignored.add(str(path))
            tree.links.append(Link(path=str(path), target=str(tree.top / path)))


def _listed(folder: Path, *flags: str) -> set[str]:
    said = git(folder, "ls-files", "-z", "--exclude-standard", *flags)
    if said is None:
        raise ConfigError(
            f"git cannot list the files of {folder}: set schedule.snapshot=none to run without a snapshot"
        )
    return {os.fsdecode(name) for name in said.split(b"\0") if name}


def _lies_in(place: Path, folder: str) -> bool:
    return str(place) == folder or str(place).startswith(folder + os.sep)


def _target(top: Path, path: PurePosixPath) -> str:
    """Return what a link says in the copy: inside the tree the same, relative place; else where it points now."""
    place = top / path
    meant = os.path.normpath(place.parent / place.readlink())
    if _lies_in(Path(meant), str(top)):
        return os.path.relpath(meant, place.parent)
    return meant


def _refuse_too_large(tree: WorkTree) -> None:
    count = len(tree.files) + len(tree.links)
    if tree.size_bytes <= MOST_BYTES and count <= _MOST_FILES:
        return
    raise ConfigError(
        f"the code of {tree.top} is too large to be copied for the job: {count} files, {tree.size_bytes >> 20} MiB, "
        f"the largest {', '.join(_biggest(tree.files))} (limits: {_MOST_FILES} files, {MOST_BYTES >> 20} MiB): let "
        ".gitignore name what is no code, or set schedule.snapshot=git or none"
    )


def _biggest(files: list[File]) -> Iterator[str]:
    for file in sorted(files, key=lambda file: file.size, reverse=True)[:_NAMED]:
        yield f"{file.path} ({file.size / (1 << 20):.1f} MiB)"
