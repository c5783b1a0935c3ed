"""``hpcml top``: watch runs while they go, or this machine: GPUs, hosts, metrics, pace."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import click
from rich.console import Console, RenderableType
from rich.live import Live

from hpcml.cli.options import form, pass_places
from hpcml.cli.say import say
from hpcml.cli.terminal import console as terminal
from hpcml.cli.terminal import show
from hpcml.commands.top import live_runs
from hpcml.model.live import NodeNow, RunNow
from hpcml.paths import Places
from hpcml.report import top as report
from hpcml.runs.layout import RunDir


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@click.option("--submission", metavar="ID", help="The runs that were submitted together.")
@click.option("--local", "is_local", is_flag=True, help="This machine's GPUs and load, without a run.")
@click.option("--interval", default="2s", metavar="TIME", help="Between two looks: 500ms, 2s, 1m.")
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
    """Watch the runs named, or all under way: GPUs, hosts, metrics, pace. Ends with them, or with Ctrl-C."""
    from hpcml.units import parse_interval_s

    interval_s = parse_interval_s(interval, field="--interval")
    if interval_s < SHORTEST_S:
        raise click.UsageError(f"--interval {interval} is too short: 100ms at least")
    named = bool(references) or submission is not None
    if is_local and named:
        raise click.UsageError("--local is this machine, without a run: leave it or the runs out")
    if is_local:
        show_machine(interval_s, is_once=once, form=form)
        return
    found = live_runs.find_runs(places, references, submission) if named else live_runs.runs_under_way(places)
    if found or form == "json":
        show_runs(found, interval_s, is_once=once, form=form)
    else:
        say("no run waits or runs: hpcml top RUN shows one that has ended, --local this machine")


# Drawing the frames.

SHORTEST_S = 0.1
_BETWEEN_S = 1.0  # two samples of a machine of which one frame is shown: rates need two

Draw = Callable[[Console], RenderableType]


def show_runs(run_dirs: Sequence[RunDir], interval_s: float, *, is_once: bool, form: str | None) -> None:
    """Show the runs until all have ended or Ctrl-C; once, with JSON or without a terminal."""
    console = terminal()
    if form == "json":
        say(report.runs_json(live_runs.look_once(run_dirs)), nl=False)
    elif is_once or not console.is_terminal:
        show(_drawn(live_runs.look_once(run_dirs))(console))
    else:
        looks = live_runs.follow(run_dirs, period_s=interval_s)
        _redraw(console, (_drawn(runs) for runs in looks))


def show_machine(interval_s: float, *, is_once: bool, form: str | None) -> None:
    """Show this machine until Ctrl-C; once, with JSON or without a terminal."""
    from hpcml.commands.top.live_machine import machine

    console = terminal()
    is_once = is_once or form is not None or not console.is_terminal
    between_s = min(interval_s, _BETWEEN_S) if is_once else interval_s
    with machine(os.environ, interval_s=between_s) as sample:

        def frames() -> Iterator[Draw]:
            for count in itertools.count():
                yield partial(_machine, sample())
                time.sleep(min(interval_s, _BETWEEN_S) if count == 0 else interval_s)

        if not is_once:
            _redraw(console, frames())
            return
        sample()
        time.sleep(between_s)
        node = sample()
    if form == "json":
        say(report.machine_json(node), nl=False)
    else:
        show(_machine(node, console))


def _machine(node: NodeNow, console: Console) -> RenderableType:
    return report.machine_frame(node, now=time.time(), console=console)


def _drawn(runs: Sequence[RunNow]) -> Draw:
    return lambda console: report.runs_frame(runs, now=time.time(), console=console)


def _redraw(console: Console, frames: Iterator[Draw]) -> None:
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False, transient=False) as live:
        for draw in frames:
            live.update(draw(console), refresh=True)  # rich ends what does not fit with an ellipsis
