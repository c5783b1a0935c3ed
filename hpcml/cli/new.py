"""``hpcml new``: set up a project, or make a recipe or a study of your own, ready to run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from hpcml.cli.options import AnyNumber, CommandGroup
from hpcml.cli.say import say_written


@click.group(cls=CommandGroup)
def new() -> None:
    """Make something of your own in this folder, ready to run; nothing is overwritten."""


@new.command()
@click.option("--name", metavar="NAME", help="What the experiment is called; default: this folder's name.")
@click.option("--metric", metavar="NAME", default="val_accuracy", help="The metric that runs are judged by.")
@click.option("--goal", type=click.Choice(["max", "min"]), help="Which way is better; default: max, of a loss min.")
@click.option(
    "--margin", type=AnyNumber(), help="The largest difference of it that does not matter; may be said later."
)
@click.option("--cluster", metavar="NAME", default="local", help="Where runs go; local is this machine.")
@click.option("--account", metavar="NAME", help="Who pays on that cluster.")
def project(name: str | None, metric: str, goal: str | None, **answers: Any) -> None:  # noqa: ANN401 - click's own types
    """Write hpcml.yaml and conf/study/NAME.yaml, with comments, for runs of a program of your own in this folder."""
    from hpcml.commands import new as scaffold
    from hpcml.model.choices import Goal

    here = Path.cwd()
    goal = goal or ("min" if "loss" in metric else "max")
    asked = scaffold.ProjectAnswers(name=name or _name_of(here), metric=metric, goal=Goal[goal], **answers)
    made = scaffold.new_project(asked, here)
    say_written(made.files, then=made.then)


@new.command()
@click.argument("name")
def recipe(name: str) -> None:
    """Make a recipe in ./recipes/NAME, and the model that chooses it: a short training in torch with comments."""
    from hpcml.commands import new as scaffold

    made = scaffold.new_recipe(name, Path.cwd())
    say_written(made.files, then=made.then)


@new.command()
@click.argument("name")
def study(name: str) -> None:
    """Make a study in ./conf/study/NAME.yaml: a sweep that +experiment=NAME starts."""
    from hpcml.commands import new as scaffold

    made = scaffold.new_study(name, Path.cwd())
    say_written(made.files, then=made.then)


def _name_of(folder: Path) -> str:
    """Return the folder's name as a word for Hydra."""
    word = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.name).strip("-")[:64]
    return word if re.match(r"[A-Za-z]", word) else "mine"
