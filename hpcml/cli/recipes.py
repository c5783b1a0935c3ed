"""``hpcml recipes``: list the recipes, and what each device supports of them."""

from __future__ import annotations

from pathlib import Path

import click

from hpcml.cli.options import form
from hpcml.cli.say import say


@click.command()
@click.argument("name", required=False)
@click.option("--matrix", is_flag=True, help="What becomes of each precision: native, emulated, or refused and why.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="DEVICE",
    help="Of the matrix: cpu, a compute capability (8.0), or a GPU (v100); may be repeated.",
)
@form("json", "csv", "md")
def recipes(name: str | None, matrix: bool, devices: tuple[str, ...], form: str | None) -> None:  # noqa: FBT001
    """List the recipes, those in ./recipes too; with NAME: its options, their defaults and what it can do."""
    from hpcml.cli.terminal import console, show
    from hpcml.commands import recipes as asked
    from hpcml.report import recipes as report

    if devices and not matrix:
        raise click.UsageError("--device is about the matrix: add --matrix")
    listed = asked.list_recipes(Path.cwd(), name)
    if matrix:
        found = asked.outcomes(listed, devices)
        forms = {"json": report.matrix_json, "csv": report.matrix_csv, "md": report.matrix_markdown}
        if form is None:
            show(report.matrix_table(found, console=console()))
        else:
            say(forms[form](found), nl=False)
    elif form == "json":
        say(report.recipes_json(listed), nl=False)
    elif name is None:
        every = {"csv": report.recipes_csv, "md": report.recipes_markdown}
        if form is None:
            show(report.recipes_table(listed, console=console()))
        else:
            say(every[form](listed), nl=False)
    elif form is None:
        show(report.recipe_details(listed[0], console=console()))
    else:
        one = {"csv": report.recipe_csv, "md": report.recipe_markdown}
        say(one[form](listed[0]), nl=False)
