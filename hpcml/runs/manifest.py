"""The contents of run.json: the run, the plan by which the agent executes it (`hpcml.runs.plan`), and its origin.

`hpcml run` writes it before submission; the agent, retries, analyses and exports read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcml.codec import decode, encode
from hpcml.errors import HpcmlError
from hpcml.model.run import Run
from hpcml.runs.files import read_raw
from hpcml.runs.layout import RunDir, home_of
from hpcml.runs.plan import Plan
from hpcml.runs.private import create_file
from hpcml.runs.run_json import IMPORTED, must_be_ours, naming, read_own


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the run comes from: who submitted it, when, where, with which command line and software versions."""

    command_line: list[str]
    submitted_at: str  # ISO 8601 with offset
    submitted_from: str  # host name
    user: str
    cwd: str
    hpcml_version: str
    python: str
    packages: dict[str, str] = field(default_factory=dict)  # distribution -> version
    git_commit: str | None = None
    git_dirty: bool | None = None
    user_config: list[str] = field(default_factory=list)  # config directories besides the shipped one
    home: str | None = None  # the folder of all that hpcml keeps; a run in another home is a copy
    submission: str | None = None  # the runs that were submitted together have the same
    submission_size: int | None = None  # how many these are
    code: str | None = None  # the folder with the snapshot of the code that runs
    overrides: list[str] | None = None  # the settings typed for this run, of a sweep one point; None: not recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of one run.json."""

    format: int
    uid: str
    spec_hash: str
    run: Run
    plan: Plan
    provenance: Provenance


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Create *path*; raise `FileExistsError` where it exists, since a run.json is never overwritten."""
    text = json.dumps(encode(manifest), indent=2)
    create_file(path, f"{text}\n")  # whole later: until then its submission is only planned


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of *path*.

    Raises `HpcmlError` where the file cannot be read or has another format, and `ConfigError` for values that are not
    valid.
    """
    return _decoded(path, read_raw(path))


def read_to_execute(path: Path) -> Manifest:
    """Return the manifest of *path*, by which something will be executed: nobody but this user could have written it.

    Raises `NotPrivateError` where another could (`hpcml.runs.private`), and else as `read_manifest`.
    """
    return _decoded(path, read_own(path))


def read_provenance(path: Path) -> Provenance | None:
    """Return where the run of *path* comes from, without a look at the rest; None: another tool ran it.

    Raises `HpcmlError` and `ConfigError` as `read_manifest` does.
    """
    raw = read_raw(path)
    if raw.get("format") == IMPORTED:
        return None
    must_be_ours(path, raw)
    with naming(path):
        provenance = decode(Provenance, raw.get("provenance"))
    assert isinstance(provenance, Provenance)
    return provenance


def home_of_original(run_dir: RunDir) -> Path | None:
    """Return the home that was copied, where the run was made in another one than it lies in, which is still there.

    None as well where run.json cannot be read.
    """
    with suppress(HpcmlError, OSError):
        origin = read_provenance(run_dir.manifest)
        if origin is not None and origin.home is not None:
            made_in = Path(origin.home)
            return None if made_in.samefile(home_of(run_dir.manifest)) else made_in
    return None


def _decoded(path: Path, raw: dict[str, Any]) -> Manifest:
    must_be_ours(path, raw)
    with naming(path):
        return decoded(raw)


def decoded(raw: Mapping[str, Any]) -> Manifest:
    """Return the manifest that *raw*, of our format, is; raise `ConfigError` for values that are not valid."""
    manifest = decode(Manifest, raw)
    assert isinstance(manifest, Manifest)
    return manifest
