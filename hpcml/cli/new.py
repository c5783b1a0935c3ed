"""``hpcml new``: set up a project, or make a recipe or a study of your own, ready to run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcml.cli.options import AnyNumber, CommandGroup
from hpcml.cli.say import say

if TYPE_CHECKING:
    from hpcml.commands.new import Scaffold


@click.group(cls=CommandGroup)
def new() -> None:
    """Make something of your own in this folder, ready to run; nothing is overwritten."""


@new.command()
@click.option("--name", metavar="NAME", help="What the experiment is called; default: this folder's name.")
@click.option("--metric", metavar="NAME", help="The metric that runs are judged by; default: val_accuracy.")
@click.option("--goal", type=click.Choice(["max", "min"]), help="Which way is better; default: max, of a loss min.")
@click.option(
    "--margin", type=AnyNumber(), help="The largest difference of it that does not matter; may be said later."
)
@click.option("--cluster", metavar="NAME", help="Where runs go; default: local, which is this machine.")
@click.option("--account", metavar="NAME", help="Who pays on that cluster.")
def project(
    name: str | None,
    metric: str | None,
    goal: str | None,
    margin: float | None,
    cluster: str | None,
    account: str | None,
) -> None:
    """Write hpcml.yaml and conf/study/NAME.yaml, with comments, for runs of a program of your own in this folder.

    On a terminal, what no option says is asked; else the defaults are taken. Nothing is overwritten.
    """
    from hpcml.cli.terminal import ask
    from hpcml.commands import new as scaffold
    from hpcml.model.choices import Goal

    here = Path.cwd()

    def answer(given: str | None, question: str, default: str) -> str:
        return given or ask(f"{question} [{default}]") or default

    scaffold.refuse_second(here)
    name = answer(name, "Name of the experiment", _name_of(here))
    metric = answer(metric, "Metric that runs are judged by", "val_accuracy")
    goal = answer(goal, "Which way is better, max or min", "min" if "loss" in metric else "max")
    if goal not in Goal.__members__:
        raise click.UsageError(f"--goal: {goal!r} is neither max nor min")
    if margin is None and (said := ask("Largest difference of it that does not matter [said later]")):
        margin = _number(said)
    cluster = answer(cluster, "Cluster (hpcml cluster list shows them; local is this machine)", "local")
    if account is None and scaffold.charges_account(cluster, here):
        account = ask(f"Account to charge on {cluster} [asked at the first run]")
    answers = scaffold.ProjectAnswers(
        name=name, metric=metric, goal=Goal[goal], margin=margin, cluster=cluster, account=account
    )
    tell_made(scaffold.new_project(answers, here))


@new.command()
@click.argument("name")
def recipe(name: str) -> None:
    """Make a recipe in ./recipes/NAME, and the model that chooses it: a short training in torch with comments."""
    from hpcml.commands import new as scaffold

    tell_made(scaffold.new_recipe(name, Path.cwd()))


@new.command()
@click.argument("name")
def study(name: str) -> None:
    """Make a study in ./conf/study/NAME.yaml: a sweep that +experiment=NAME starts."""
    from hpcml.commands import new as scaffold

    tell_made(scaffold.new_study(name, Path.cwd()))


def tell_made(made: Scaffold) -> None:
    """Say which files were written, and what to type next."""
    for path in made.files:
        say(f"wrote {os.path.relpath(path)}")
    say(f"then: {made.then}")


def _number(said: str) -> float:
    try:
        return float(said)
    except ValueError:
        raise click.UsageError(f"--margin: {said!r} is no number: write it as in 0.01") from None


def _name_of(folder: Path) -> str:
    """Return the folder's name as a word for Hydra."""
    word = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.name).strip("-")[:64]
    return word if re.match(r"[A-Za-z]", word) else "mine"
