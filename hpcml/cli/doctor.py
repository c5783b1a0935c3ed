"""``hpcml doctor``: look at what a run needs, here and on a cluster."""

from __future__ import annotations

import os
from typing import Any

import click

from hpcml.cli.options import output_in, pass_places
from hpcml.paths import Places
from hpcml.report.render.forms import Output, document_output


@click.command()
@click.option("--cluster", default="local", metavar="NAME", help="Whose profile to check as well.")
@click.option("--config-dir", "-cd", "folder", metavar="DIR", help="Options of your own, besides ./conf.")
@click.option("--network", is_flag=True, help="Ask NVIDIA's registry for an image as well.")
@output_in("json")
@pass_places
def doctor(places: Places, *, cluster: str, folder: str | None, network: bool) -> Output[Any]:
    """Look at what a run needs, on this machine and for a cluster; exit code 1 if anything would fail."""
    from hpcml.commands.doctor import examine
    from hpcml.commands.machine import look_around
    from hpcml.report import doctor as report

    checks = list(examine(places, look_around(os.environ), cluster, folder, network=network))
    code = int(any(check.verdict == "fail" for check in checks))
    return document_output(report.checks_document(checks), code=code)
