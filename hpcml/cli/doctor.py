"""``hpcml doctor``: look at what a run needs, here and on a cluster."""

from __future__ import annotations

import os

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form
from hpcml.cli.say import say
from hpcml.paths import Places


@click.command()
@click.option("--cluster", default="local", show_default=True, metavar="NAME", help="Whose profile to check as well.")
@click.option("--config-dir", "-cd", "folder", metavar="DIR", help="Options of your own, besides ./conf.")
@click.option("--network", is_flag=True, help="Ask NVIDIA's registry for an image as well.")
@form("json")
@pass_places
def doctor(places: Places, *, cluster: str, folder: str | None, network: bool, form: str | None) -> int:
    """Look at what a run needs, on this machine and for a cluster; exit code 1 if anything would fail."""
    from hpcml.cli.terminal import console, show
    from hpcml.commands.doctor import examine
    from hpcml.commands.machine import look_around
    from hpcml.report import doctor as report

    checks = list(examine(places, look_around(os.environ), cluster, folder, network=network))
    if form == "json":
        say(report.checks_json(checks), nl=False)
    else:
        show(report.checks_table(checks, console=console()))
    return int(any(check.verdict == "fail" for check in checks))
