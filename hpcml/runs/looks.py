"""The files of planned looks, and of looks that nobody planned: HOME/looks/EXPERIMENT/.

`plan.json` and `points.json` are written before the first run, `N.round` before the runs of look N are submitted,
`N.submitted` once they are, `N.json` once look N was taken, and ``seen-DIGEST.json`` by each comparison outside of a
plan. Each appears whole, once, and is never changed: whoever finds a file goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcml.codec import decode, encode
from hpcml.errors import ConfigError, HpcmlError
from hpcml.model.looks import Glance, Look, LookPlan, PlannedStudy
from hpcml.runs.atomic import create_text, sync
from hpcml.runs.files import parse_json
from hpcml.runs.private import make_folder, open_file, read

_FORMAT = 1
FOLDER_OF_LOOKS = "looks"


@dataclass(frozen=True, slots=True)
class LookFiles:
    """The files of one experiment, in *folder*; they need not exist."""

    folder: Path

    @property
    def plan(self) -> Path:
        """The `LookPlan`; once it is there the experiment is planned."""
        return self.folder / "plan.json"

    @property
    def points(self) -> Path:
        """The manifests of all runs, also of those that may never be submitted, and what their code was."""
        return self.folder / "points.json"

    def diff(self, digest: str) -> Path:
        """The uncommitted changes of the code of the runs."""
        return self.folder / f"{digest}.diff"

    def round(self, number: int) -> Path:
        """Exists from before the runs of look *number* are submitted; says their submission."""
        return self.folder / f"{number}.round"

    def submitted(self, number: int) -> Path:
        """Exists once the runs of look *number* are submitted."""
        return self.folder / f"{number}.submitted"

    def look(self, number: int) -> Path:
        """What was seen at look *number*."""
        return self.folder / f"{number}.json"

    @property
    def is_planned(self) -> bool:
        """Whether there is a plan."""
        return self.plan.is_file()


def files_of(home: Path, experiment: str) -> LookFiles:
    """Return the files of *experiment* in the home *home*."""
    return LookFiles(home / FOLDER_OF_LOOKS / experiment)


def create(path: Path, value: object) -> None:
    """Create *path* with *value* as JSON, on the disk; raise `FileExistsError` where it exists."""
    make_folder(path.parent, parents=True)
    create_text(path, json.dumps({"format": _FORMAT, "is": encode(value)}), durable=True)
    sync(path.parent)


def create_bytes(path: Path, content: bytes) -> None:
    """Write *content* to *path*."""
    make_folder(path.parent, parents=True)
    with open_file(path, "wb") as file:
        file.write(content)


def read_study(files: LookFiles, *, top: Path) -> PlannedStudy:
    """Return the plan and its looks; *top* is the home, which nobody else may write to where something is executed.

    Raises `HpcmlError` where a file cannot be read.
    """
    plan: LookPlan = decode(LookPlan, read_json(files.plan, top=top))
    looks: list[Look] = []
    for number in range(1, len(plan.sizes) + 1):
        if not files.look(number).exists():
            break
        looks.append(decode(Look, read_json(files.look(number), top=top)))
    return PlannedStudy(plan=plan, looks=tuple(looks))


def read_json(path: Path, *, top: Path) -> Any:  # noqa: ANN401 - JSON
    """Return what `create` put into *path*; raise `HpcmlError` where it cannot be read or is of another format."""
    try:
        raw = parse_json(read(path, top=top))
    except (OSError, ValueError) as error:
        raise HpcmlError(f"{path} cannot be read: {error}") from error
    if not isinstance(raw, dict) or raw.get("format") != _FORMAT:
        raise HpcmlError(f"{path} is not of format {_FORMAT}, which this hpcml reads")
    return raw["is"]


def glances(home: Path, experiment: str) -> Iterator[Glance]:
    """Yield the looks at runs of *experiment* that nobody planned, in any order; a damaged file is no look."""
    for path in files_of(home, experiment).folder.glob("seen-*.json"):
        try:
            yield decode(Glance, read_json(path, top=home))
        except (HpcmlError, ConfigError) as error:
            raise HpcmlError(f"{path} is damaged ({error}): remove it") from error


def remember(home: Path, experiment: str, digest: str, glance: Glance) -> None:
    """Write *glance* down, unless the same look was written down before."""
    path = files_of(home, experiment).folder / f"seen-{digest}.json"
    if not path.exists():
        make_folder(path.parent, parents=True)
        with suppress(FileExistsError):  # by another comparison, at this moment
            create_text(path, json.dumps({"format": _FORMAT, "is": encode(glance)}))
