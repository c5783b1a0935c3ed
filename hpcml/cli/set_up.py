"""Commands that set up a site or a project: cluster, doctor, recipes, new."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from hpcml.cli.options import AnyNumber, Command, CommandGroup, output_in, pass_places
from hpcml.cli.say import say, say_written
from hpcml.paths import Places
from hpcml.report.render.forms import Output, document_output

_OWN_FOLDER = Path("conf/cluster")


@click.group(cls=CommandGroup)
def cluster() -> None:
    """List and show the profiles of clusters, and make one for this machine's scheduler."""


def _config_dirs(command: Command) -> Command:
    option = click.option(
        "--config-dir", "-cd", "folders", multiple=True, metavar="DIR", help="Options of your own, besides ./conf."
    )
    return option(command)


@cluster.command("list")
@_config_dirs
@output_in("json")
def list_clusters(folders: tuple[str, ...]) -> Output[Any]:
    """List the clusters that hpcml knows, with ./conf/cluster/."""
    from hpcml.config import profiles
    from hpcml.report import clusters as report

    found = profiles.list_profiles(Path.cwd(), [Path(folder) for folder in folders])
    listed = [(profile.cluster, profile.resources, profile.path) for profile in found]
    return document_output(report.clusters_document(listed))


@cluster.command()
@click.argument("name")
@_config_dirs
@output_in("json")
def show(name: str, folders: tuple[str, ...]) -> Output[Any]:
    """Show everything that is known of one cluster, where it is from, and how to use it."""
    from hpcml.config import profiles
    from hpcml.report import clusters as report

    found = profiles.get_profile(name, Path.cwd(), [Path(folder) for folder in folders])
    return document_output(report.cluster_document(found.cluster, found.resources, found.path))


@cluster.command("new")
@click.argument("name")
@click.option("--output", metavar="DIR", default=str(_OWN_FOLDER), help="Where the profile is written.")
@click.option(
    "--scheduler",
    type=click.Choice(["slurm", "pbs", "lsf", "flux"]),
    help="Ask nobody: write a profile of a site that has it, to fill in.",
)
def new_profile(name: str, output: str, scheduler: str | None) -> None:
    """Make a profile by asking the scheduler of this machine (a login node); nothing is overwritten."""
    if scheduler is not None:
        from hpcml.commands.new import new_cluster
        from hpcml.model.cluster import SchedulerName

        made = new_cluster(name, SchedulerName[scheduler], Path(output))
        say_written(made.files, then=made.then)
        return
    from datetime import UTC, datetime

    from hpcml.config import profiles
    from hpcml.schedulers import discover

    profiles.check_name(name)
    found = discover.ask_scheduler(name, today=datetime.now(tz=UTC).date())
    path = profiles.write_profile(found.cluster, found.resources, Path(output), head=found.summary)
    say(f"wrote {path}; check it, and fill in what no scheduler tells:")
    for key in profiles.to_fill_in(found.cluster):
        say(f"  cluster.{key}")
    say("  resources.mem, if the site gives little memory to a job that asks for none")
    where = "" if Path(output) == _OWN_FOLDER else f" -cd {Path(output).parent}"
    say(f"then: hpcml run{where} +cluster={name} --dry-run")


@click.command()
@click.option("--cluster", default="local", metavar="NAME", help="Whose profile to check as well.")
@click.option("--config-dir", "-cd", "folder", metavar="DIR", help="Options of your own, besides ./conf.")
@click.option("--network", is_flag=True, help="Ask NVIDIA's registry for an image as well.")
@output_in("json")
@pass_places
def doctor(places: Places, *, cluster: str, folder: str | None, network: bool) -> Output[Any]:
    """Look at what a run needs, on this machine and for a cluster; exit code 1 if anything would fail."""
    from hpcml.commands.doctor import examine
    from hpcml.commands.submit.backends import look_around
    from hpcml.report import doctor as report

    checks = list(examine(places, look_around(os.environ), cluster, folder, network=network))
    code = int(any(check.verdict == "fail" for check in checks))
    return document_output(report.checks_document(checks), code=code)


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--matrix", is_flag=True, help="What becomes of each precision: native, emulated, or refused and why.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="DEVICE",
    help="Of the matrix: cpu, a compute capability (8.0), or a GPU (v100); may be repeated.",
)
@click.option(
    "--gpus",
    "are_gpus",
    is_flag=True,
    help="What GPUs can do at most, in each precision; NAME is a part of a name, or what NVML calls a device.",
)
@output_in("json", "csv", "md")
def recipes(names: tuple[str, ...], *, matrix: bool, devices: tuple[str, ...], are_gpus: bool) -> Output[Any]:
    """List the recipes, those in ./recipes too; with NAME: its options, their defaults and what it can do."""
    from hpcml.commands.recipes import list_recipes, outcomes
    from hpcml.model.hardware import choose_gpus
    from hpcml.report import gpus
    from hpcml.report import recipes as report

    if devices and not matrix:
        raise click.UsageError("--device is about the matrix: add --matrix")
    if are_gpus and matrix:
        raise click.UsageError("--gpus and --matrix exclude each other: give one")
    if are_gpus:
        return document_output(gpus.gpus_document(choose_gpus(names), has_instances=bool(names)))
    if len(names) > 1:
        raise click.UsageError("name one recipe: hpcml recipes lists them")
    listed = list_recipes(Path.cwd(), names[0] if names else None)
    if matrix:
        return document_output(report.matrix_document(outcomes(listed, devices)))
    return document_output(report.recipe_document(listed[0]) if names else report.recipes_document(listed))


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
