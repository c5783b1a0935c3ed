"""``hpcml top``: watch runs while they go: GPUs, hosts, metrics, pace."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from hpcml.cli.options import form, pass_places, selecting
from hpcml.cli.say import say
from hpcml.cli.terminal import console as terminal
from hpcml.cli.terminal import redrawn, show
from hpcml.paths import Places
from hpcml.report import top as report

if TYPE_CHECKING:
    from hpcml.commands.selection import Selection

_SHORTEST_S = 0.1


@click.command()
@selecting
@click.option("--interval", default="2s", metavar="TIME", help="Between two looks: 500ms, 2s, 1m.")
@click.option("--once", is_flag=True, help="One look, as where there is no terminal.")
@form("json")
@pass_places
def top(places: Places, /, *, selection: Selection, interval: str, once: bool, form: str | None) -> None:
    """Watch runs, or all under way: GPUs, hosts, metrics, pace. Ends with them, or with Ctrl-C."""
    from hpcml.commands import top as live
    from hpcml.units import parse_interval_s

    interval_s = parse_interval_s(interval, field="--interval")
    if interval_s < _SHORTEST_S:
        raise click.UsageError(f"--interval {interval} is too short: 100ms at least")
    found, console = live.find_runs(places, selection), terminal()
    if form == "json":
        say(report.runs_json(live.look_once(found)), nl=False)
    elif not found:
        say("no run waits or runs: hpcml top RUN shows one that has ended" if selection.is_empty else "no runs match")
    elif once or not console.is_terminal:
        show(report.runs_frame(live.look_once(found), now=time.time(), console=console))
    else:
        with suppress(KeyboardInterrupt), redrawn(console) as draw:
            for looks in live.follow(found, period_s=interval_s):
                draw(report.runs_frame([run for run, _ in looks], now=time.time(), console=console))
