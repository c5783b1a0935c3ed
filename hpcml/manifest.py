"""What run.json says: the run, how it is carried out, and where it came from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcml.codec import decode, encode
from hpcml.errors import HpcmlError
from hpcml.precision import Numerics
from hpcml.spec import Run

FORMAT = 1
IMPORTED = "imported"  # in place of the format, and of the scheduler: another tool ran it, and hpcml cannot again


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The image that a run is in, as it was at submission."""

    path: str
    sha256: str | None = None  # None: of a folder, or not built yet
    key: str | None = None  # in the cache of images; None: one of the user's own
    built_by: str | None = None  # the run that builds it, where that has to succeed before


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the agent does: everything decided, nothing left to a default on the node."""

    numerics: Numerics  # native or emulated
    device: str  # cpu | cuda
    argv: list[str]
    environment: dict[str, str | None]  # on top of the agent's own; None: must not be set
    cwd: str
    processes_per_node: int
    gpus_per_node: int
    cpus_per_task: int | None
    walltime_s: int | None  # what the scheduler is asked for
    stop_after_s: int | None  # when the agent ends the workload: before the scheduler would end both
    stop_grace_s: int
    warn_after_s: int | None = None  # when the workload is asked to leave a checkpoint; None: only if it is told so
    image: Image | None = None  # what argv starts the program in; None: the environment that hpcml itself runs in
    env_prefixes: list[str] = field(default_factory=list)  # before the names of variables that are for inside
    passed_on: list[str] = field(default_factory=list)  # which of the agent's own variables go inside: SLURM_*
    runtime_environment: dict[str, str] = field(default_factory=dict)  # of what starts the image
    needs_login: bool = False  # of a registry: of all jobs, only one that builds an image may find it


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Who asked for the run, where, with which words and which software."""

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
    submission: str | None = None  # the runs that were submitted together have the same
    submission_size: int | None = None  # how many these are
    code: str | None = None  # the folder with the snapshot of the code that runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One run.json."""

    format: int
    uid: str
    spec_hash: str
    run: Run
    plan: Plan
    provenance: Provenance


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Create *path*; a run.json is never overwritten."""
    with path.open("x", encoding="utf-8") as file:
        json.dump(encode(manifest), file, indent=2)
        file.write("\n")


def read_manifest(path: Path) -> Manifest:
    """Return the manifest, or raise `HpcmlError` where the file is torn, foreign or newer."""
    raw = read_raw(path)
    if raw.get("format") != FORMAT:
        raise HpcmlError(f"{path} has format {raw.get('format')!r}; this hpcml reads format {FORMAT}")
    manifest = decode(Manifest, raw)
    assert isinstance(manifest, Manifest)
    return manifest


def read_raw(path: Path) -> dict[str, Any]:
    """Return run.json as plain values, which also older and newer formats are good for."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HpcmlError(f"{path} cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise HpcmlError(f"{path} is no run.json")
    return raw
