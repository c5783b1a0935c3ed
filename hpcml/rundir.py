"""One run directory: the name of every file in it, and nothing about what the files say."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

_UID_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"  # no 0/o, 1/i/l: these are read aloud and typed; in sorting order
_ORDER_DIGITS = 3  # 29,791 runs of one submission keep their order
_CHANCE_DIGITS = 5
REMOVED = ".removed-"  # before the name of a run that is being removed
_BY_USER = re.compile(r"-user(-\d+)?\.jsonl$")


def new_uid(now: datetime, index: int) -> str:
    """Return an id that sorts by time and then by *index* within a submission, and is unique among all submitters."""
    order = ""
    for _ in range(_ORDER_DIGITS):
        index, digit = divmod(index, len(_UID_ALPHABET))
        order = _UID_ALPHABET[digit] + order
    return f"{now:%Y%m%d-%H%M%S}-{order}{_chance()}"


def new_submission_id(now: datetime) -> str:
    """Return an id for runs that are submitted together: shorter than any of theirs, and as unique."""
    return f"{now:%Y%m%d-%H%M%S}-{_chance()}"


def _chance() -> str:
    return "".join(secrets.choice(_UID_ALPHABET) for _ in range(_CHANCE_DIGITS))


@dataclass(frozen=True, slots=True)
class RunDir:
    """The files of the run in *path*, which is ``<root>/<experiment>/<uid>``."""

    path: Path

    @property
    def uid(self) -> str:
        """The run's id."""
        return self.path.name

    @property
    def manifest(self) -> Path:
        """The whole specification and where it came from; written once, before submission."""
        return self.path / "run.json"

    @property
    def git_diff(self) -> Path:
        """What the working tree had that its commit had not."""
        return self.path / "git.diff"

    @property
    def script(self) -> Path:
        """What starts the agent; may be run again by hand."""
        return self.path / "job.sh"

    @property
    def code(self) -> Path:
        """A link to the snapshot of the user's code that runs; absent where none was taken."""
        return self.path / "code"

    def retry_manifest(self, number: int) -> Path:
        """What the agent reads instead of run.json when the run is tried again with other resources; from 1."""
        return self.path / "retries" / f"{number}.json"

    def retry_script(self, number: int) -> Path:
        """What starts the agent for that retry."""
        return self.path / "retries" / f"{number}.sh"

    @property
    def journals(self) -> Path:
        """The folder of the journals, one file for each writer."""
        return self.path / "journal"

    @property
    def telemetry(self) -> Path:
        """The folder of what each node's sampler has measured: journals too, but not of what the run said."""
        return self.path / "telemetry"

    @property
    def client_path(self) -> Path:
        """The folder on the workload's PYTHONPATH; it holds `hpcml_client` and nothing else."""
        return self.path / "pythonpath"

    @property
    def checkpoints(self) -> Path:
        """Where the workload may leave what it needs to go on."""
        return self.path / "checkpoints"

    @property
    def cancel_mark(self) -> Path:
        """Exists once somebody wanted this run to stop."""
        return self.path / "cancel"

    @property
    def logs(self) -> Path:
        """The folder of everything that was printed."""
        return self.path / "logs"

    def stdout(self, attempt: int, rank: int) -> Path:
        """What rank *rank* printed in attempt *attempt*."""
        return self.logs / f"{attempt}-rank{rank}.out"

    def stderr(self, attempt: int, rank: int) -> Path:
        """What rank *rank* printed to standard error."""
        return self.logs / f"{attempt}-rank{rank}.err"

    def agent_log(self, attempt: int, node: int = 0) -> Path:
        """What the agent of a node itself had to say: empty unless something is odd."""
        return self.logs / f"{attempt}-agent{node or ''}.log"

    @property
    def being_removed(self) -> Path:
        """Where the run lies while it is removed: under no name of a run, and in the same file system."""
        return self.path.with_name(f"{REMOVED}{self.path.name}")

    def journal_files(self) -> list[Path]:
        """All journals present, in the order of their names, which begin with the attempt."""
        return sorted(self.journals.glob("*.jsonl"))


def run_dir_of(manifest: Path) -> RunDir:
    """Return the run that a run.json, or the manifest of one of its retries, belongs to."""
    return RunDir(manifest.parent.parent if manifest.parent.name == "retries" else manifest.parent)


def is_by_user(journal: Path) -> bool:
    """Tell by its name whether a journal holds what people say of the run, and nothing of how it goes."""
    return _BY_USER.search(journal.name) is not None


def find_run_dirs(root: Path, *, depth: int = 2) -> Iterator[RunDir]:
    """Yield every run at most so deep below *root*, oldest first within an experiment; *root* itself may be one.

    Names that begin with a dot are passed over, and so is a run that is being removed.
    """
    for path in _with_manifest(str(root), depth):
        yield RunDir(Path(path))


def _with_manifest(folder: str, depth: int) -> Iterator[str]:
    # as text, not as paths: this is done for a thousand runs before each answer
    if os.path.isfile(f"{folder}/run.json"):  # noqa: PTH113
        yield folder
    elif depth > 0:
        try:
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
        except OSError:
            return  # gone, or not for us to see
        for name in names:
            yield from _with_manifest(f"{folder}/{name}", depth - 1)
