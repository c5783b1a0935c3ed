"""``hpcml export``: export runs for other tools."""

from __future__ import annotations

import os
import sys

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import selecting
from hpcml.cli.say import say
from hpcml.paths import Places

_FORMS = ("csv", "json", "parquet", "mlflow", "tensorboard", "rocrate")


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@click.option("--to", "form", metavar="FORMAT", required=True, help=f"{', '.join(_FORMS)}, or one that a package adds.")
@click.option("-o", "out", metavar="WHERE", help="A folder, a file (json) or MLflow's address.")
@click.option("--artifacts", "with_artifacts", is_flag=True, help="mlflow, rocrate: logs and artifacts go along.")
@click.option("--license", "license_", metavar="TEXT", help="rocrate: a URL or words.")
@selecting
@pass_places
def export(
    places: Places,
    /,
    *,
    form: str,
    out: str | None,
    with_artifacts: bool,
    license_: str | None,
    **selection: object,
) -> None:
    """Export runs, all or the selected: as tables, for MLflow or TensorBoard, or as an RO-Crate."""
    from hpcml.cli.terminal import warn
    from hpcml.commands import export as exchange
    from hpcml.commands.selection import Selection

    wish = exchange.ExportRequest(form=form, out=out, with_artifacts=with_artifacts, license=license_)
    wanted = Selection(**selection)  # type: ignore[arg-type] # click's own types
    done = exchange.export(places, wanted, wish, os.environ, sys.stdout)
    for remark in done.remarks:
        warn(remark)
    say(done.line, err=True)
