"""Runs planned as if their words were typed in some folder."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path

from hpcml.commands.submit.backends import Machine
from hpcml.commands.submit.check import plan_all
from hpcml.commands.submit.plan import Planned
from hpcml.config.compose import compose_from_cli


def planned_for(folder: Path, *words: str) -> list[Planned]:
    """Return what `hpcml run` would submit on a machine with two cores and no GPU."""
    with chdir(folder):
        return plan_all(compose_from_cli(words, project=folder), Machine(cores=2, gpus=[]))
