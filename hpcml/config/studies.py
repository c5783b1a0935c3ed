"""What to type once a study has ended: the commands that the first lines of its file name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from hpcml.config.compose import Composed
from hpcml.resources import resource_dir

_COMMAND = re.compile(r"#\s+(hpcml (?!run ).*?)(?:\s{2}.*)?")  # what follows two spaces explains it
_EXPERIMENT = re.compile(r"--experiment \S+")


def what_then(points: Sequence[Composed]) -> list[str]:
    """Return the commands for the runs of *points*, of whatever experiment they are; none where there is no study."""
    found = [command for point in points for command in _commands(point)]
    return list(dict.fromkeys(found))


def _commands(point: Composed) -> list[str]:
    chosen = [word.removeprefix("study=") for word in point.overrides if word.startswith("study=")]
    folders = [resource_dir("conf"), *map(Path, point.user_config)]  # in Hydra's order
    files = [folder / "study" / f"{name}.yaml" for name in chosen for folder in folders]
    text = next((file.read_text(encoding="utf-8") for file in files if file.is_file()), "")
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    commands = [match[1] for line in head if (match := _COMMAND.fullmatch(line))]
    experiment = f"--experiment {shlex.quote(point.run.experiment)}"
    return [_EXPERIMENT.sub(lambda _: experiment, command) for command in commands]
