"""``hpcml status``: ask the schedulers where the runs stand."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from hpcml.cli.options import form, pass_places, print_output, selecting
from hpcml.paths import Places
from hpcml.report.render.forms import document_output

if TYPE_CHECKING:
    from hpcml.commands.selection import Selection


@click.command()
@selecting
@form("json")
@pass_places
def status(places: Places, /, *, form: str | None, selection: Selection) -> int:
    """Say where runs stand: those named or selected, or all that have not ended. Schedulers are asked once a minute."""
    from hpcml.cli.terminal import say_interrupted, warn
    from hpcml.commands.status import poll_interval_s, standings
    from hpcml.commands.submit.backends import Backends
    from hpcml.report import status as report

    found, problems = standings(places, selection, Backends.here(places, os.environ), poll_interval_s(os.environ))
    for line in problems:
        warn(line)
    none, now = "no run is waiting or running" if selection.is_empty else "no runs match", time.time()
    output = document_output(report.standing_document(found, now=now), remark=None if found else none)
    code = print_output(output, form)
    say_interrupted(places)
    return code
