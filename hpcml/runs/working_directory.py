"""The working directory of a run: a copy of its code, made when its job starts, of which stays what was written.

`stage` copies the kept code to ``work/`` in the run directory: by reflink where the file system can (one copy on the
disk until it is changed), else byte by byte. There are no hard links, and of code no symbolic links: through either, a
program could change what other runs read. `settle` removes at the end what is as it was staged, so that a run keeps
what its program wrote and nothing else.

A later attempt finds what earlier ones wrote: `stage` adds what is missing and never touches what is there.
``staged.json`` is written when all is in place. Without it no program has run yet, and the folder is made anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from hpcml.errors import HpcmlError
from hpcml.runs.atomic import write_text
from hpcml.runs.files import open_regular, parse_json, read_whole
from hpcml.runs.layout import RunDir
from hpcml.runs.plan import Staging
from hpcml.runs.private import FILE, FOLDER, make_folder

_FICLONE = 0x40049409  # linux/fs.h: share the blocks of another file until one of both is written (xfs, btrfs, ...)
_BLOCK_BYTES = 1 << 20
_COMPILED = "__pycache__"
_MOST_LOOKED_AT = 2_000  # entries of a shared folder, two folders deep


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file that the program left in its working directory; `path` is relative to that."""

    path: str
    size_bytes: int
    is_new: bool  # else it was there at the start, and has been changed


@dataclass(slots=True)
class _Record:
    """What was staged, by its path in the working directory."""

    files: dict[str, tuple[int, int]] = field(default_factory=dict)  # size in bytes and mtime in ns, as staged
    links: dict[str, str] = field(default_factory=dict)  # what they say
    folders: set[str] = field(default_factory=set)


def stage(run_dir: RunDir, staging: Staging, cwd: Path, *, on_file: Callable[[], None] = lambda: None) -> None:
    """Make the working directory of a run, or complete the one that an earlier attempt has left; *cwd* lies in it.

    Nothing that is there is replaced or followed. *on_file* is called before each file. Raises `OSError`, above all
    where the copy of the code is gone or no room is left; the working directory is made anew then by the next attempt,
    if no program has run in it.
    """
    known = _read(run_dir)
    if known is None:
        if os.path.lexists(run_dir.work):
            shutil.rmtree(run_dir.work)
        known = _Record()
    stager = _Stager(run_dir.work, known, on_file)
    make_folder(run_dir.work)
    if stager.folder(staging.project):
        stager.tree(Path(staging.code), staging.project)
    for place in staging.empty:
        stager.folders(place)
    for place, source in staging.shared.items():
        if stager.folders(str(Path(place).parent)):
            stager.link(source, place)
    stager.folders(os.path.relpath(cwd, run_dir.work))  # git knows no empty folders
    record = {"files": known.files, "links": known.links, "folders": sorted(known.folders)}
    write_text(run_dir.staged, json.dumps(record))


def settle(run_dir: RunDir, *, within_s: float) -> list[WrittenFile]:
    """Remove what is in the working directory as it was staged; return what the program wrote, sorted by path.

    Removing stops after *within_s* seconds, and what is left then does no harm: it is not among what was written.
    Raises `OSError` and `HpcmlError` where the folder or its record cannot be read.
    """
    until = time.monotonic() + within_s
    record = _read(run_dir)
    if record is None:
        return []
    written: list[WrittenFile] = []
    unchanged: list[str] = []
    for place, status in _entries(run_dir.work):
        if (found := _written(run_dir.work, place, status, record)) is not None:
            written.append(found)
        else:
            unchanged.append(place)
    for place in unchanged:
        if time.monotonic() >= until:
            break
        with suppress(OSError):  # in a folder that the program made read-only, or gone
            (run_dir.work / place).unlink()
    compiled = {str(Path(place).parent) for place in unchanged if Path(place).parent.name == _COMPILED}
    for place in sorted(record.folders | compiled, key=lambda place: place.count(os.sep), reverse=True):
        with suppress(OSError):  # it holds what the program wrote
            (run_dir.work / place).rmdir()
    return written


def written_files(run_dir: RunDir) -> list[WrittenFile]:
    """Return what the program has written into its working directory so far, sorted by path; nothing is changed.

    Raises `OSError` and `HpcmlError` where the folder or its record cannot be read.
    """
    record = _read(run_dir)
    if record is None:
        return []
    found = (_written(run_dir.work, place, status, record) for place, status in _entries(run_dir.work))
    return [file for file in found if file is not None]


def was_there(run_dir: RunDir, place: str) -> bool:
    """Tell whether *place*, relative to the working directory, was in it when the program began, shared or not.

    Raises `OSError` and `HpcmlError` where the record of it cannot be read; without one, nothing was.
    """
    record = _read(run_dir)
    if record is None:
        return False
    is_staged = place in record.files or place in record.links or place in record.folders
    return is_staged or any(str(folder) in record.links for folder in Path(place).parents)


def look_at_shared(staging: Staging) -> dict[str, object]:
    """Return, for each file and folder that runs share, what shows a change: sizes, times and inodes, two folders deep.

    At most 2,000 entries of a folder are looked at. Environments are left out, since programs compile into them.
    """
    return {place: _marks(Path(source)) for place, source in staging.shared.items() if not is_environment(Path(source))}


