"""Runs planned as if their words were typed in some folder."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path

from hpcml.config.compose import compose_from_cli
from hpcml.operations.machine import Machine
from hpcml.operations.plan import Planned, plan_all


def planned_for(folder: Path, *words: str) -> list[Planned]:
    """Return what `hpcml run` would submit on a machine with two cores and no GPU."""
    with chdir(folder):
        return plan_all(compose_from_cli(words, project=folder), Machine(cores=2, gpus=[]))
