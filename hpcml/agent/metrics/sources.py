"""Which files in a working directory hold metrics, by their names, and which of them are followed."""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePath

from hpcml.agent.metrics.event_files import EventFile
from hpcml.agent.metrics.json_files import JsonFile, JsonLines
from hpcml.agent.metrics.numbers import COLUMN
from hpcml.agent.metrics.reading import STEPS, Reader
from hpcml.agent.metrics.tables import CsvTable, stands_for_number
from hpcml.agent.metrics.wandb_log import WandbLog
from hpcml.model.metric_goal import goal_by_name
from hpcml.model.metric_sources import AUTO, MetricFiles, is_path
from hpcml.runs.files import open_inside

_DEEPEST = 8  # folders below the working directory
_MOST_ENTRIES = 5_000  # that are looked at: a program may have written a million files
_MAYBE_TABLES = (".csv", ".log", ".txt")  # Keras' CSVLogger("training.log")
_MOST_TABLES = 100  # of which the begin is looked at, the nearest first
_LOOKED_AT_BYTES = 4 << 10
_FEWEST_COLUMNS = 2
_STATE = "trainer_state.json"
_KIND_OF_NAME = {
    **dict.fromkeys(("metrics.jsonl", "log.jsonl", "train_log.jsonl"), MetricFiles.jsonl),
    "metrics.csv": MetricFiles.csv,
    _STATE: MetricFiles.trainer,
}
_ENVIRONMENTS = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages"})
_FIT = ("train", "training", "fit", "val", "valid", "validation", "test", "eval", "evaluation", "dev")
_WALL_TIME = struct.Struct("<12x1xd")  # of the first event, behind its length, a checksum and the field's tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file to follow: what it is, and which training of several it tells of."""

    kind: MetricFiles
    place: str  # its path in the working directory
    stream: str  # files of one stream tell of one training
    label: str  # stands before the names, where they would be those of another stream
    is_labelled: bool = False  # whether it always does, as for a folder "validation"


def reader_of(source: Source, root: Path, *, goes_on: bool = False) -> Reader:
    """Return what reads the file, which lies below *root*; *goes_on* as in `CsvTable`."""
    readers: Mapping[MetricFiles, Callable[[Path, Path], Reader]] = {
        MetricFiles.jsonl: partial(JsonLines, goes_on=goes_on),
        MetricFiles.csv: partial(CsvTable, goes_on=goes_on),
        MetricFiles.trainer: JsonFile,
        MetricFiles.tensorboard: EventFile,
        MetricFiles.wandb: WandbLog,
    }
    return readers[source.kind](root, root / source.place)


def sources_in(root: Path, wanted: Sequence[str], *, start: str = ".") -> list[Source]:
    """Return the files below *root* that *wanted* asks for, the best to know of a metric first.

    *wanted* is `workload.metrics_from`: kinds, ``auto`` for all kinds, and patterns for paths from *start* (a path from
    *root*: where the program starts). No link is followed. Where there are more than 5000 files and folders, the rest
    is not looked at.
    """
    places = list(_files(root))
    with_events = {PurePath(place).parent for place in places if _kind_of(place) is MetricFiles.tensorboard}
    kinds = {place: _wanted_kind(wanted, place, os.path.relpath(place, start)) for place in places}
    if AUTO in wanted:
        tables = [place for place in places if kinds[place] is None and place.endswith(_MAYBE_TABLES)][:_MOST_TABLES]
        kinds |= dict.fromkeys((place for place in tables if _is_table(root, place)), MetricFiles.csv)
    found = [_source(kind, place, with_events) for place, kind in sorted(kinds.items()) if kind is not None]
    order = list(MetricFiles)
    return sorted(found, key=lambda source: (order.index(source.kind), source.place))