def is_environment(folder: Path) -> bool:
    """Tell whether *folder* is an installation of packages: Python's venv, conda's, or node_modules."""
    marks = (folder / "pyvenv.cfg", folder / "conda-meta")
    return folder.name in (".venv", "node_modules") or any(os.path.lexists(mark) for mark in marks)


@dataclass(frozen=True, slots=True)
class _Stager:
    """Puts things into a working directory; where something is already, that stays."""

    work: Path
    record: _Record
    on_file: Callable[[], None]

    def tree(self, source: Path, place: str) -> None:
        with os.scandir(source) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            below = f"{place}/{entry.name}"
            if entry.is_symlink():
                self.link(str(Path(entry.path).readlink()), below)
            elif entry.is_dir():
                if self.folder(below):
                    self.tree(Path(entry.path), below)
            else:
                self.file(Path(entry.path), below)

    def folders(self, place: str) -> bool:
        """Make the folder *place* and those above it; False where something else is in the way."""
        parts = Path(place).parts
        return all(self.folder(str(Path(*parts[: count + 1]))) for count in range(len(parts)))

    def folder(self, place: str) -> bool:
        """Make one folder; False where a file or a link is in its place, which is not followed."""
        with suppress(FileExistsError):
            (self.work / place).mkdir(mode=FOLDER)
            self.record.folders.add(place)
        return stat.S_ISDIR((self.work / place).lstat().st_mode)

    def file(self, source: Path, place: str) -> None:
        self.on_file()
        target = self.work / place
        if os.path.lexists(target):
            return
        draft = target.with_name(f".{target.name[:100]}.staging")  # a copy that is cut off must not pass for a file
        draft.unlink(missing_ok=True)
        try:
            self.record.files[place] = _copy(source, draft)
            draft.rename(target)
        finally:
            draft.unlink(missing_ok=True)

    def link(self, text: str, place: str) -> None:
        if not os.path.lexists(self.work / place):
            (self.work / place).symlink_to(text)
            self.record.links[place] = text


def _copy(source: Path, target: Path) -> tuple[int, int]:
    """Copy a file with its time and its x bit; return size and mtime of the copy."""
    with open_regular(source) as original:
        before = os.fstat(original.fileno())
        mode = FILE | (stat.S_IXUSR & before.st_mode)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as copy:
            try:
                fcntl.ioctl(copy.fileno(), _FICLONE, original.fileno())
            except OSError:  # the file system cannot, or they are on two
                shutil.copyfileobj(original, copy, _BLOCK_BYTES)
                copy.flush()
            os.utime(copy.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))
            after = os.fstat(copy.fileno())
    return after.st_size, after.st_mtime_ns


def _entries(work: Path, below: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Yield every file and link, sorted by path within a folder; links are not followed."""
    with os.scandir(work / below) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        place = f"{below}/{entry.name}" if below else entry.name
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(work, place)
            else:
                yield place, entry.stat(follow_symlinks=False)
        except (FileNotFoundError, PermissionError):
            continue  # the program is at work, or keeps it from us


def _written(work: Path, place: str, status: os.stat_result, record: _Record) -> WrittenFile | None:
    """Return what the program wrote at *place*; None for what is as it was staged, and what Python compiled."""
    if stat.S_ISLNK(status.st_mode):
        with suppress(OSError):
            if record.links.get(place) == str((work / place).readlink()):
                return None
    elif record.files.get(place) == (status.st_size, status.st_mtime_ns) or Path(place).parent.name == _COMPILED:
        return None
    is_new = place not in record.files and place not in record.links
    return WrittenFile(path=place, size_bytes=status.st_size, is_new=is_new)


def _read(run_dir: RunDir) -> _Record | None:
    """Return what was staged; None where nothing was, or not all of it."""
    try:
        raw = parse_json(read_whole(run_dir.staged))
        files = {str(place): (int(size), int(at_ns)) for place, (size, at_ns) in raw["files"].items()}
        links = {str(place): str(text) for place, text in raw["links"].items()}
        return _Record(files=files, links=links, folders={str(place) for place in raw["folders"]})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HpcmlError(f"{run_dir.staged} is damaged: {error!r}") from error


def _marks(path: Path) -> object:
    with suppress(OSError):
        if not path.is_dir():
            status = path.stat()
            return (status.st_size, status.st_mtime_ns, status.st_ino)
        return dict(islice(_two_deep(path), _MOST_LOOKED_AT))
    return None


def _two_deep(folder: Path) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield what shows a change of the files in *folder* and in its folders, but for what Python compiled."""
    for above, inner, names in os.walk(folder, followlinks=True):
        inner[:] = sorted(set(inner) - {_COMPILED}) if Path(above) == folder else []
        for name in sorted(names):
            with suppress(OSError):
                status = Path(above, name).stat()
                yield f"{above}/{name}", (status.st_size, status.st_mtime_ns, status.st_ino)


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return which of what runs share looks different from before."""
    return [place for place, marks in before.items() if after.get(place) != marks]
