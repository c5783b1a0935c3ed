"""What a run's program wrote into its working directory, for ``hpcml files``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.commands.selection import find
from hpcml.errors import ConfigError, HpcmlError
from hpcml.model.records import RunRecord
from hpcml.paths import Places
from hpcml.runs.layout import RunDir
from hpcml.runs.run_json import IMPORTED
from hpcml.runs.working_directory import WrittenFile, written_files


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """The working directory of a run and what its program wrote there, in all attempts so far, sorted by path."""

    work: Path
    files: Sequence[WrittenFile]


def files_of(places: Places, reference: str) -> RunFiles:
    """Return what the run that *reference* means has written; of one that goes on, up to now.

    Raises `StoreError` where it means none or several runs, `ConfigError` where the run has no working directory of its
    own (yet), and `HpcmlError` where that cannot be read.
    """
    ((record, run_dir),) = find(places, [reference])
    if not run_dir.staged.exists():
        why = _why_none(record, run_dir)
        raise ConfigError(f"run {record.uid} has no working directory of its own: {why}")
    try:
        return RunFiles(work=run_dir.work, files=written_files(run_dir))
    except OSError as error:
        raise HpcmlError(f"{error.filename} cannot be read: {error.strerror}") from error


def _why_none(record: RunRecord, run_dir: RunDir) -> str:
    if record.scheduler == IMPORTED:
        return f"it was imported; its files lie in {run_dir.path} where hpcml import --artifacts copied them"
    return "a recipe and schedule.snapshot=none have none" if record.state.is_final else "it has not started"
