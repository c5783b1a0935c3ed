"""``hpcml gpus``."""

from __future__ import annotations

import click

from hpcml.cli.options import form


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@form("json", "csv", "md")
def gpus(names: tuple[str, ...], form: str | None) -> None:
    """Show what GPUs can do at most, in each precision; NAME is a part of a name, or what NVML calls a device."""
    from hpcml.cli.terminal import console, show
    from hpcml.hardware import choose_gpus
    from hpcml.report import gpus_table as report

    models = choose_gpus(names)
    if form == "json":
        click.echo(report.gpus_json(models), nl=False)
    elif form == "csv":
        click.echo(report.gpus_csv(models), nl=False)
    elif form == "md":
        click.echo(report.gpus_markdown(models), nl=False)
    else:
        show(report.gpus_table(models, console=console()))
        click.echo(report.FOOTNOTE, err=True)
