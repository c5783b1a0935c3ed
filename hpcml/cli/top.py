"""``hpcml top``."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form
from hpcml.places import Places


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@click.option("--submission", metavar="ID", help="The runs that were submitted together.")
@click.option("--local", "is_local", is_flag=True, help="This machine's GPUs and load, without a run.")
@click.option("--interval", default="2s", show_default=True, metavar="TIME", help="Between two looks: 500ms, 2s, 1m.")
@click.option("--once", is_flag=True, help="One look, as where there is no terminal.")
@form("json")
@pass_places
def top(
    places: Places,
    references: tuple[str, ...],
    *,
    submission: str | None,
    is_local: bool,
    interval: str,
    once: bool,
    form: str | None,
) -> None:
    """Watch runs while they go, by what they write: GPUs, hosts, metrics, pace. Ends with them, or with Ctrl-C."""
    from hpcml.cli import top_display
    from hpcml.quantities import parse_interval_s

    interval_s = parse_interval_s(interval, field="--interval")
    if interval_s < top_display.SHORTEST_S:
        raise click.UsageError(f"--interval {interval} is too short: 100ms at least")
    named = bool(references) or submission is not None
    if is_local == named:
        raise click.UsageError("name the runs to watch (or a --submission), or say --local to watch this machine")
    if is_local:
        top_display.show_machine(interval_s, is_once=once, form=form)
    else:
        from hpcml.operations.top import find_runs

        top_display.show_runs(find_runs(places, references, submission), interval_s, is_once=once, form=form)
