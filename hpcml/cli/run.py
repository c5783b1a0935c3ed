"""``hpcml run``: Hydra's command line, and what hpcml adds to it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from hpcml.cli.main import pass_places
from hpcml.places import Places

# Taken out word by word and not by click, which would read the n of Hydra's -cn as our --dry-run.
_OWN_FLAGS = {
    "-n": "dry-run",
    "--dry-run": "dry-run",
    "--dryrun": "dry-run",
    "--detach": "detach",
    "--json": "json",
}


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@pass_places
def run(places: Places, words: tuple[str, ...]) -> int:
    """Compose a configuration with Hydra's command line, check it, and run it or submit it."""
    from hpcml.config.compose import compose_from_cli
    from hpcml.operations import launch
    from hpcml.report import plan_text

    flags = {_OWN_FLAGS[word] for word in words if word in _OWN_FLAGS}
    points = compose_from_cli([word for word in words if word not in _OWN_FLAGS], project=Path.cwd())
    if not points:
        return 0  # Hydra has printed what was asked for
    machine = launch.look_around(os.environ)
    planned = launch.plan_all(points, machine)
    if "dry-run" in flags:
        click.echo(plan_text.to_text([(item.run, item.plan, item.overrides) for item in planned]), nl=False)
        return 0
    from hpcml.cli import progress
    from hpcml.operations.collect import opened

    with opened(places):  # a store that cannot be used is said before hours of computing, not after
        pass
    launched = launch.launch(planned, places, machine, [Path(sys.argv[0]).name, *sys.argv[1:]])
    if "json" in flags:
        click.echo(json.dumps([launch.describe(item) for item in launched], indent=2))
    if "detach" in flags or "json" in flags:
        if "json" not in flags:
            for item in launched:
                click.echo(f"{item.run_dir.uid}  job {item.ticket.job_id}  {item.run_dir.path}")
        return 0
    return progress.follow_to_the_end(launched, places)
