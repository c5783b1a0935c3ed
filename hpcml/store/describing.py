"""What run.json says of a run, as the store's columns; any format that has them will do."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hpcml.codec import flatten
from hpcml.errors import HpcmlError
from hpcml.manifest import read_raw
from hpcml.precision import Numerics
from hpcml.rundir import RunDir
from hpcml.store.homes import home_of
from hpcml.store.intake import storable

_UNPROVEN = "unproven"  # stands for the numerics of a program that may have computed in any way


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A run before anything is known of what became of it."""

    uid: str
    epoch_ms: int  # the submission: where the store counts this run's milliseconds from
    columns: Mapping[str, Any]  # of the table `run`
    params: Mapping[str, str]  # "model.name" -> JSON
    tags: Sequence[str]


def manifest_stamp(run_dir: RunDir) -> str:
    """Return what changes whenever run.json does, without reading it."""
    try:
        status = os.stat(f"{run_dir.path}/run.json")  # noqa: PTH116 - as text: for every run, before each answer
    except OSError as error:
        raise HpcmlError(f"{run_dir.manifest} cannot be read: {error.strerror}") from error
    return f"{status.st_size}-{status.st_mtime_ns}"


def describe(run_dir: RunDir) -> Description:
    """Read run.json, or raise `HpcmlError` where it is torn or says too little."""
    stamp = manifest_stamp(run_dir)  # before reading: a change in between is found the next time
    raw = read_raw(run_dir.manifest)
    try:
        run, provenance, uid = raw["run"], raw.get("provenance") or {}, str(raw["uid"])
        submitted_at = provenance.get("submitted_at")
        epoch_ms = _epoch_ms(submitted_at)
        columns = {
            "path": str(run_dir.path.absolute()),
            "manifest_stamp": stamp,
            "home": home_of(run_dir.path.absolute()),
            "experiment": str(run["experiment"]),
            "name": _text(run.get("name")),
            "spec_hash": str(raw["spec_hash"]),
            "seed": int(run["seed"]),
            "precision": str(run["precision"]["name"]),
            "planned_numerics": _expected_numerics(run, str(raw["plan"]["numerics"])),
            "planned_scheduler": str(run["cluster"]["scheduler"]),
            "submitted_at": _text(submitted_at),
            "submission": _text(provenance.get("submission")),
            "git_commit": _text(provenance.get("git_commit")),
            "git_dirty": dirty if isinstance(dirty := provenance.get("git_dirty"), bool) else None,
            "epoch_ms": epoch_ms,
        }
        columns = {key: storable(value) if isinstance(value, str) else value for key, value in columns.items()}
        tags = [storable(str(tag)) for tag in run.get("tags") or ()]
        params = {storable(key): json.dumps(value) for key, value in flatten(run).items()}
    except KeyError as error:
        raise HpcmlError(f"{run_dir.manifest} lacks {error.args[0]!r}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise HpcmlError(f"{run_dir.manifest} is no run.json of hpcml: {error}") from error
    return Description(uid=uid, epoch_ms=epoch_ms, columns=columns, params=params, tags=tags)


def _expected_numerics(run: Mapping[str, Any], planned: str) -> str:
    """Return what to believe of the numerics until the program reports them.

    A recipe emulates as planned. The user's own program may have taken no notice of the plan: where the device lacks
    the units, it then computed in another precision, and only its word could tell.
    """
    is_own_program = run["model"].get("recipe") is None
    return _UNPROVEN if is_own_program and planned == Numerics.emulated.name else planned


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _epoch_ms(submitted_at: object) -> int:
    """Return the submission's time, 0 where it is not told: any fixed number will do."""
    try:
        moment = datetime.fromisoformat(str(submitted_at))
    except ValueError:
        return 0
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
