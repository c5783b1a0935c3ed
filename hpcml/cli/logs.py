"""``hpcml logs``."""

from __future__ import annotations

import sys

import click

from hpcml.cli.main import pass_places
from hpcml.places import Places


@click.command()
@click.argument("reference", metavar="RUN")
@click.option("--err", is_flag=True, help="Standard error instead of standard output.")
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Of which process.")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the run has ended.")
@pass_places
def logs(places: Places, reference: str, *, err: bool, rank: int, following: bool) -> None:
    """Show what a run printed."""
    from hpcml.operations import consult, logs

    ((_, run_dir),) = consult.find(places, [reference])
    path = logs.log_file(run_dir, rank=rank, err=err)
    for piece in logs.follow(path, run_dir) if following else logs.read(path):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
