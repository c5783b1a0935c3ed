"""``hpcml export``: export runs for other tools."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from hpcml.cli.options import pass_places, selecting
from hpcml.cli.say import say
from hpcml.paths import Places

if TYPE_CHECKING:
    from hpcml.commands.selection import Selection

_FORMS = ("csv", "json", "parquet", "mlflow", "tensorboard", "rocrate")


@click.command()
@click.option("--to", "form", metavar="FORMAT", required=True, help=f"{', '.join(_FORMS)}, or one that a package adds.")
@click.option("-o", "out", metavar="WHERE", help="A folder, a file (json) or MLflow's address.")
@click.option("--artifacts", "with_artifacts", is_flag=True, help="mlflow, rocrate: logs and artifacts go along.")
@click.option("--license", "license_", metavar="TEXT", help="rocrate: a URL or words.")
@selecting
@pass_places
def export(
    places: Places, /, *, form: str, out: str | None, with_artifacts: bool, license_: str | None, selection: Selection
) -> None:
    """Export runs, all or the selected: as tables, for MLflow or TensorBoard, or as an RO-Crate."""
    from hpcml.cli.terminal import warn
    from hpcml.commands import export as exchange

    wish = exchange.ExportRequest(form=form, out=out, with_artifacts=with_artifacts, license=license_)
    done = exchange.export(places, selection, wish, os.environ, sys.stdout)
    for remark in done.remarks:
        warn(remark)
    say(done.line, err=True)
