"""``hpcml recipes``: list the recipes, what each device supports of them, and what GPUs can do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcml.cli.options import output_in
from hpcml.report.render.forms import Output, document_output


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--matrix", is_flag=True, help="What becomes of each precision: native, emulated, or refused and why.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="DEVICE",
    help="Of the matrix: cpu, a compute capability (8.0), or a GPU (v100); may be repeated.",
)
@click.option(
    "--gpus",
    "are_gpus",
    is_flag=True,
    help="What GPUs can do at most, in each precision; NAME is a part of a name, or what NVML calls a device.",
)
@output_in("json", "csv", "md")
def recipes(names: tuple[str, ...], *, matrix: bool, devices: tuple[str, ...], are_gpus: bool) -> Output[Any]:
    """List the recipes, those in ./recipes too; with NAME: its options, their defaults and what it can do."""
    from hpcml.commands.recipes import list_recipes, outcomes
    from hpcml.model.hardware import choose_gpus
    from hpcml.report import gpus
    from hpcml.report import recipes as report

    if devices and not matrix:
        raise click.UsageError("--device is about the matrix: add --matrix")
    if are_gpus and matrix:
        raise click.UsageError("--gpus and --matrix exclude each other: give one")
    if are_gpus:
        return document_output(gpus.gpus_document(choose_gpus(names), has_instances=bool(names)))
    if len(names) > 1:
        raise click.UsageError("name one recipe: hpcml recipes lists them")
    listed = list_recipes(Path.cwd(), names[0] if names else None)
    if matrix:
        return document_output(report.matrix_document(outcomes(listed, devices)))
    return document_output(report.recipe_document(listed[0]) if names else report.recipes_document(listed))