def _is_table(root: Path, place: str) -> bool:
    """Tell whether a file begins with names between commas, of steps and of what gets better, and numbers below."""
    try:
        with open_inside(root, root / place) as file:
            lines = file.read(_LOOKED_AT_BYTES).decode("utf-8-sig", "replace").splitlines()[:2]
    except OSError:
        return False
    names, *rows = ([cell.strip() for cell in line.split(",")] for line in lines or [""])
    if len(names) < _FEWEST_COLUMNS or not all(map(COLUMN.fullmatch, names)):
        return False
    is_of_metrics = any(name.lower() in STEPS for name in names) and any(map(goal_by_name, names))
    return is_of_metrics and any(len(row) == len(names) and all(map(stands_for_number, row)) for row in rows)


def begun_at(source: Source, root: Path) -> float:
    """Return the unix time at which a file of TensorBoard was begun, as it says itself; 0 for other files.

    Folders of several trainings may have random names, by which a nested run would stand for the one around it.
    """
    if source.kind is not MetricFiles.tensorboard:
        return 0.0
    try:
        with (root / source.place).open("rb") as file:
            return float(_WALL_TIME.unpack(file.read(_WALL_TIME.size))[0])
    except (OSError, struct.error):
        return math.inf  # nothing is in it yet


def is_wanted_by(wanted: Sequence[str], place: str) -> bool:
    """Tell whether *wanted* asks for the file at *place*, a path from where the program starts."""
    return _wanted_kind(wanted, place, place) is not None


def _wanted_kind(wanted: Sequence[str], place: str, from_start: str) -> MetricFiles | None:
    """Return as what *wanted* has a file read, which is found by patterns *from_start*; None where it does not."""
    kind = _kind_of(place)
    if kind is not None and (AUTO in wanted or kind.name in wanted):
        return kind
    named = any(fnmatchcase(from_start, word) for word in wanted if is_path(word))
    return MetricFiles.by_ending(place) if named else None


def _kind_of(place: str) -> MetricFiles | None:
    """Return what a file is by its name alone, where that is beyond doubt; else None."""
    path = PurePath(place)
    if ".tfevents." in path.name:
        return MetricFiles.tensorboard
    if path.suffix == ".wandb":
        return MetricFiles.wandb
    return _KIND_OF_NAME.get(path.name)


def _source(kind: MetricFiles, place: str, with_events: set[PurePath]) -> Source:
    folder = PurePath(place).parent
    if kind is MetricFiles.tensorboard:  # of a folder inside of another, as add_scalars makes them, and of train/
        is_part = folder.name.lower() in _FIT or (folder.parent in with_events and folder != folder.parent)
        is_time = re.fullmatch(r"[\d.]+", folder.name) is not None  # as add_hparams makes one
        return Source(
            kind=kind, place=place, stream=str(folder), label=folder.name or "run", is_labelled=is_part and not is_time
        )
    if (
        kind is MetricFiles.trainer and PurePath(place).name == _STATE
    ):  # checkpoint-500/: each has the history of those before
        folder = folder.parent if folder.name.startswith("checkpoint-") else folder
        return Source(kind=kind, place=place, stream=str(folder), label=folder.name or "run")
    return Source(kind=kind, place=place, stream=place, label=folder.name or PurePath(place).stem)


def _files(root: Path) -> Iterator[str]:
    """Yield the regular files below *root*, by paths from there, the nearest first; links are passed over."""
    folders, looked_at = [""], 0
    while folders and looked_at < _MOST_ENTRIES:
        below: list[str] = []
        for folder in folders:
            try:
                with os.scandir(root / folder) as entries:
                    for entry in entries:
                        looked_at += 1
                        if looked_at > _MOST_ENTRIES:
                            return
                        place = f"{folder}/{entry.name}" if folder else entry.name
                        if entry.is_dir(follow_symlinks=False):
                            if entry.name not in _ENVIRONMENTS and place.count("/") < _DEEPEST:
                                below.append(place)
                        elif entry.is_file(follow_symlinks=False):
                            yield place
            except OSError:
                continue  # it is gone, or may not be read
        folders = below
