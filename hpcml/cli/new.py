"""``hpcml new``: make a recipe, a cluster's profile or an experiment of your own, ready to run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcml.cli.options import CommandGroup
from hpcml.cli.say import say

if TYPE_CHECKING:
    from hpcml.commands.new import Scaffold


@click.group(cls=CommandGroup)
def new() -> None:
    """Make something of your own in this folder, ready to run; nothing is overwritten."""


@new.command()
@click.argument("name")
def recipe(name: str) -> None:
    """Make a recipe in ./recipes/NAME, and the model that chooses it: a short training in torch with comments."""
    from hpcml.commands import new as scaffold

    _tell(scaffold.new_recipe(name, Path.cwd()))


@new.command()
@click.argument("name")
def experiment(name: str) -> None:
    """Make a study in ./conf/study/NAME.yaml: a sweep that +experiment=NAME starts."""
    from hpcml.commands import new as scaffold

    _tell(scaffold.new_study(name, Path.cwd()))


@new.command()
@click.argument("name")
@click.option(
    "--scheduler",
    type=click.Choice(["slurm", "pbs", "lsf", "flux"]),
    default="slurm",
    show_default=True,
    help="What the site has.",
)
def cluster(name: str, scheduler: str) -> None:
    """Make a profile in ./conf/cluster/NAME.yaml to fill in; on a login node `hpcml cluster new` asks the scheduler."""
    from hpcml.commands import new as scaffold
    from hpcml.model.cluster import SchedulerName

    _tell(scaffold.new_cluster(name, SchedulerName[scheduler], Path.cwd()))


def _tell(made: Scaffold) -> None:
    for path in made.files:
        say(f"wrote {os.path.relpath(path)}")
    say(f"then: {made.then}")
