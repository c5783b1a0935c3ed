"""The contents of run.json: the run, the plan by which the agent executes it (`hpcml.runs.plan`), and its origin.

`hpcml run` writes it before submission; the agent, retries, analyses and exports read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any, cast

from hpcml.codec import Json, decode, encode
from hpcml.errors import HpcmlError
from hpcml.model.run import Run
from hpcml.runs.files import read_raw
from hpcml.runs.layout import RunDir, home_of
from hpcml.runs.plan import Plan
from hpcml.runs.private import create_file
from hpcml.runs.run_json import IMPORTED, must_be_ours, naming, read_own

_SHORT = 2000  # characters of a text that is not kept
_MOST_KNOWN = 1000  # texts of what the runs of a submission have in common


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


class LaidOut:
    """Texts of what the runs of a submission have in common; what is in them must not change meanwhile."""

    def __init__(self) -> None:
        self.by_line: dict[str, str] = {}
        self.by_id: dict[tuple[int, str], tuple[object, str]] = {}  # with the object, so that no other one gets its id


def write_manifest(path: Path, manifest: Manifest, *, known: LaidOut | None = None) -> None:
    """Create *path*; raise `FileExistsError` where it exists, since a run.json is never overwritten.

    *known* is kept from one run of a submission to the next: what these have in common is laid out once.
    """
    text = _laid_out(manifest, LaidOut() if known is None else known)
    create_file(path, f"{text}\n")  # whole later: until then its submission is only planned


def _laid_out(value: object, known: LaidOut, *, deep: int = 2, margin: str = "") -> str:
    """Return ``json.dumps(encode(value), indent=2)``, of which the standard library takes a millisecond for a run.

    *value* is of a class. Its fields that are of one themselves are laid out likewise, in *deep* levels; what is below
    comes from *known*: by the object, which runs of a sweep share, or by what it is in one line, which the standard
    library writes in C.
    """
    inner, parts, by_id = f"{margin}  ", [], known.by_id
    for name, label in _labels(cast("Any", type(value)), inner):
        part = getattr(value, name)
        kind = type(part)
        if kind is str:
            parts.append(label + encode_basestring_ascii(part))
        elif part is None:
            parts.append(label + "null")
        elif deep > 1 and is_dataclass(part):
            parts.append(label + _laid_out(part, known, deep=deep - 1, margin=inner))
        elif kind is int:
            parts.append(f"{label}{part}")
        elif isinstance(part, str | int | float | Enum):
            parts.append(label + json.dumps(encode(part)))
        elif not part and (kind is list or kind is dict):
            parts.append(label + ("[]" if kind is list else "{}"))
        elif (found := by_id.get((id(part), inner))) is not None:
            parts.append(label + found[1])
        else:
            parts.append(label + _remembered(part, known, inner))
    return "{\n" + ",\n".join(parts) + f"\n{margin}}}"


def _remembered(value: object, known: LaidOut, margin: str) -> str:
    text = _of_texts(value, margin)
    if text is not None and len(text) < _SHORT:
        return text  # as soon made as found, and most are each run's own
    text = text or _by_line(encode(value), known).replace("\n", f"\n{margin}")
    if len(known.by_id) > _MOST_KNOWN:  # what is each run's own is of no use to the others
        known.by_id.clear()
    known.by_id[id(value), margin] = (value, text)
    return text


def _of_texts(value: object, margin: str) -> str | None:
    """Return a list of texts, or a table of them and of None, laid out; None of anything else, and of an empty one."""
    between = f",\n{margin}  "
    if type(value) is list and set(map(type, value)) == {str}:
        return f"[{between[1:]}{between.join(map(encode_basestring_ascii, value))}\n{margin}]"
    if type(value) is dict and set(map(type, value)) == {str} and set(map(type, value.values())) <= {str, type(None)}:
        lines = (
            f"{encode_basestring_ascii(name)}: {'null' if item is None else encode_basestring_ascii(item)}"
            for name, item in value.items()
        )
        return f"{{{between[1:]}{between.join(lines)}\n{margin}}}"
    return None


@cache
def _labels(kind: Any, margin: str) -> tuple[tuple[str, str], ...]:  # noqa: ANN401
    """Return the fields of a dataclass, each with what stands before its value."""
    return tuple((field.name, f'{margin}"{field.name}": ') for field in fields(kind))


def _by_line(value: Json, known: LaidOut) -> str:
    plain = json.dumps(value)
    if plain not in known.by_line:
        if len(known.by_line) > _MOST_KNOWN:
            known.by_line.clear()
        known.by_line[plain] = json.dumps(value, indent=2)  # a line break inside of a text is written \\n
    return known.by_line[plain]


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
