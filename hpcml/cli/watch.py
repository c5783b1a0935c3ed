"""``hpcml watch``: follow the report of an experiment in a browser while its runs go."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import fields
from socket import gethostname
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from hpcml.cli.options import WholeNumber, comparing, pass_places
from hpcml.cli.say import say
from hpcml.paths import Places
from hpcml.runs.private import user_name

if TYPE_CHECKING:
    from hpcml.analysis.compare.result import ComparisonRequest

_SHORTEST_S = 0.5


@click.command()
@click.argument("experiment")
@click.option("--where", multiple=True, metavar="COND", help="Only these of its runs, as in hpcml runs.")
@click.option("--title", metavar="TEXT", help="Of the page; default: the experiment.")
@comparing
@click.option(
    "--curve",
    "curves",
    multiple=True,
    metavar="METRIC",
    help="Draw this; default: as in hpcml report; may be repeated.",
)
@click.option("--port", type=WholeNumber(0, 65535), help="Default: the first free one from 8010 on; 0: any.")
@click.option("--interval", default="30s", metavar="TIME", help="Until the page is made anew.")
@pass_places
def watch(
    places: Places,
    experiment: str,
    *,
    where: tuple[str, ...],
    title: str | None,
    request: ComparisonRequest,
    curves: tuple[str, ...],
    port: int | None,
    interval: str,
) -> None:
    """Follow the report of an experiment in a browser while its runs go: curves, GPUs, queue, the verdict so far.

    Prints a link that this machine's users alone can open who were told it, and how to open it from elsewhere. Ctrl-C
    ends it; the runs go on.
    """
    from hpcml.commands import watch as page
    from hpcml.commands.report import Wish
    from hpcml.commands.selection import Selection
    from hpcml.commands.status import poll_interval_s
    from hpcml.commands.submit.backends import Backends
    from hpcml.units import parse_interval_s

    interval_s = parse_interval_s(interval, field="--interval")
    if interval_s < _SHORTEST_S:
        raise click.UsageError(f"--interval {interval} is too short: 500ms at least")
    asked = page.Watch(
        places=places,
        selection=Selection(experiment=experiment, where=where),
        wish=Wish(title=title, comparison=request, curves=curves, command_line=_as_report(experiment, where, request)),
        backends=Backends.here(places, os.environ),
        interval_s=interval_s,
        poll_s=poll_interval_s(os.environ),
    )
    page.watch(asked, port=port, ready=_tell)
    say("ended; the runs go on", err=True)


def _as_report(experiment: str, where: Sequence[str], request: ComparisonRequest) -> list[str]:
    """Return the command that writes the same page as a file."""
    words = ["hpcml", "report", "--experiment", experiment, *(word for each in where for word in ("--where", each))]
    for each in fields(request):
        given, option = getattr(request, each.name), f"--{each.name.replace('_', '-')}"
        if given is True:
            words.append(option)
        elif given:
            words += [option, ",".join(given) if isinstance(given, tuple) else str(given)]
    return words


def _tell(link: str) -> None:
    port = urlsplit(link).port
    tunnel = ["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}", f"{user_name(os.geteuid())}@{gethostname()}"]
    say(f"from another machine, there: {shlex.join(tunnel)}", err=True)
    say("who has the link can read the page; Ctrl-C ends it, and the runs go on", err=True)
    say(link)  # last, for whoever waits for it
