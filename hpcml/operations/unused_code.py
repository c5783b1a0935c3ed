"""Copies of code that no run needs any more: found by what all runs name, and removed if nobody wanted them lately."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import HpcmlError
from hpcml.operations import code_store
from hpcml.operations.collect import collect, opened
from hpcml.operations.consult import Selection, select
from hpcml.operations.remove import delete_tree, size_of
from hpcml.places import Places
from hpcml.rundir import RunDir, find_run_dirs

_DAY_S = 86_400.0  # a submission takes its copies before it writes its runs: whatever was wanted so lately stays
_NAME = re.compile(r"[0-9a-f]{16}")
_NAMED = re.compile(rb"/code/([0-9a-f]{16})(?![0-9a-f])")  # in whatever way HPCML_HOME was written
_ASIDE = ".unused-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A folder of `places.code`."""

    path: Path
    size_bytes: int


def find_unused(places: Places, *, without: Collection[str] = ()) -> list[Copy]:
    """Return the copies that no run but those *without*, by uid, names; nothing has happened yet."""
    with opened(places) as store:
        collect(store, places)
        elsewhere = {Path(record.path) for record in select(store, Selection())}
    run_dirs = {run_dir.path for run_dir in find_run_dirs(places.runs)} | elsewhere
    used: set[str] = set()
    for path in sorted(path for path in run_dirs if path.name not in without):
        used |= _named_in(_files_of(RunDir(path)))
    used |= _named_in([*places.submissions.glob("*/job.sh"), *places.submissions.glob("*/batch.json")])
    return [
        Copy(path=path, size_bytes=size_of(path))
        for path in sorted(places.code.glob("*"))
        if _NAME.fullmatch(path.name) and path.name not in used and not _is_wanted(path)
    ]


def remove_unused(copies: Collection[Copy]) -> Iterator[tuple[Copy, str | None]]:
    """Remove *copies*; yield each with what was in the way. One that a submission wants meanwhile stays."""
    for left in {left for copy in copies for left in copy.path.parent.glob(f"{_ASIDE}*")}:
        delete_tree(left)  # by a process that was killed
    for copy in copies:
        aside = copy.path.with_name(f"{_ASIDE}{copy.path.name}")
        try:
            copy.path.rename(aside)
        except FileNotFoundError:
            continue  # another hpcml was faster
        except OSError as error:
            yield copy, f"{copy.path}: {error.strerror}"
            continue
        if _is_wanted(aside):
            code_store.put(aside, copy.path)
            yield copy, f"{copy.path} is wanted by a submission"
        else:
            yield copy, delete_tree(aside)


def _is_wanted(copy: Path) -> bool:
    return time.time() - copy.stat().st_mtime < _DAY_S


def _files_of(run_dir: RunDir) -> list[Path]:
    """Return all that may name a copy of code: what the agent reads, the scripts, and the links."""
    links = (run_dir.code, *run_dir.client_path.glob("*"))
    return [
        run_dir.manifest,
        run_dir.script,
        *links,
        *run_dir.path.glob("retries/*.json"),
        *run_dir.path.glob("retries/*.sh"),
    ]


def _named_in(files: Collection[Path]) -> set[str]:
    found: set[str] = set()
    for path in files:
        try:
            text = bytes(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        except OSError as error:
            raise HpcmlError(f"{path} cannot be read: {error.strerror}: no copy of code is removed") from error
        found |= {name.decode() for name in _NAMED.findall(text)}
    return found
