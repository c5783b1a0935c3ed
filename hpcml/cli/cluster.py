"""``hpcml cluster``: list, show and make profiles of clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcml.cli.options import Command, CommandGroup, output_in
from hpcml.cli.say import say, say_written
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


@cluster.command()
@click.argument("name")
@click.option("--output", metavar="DIR", default=str(_OWN_FOLDER), help="Where the profile is written.")
@click.option(
    "--scheduler",
    type=click.Choice(["slurm", "pbs", "lsf", "flux"]),
    help="Ask nobody: write a profile of a site that has it, to fill in.",
)
def new(name: str, output: str, scheduler: str | None) -> None:
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
