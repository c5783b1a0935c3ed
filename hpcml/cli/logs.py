"""``hpcml logs``."""

from __future__ import annotations

import os
import sys

import click

from hpcml.cli.main import pass_places
from hpcml.places import Places


@click.command()
@click.argument("reference", metavar="RUN")
@click.option("--err", is_flag=True, help="Standard error instead of standard output.")
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Of which process.")
@click.option("--attempt", type=click.IntRange(min=0), metavar="A", help="Of which attempt; the last unless given.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last so many lines.")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the run has ended, over all attempts.")
@pass_places
def logs(
    places: Places,
    reference: str,
    *,
    err: bool,
    rank: int,
    attempt: int | None,
    lines: int | None,
    following: bool,
) -> None:
    """Show what a run printed; of one that never got so far, what its scheduler wrote."""
    from hpcml.operations import consult, logs

    wanted = logs.Wanted(rank=rank, err=err, attempt=attempt, lines=lines)
    ((record, run_dir),) = consult.find(places, [reference])
    is_shown = has_printed = False
    if following:
        pieces = logs.follow(
            run_dir,
            wanted,
            note=lambda text: click.echo(f"hpcml: {text}", err=True),
            refresh=lambda: _refresh(places),
        )
    else:
        path = logs.find_log(run_dir, wanted)
        pieces = iter(()) if path is None else logs.read(path, lines=lines)
        is_shown = path is not None
    for piece in pieces:
        is_shown = has_printed = True
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    if not has_printed and not err and logs.has_other_stream(run_dir, wanted):
        click.echo("hpcml: it printed nothing there: hpcml logs --err shows its standard error", err=True)
    if is_shown or (following and logs.find_log(run_dir, wanted)):
        return
    others = logs.schedulers_logs(record, places) if attempt is None and not any(run_dir.logs.glob("*-rank*")) else []
    if not others:
        raise logs.no_log(run_dir, wanted)
    click.echo(
        f"hpcml: {run_dir.uid} has printed nothing itself; this is what its scheduler and agent wrote:", err=True
    )
    for path in others:
        click.echo(f"==> {path} <==", err=True)
        for piece in logs.read(path, lines=lines):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def _refresh(places: Places) -> None:
    from hpcml.operations.backends import Backends
    from hpcml.operations.machine import look_around
    from hpcml.operations.standing import poll_interval_s, standings

    backends = Backends(places=places, machine=look_around(os.environ))
    standings(places, (), backends, poll_interval_s(os.environ))
