"""``hpcml gpus``: show what GPUs can do at most, in each precision."""

from __future__ import annotations

import click

from hpcml.cli.options import form
from hpcml.cli.say import say


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@form("json", "csv", "md")
def gpus(names: tuple[str, ...], form: str | None) -> None:
    """Show what GPUs can do at most, in each precision; NAME is a part of a name, or what NVML calls a device."""
    from hpcml.cli.terminal import console, show
    from hpcml.model.hardware import choose_gpus
    from hpcml.report import gpus as report

    models = choose_gpus(names)
    if form == "json":
        say(report.gpus_json(models), nl=False)
    elif form == "csv":
        say(report.gpus_csv(models), nl=False)
    elif form == "md":
        say(report.gpus_markdown(models), nl=False)
    else:
        show(report.gpus_table(models, console=console()))
        say(report.FOOTNOTE, err=True)
        if names:
            for line in report.mig_lines(models):
                say(line)
