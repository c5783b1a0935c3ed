"""``hpcml import``: import runs of MLflow's."""

from __future__ import annotations

import click

from hpcml.cli.options import pass_places
from hpcml.cli.say import complain, say
from hpcml.paths import Places


@click.command("import")
@click.argument("source", metavar="SOURCE")
@click.option("--experiment", metavar="NAME", help="Only this experiment of MLflow's.")
@click.option("--map", "names", multiple=True, metavar="THEIRS=OURS", help="lr=training.learning_rate; repeat.")
@click.option("--artifacts", "with_artifacts", is_flag=True, help="Copy their files, too.")
@click.option("-n", "--dry-run", "is_dry", is_flag=True, help="Say what would be imported.")
@pass_places
def import_(places: Places, /, **wish: object) -> int:
    """Import runs of MLflow's; again, to fetch what came since.

    SOURCE is MLflow's database (mlflow.db), its file store (the folder mlruns), or the address of a server.
    """
    from hpcml.cli.terminal import warn
    from hpcml.commands.import_ import ImportRequest, import_runs
    from hpcml.report.store import import_lines

    wanted = ImportRequest(**wish)  # type: ignore[arg-type] # click's own types
    report = import_runs(places, wanted)
    line, remarks = import_lines(
        created=report.created,
        updated=report.updated,
        unchanged=report.unchanged,
        own=report.own,
        points=report.points,
        remarks=report.remarks,
    )
    for remark in remarks:
        warn(remark)
    for problem in report.problems:
        complain(f"left out: {problem}")
    say(f"nothing was written; it would be: {line}" if wanted.is_dry else line)
    return 1 if report.problems else 0
