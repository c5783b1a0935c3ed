"""``hpcml diff``: show in what two runs differ."""

from __future__ import annotations

from typing import Any

import click

from hpcml.cli.options import output_in, pass_places
from hpcml.paths import Places
from hpcml.report.render.forms import Output, document_output


@click.command()
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
@click.option("--all", "everything", is_flag=True, help="Also what is alike.")
@output_in("json", "csv", "md")
@pass_places
def diff(places: Places, /, first: str, second: str, *, everything: bool) -> Output[Any]:
    """Show in what two runs differ: settings, environment and outcome."""
    from hpcml.commands.diff import diff_runs
    from hpcml.report import diff as report

    found = diff_runs(places, first, second, everything=everything)
    return document_output(report.differences_document(found), lines=[report.remark(found)])
