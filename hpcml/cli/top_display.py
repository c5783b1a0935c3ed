"""The frames of ``hpcml top``: drawn over each other on a terminal, one alone anywhere else."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hpcml.cli.terminal import console as terminal
from hpcml.cli.terminal import show
from hpcml.live import RunNow
from hpcml.operations import top
from hpcml.report import top_view as report
from hpcml.rundir import RunDir

SHORTEST_S = 0.1
_BETWEEN_S = 1.0  # two samples of a machine of which one frame is shown: rates need two

Draw = Callable[[int], list[Text]]  # a width -> lines


def show_runs(run_dirs: Sequence[RunDir], interval_s: float, *, is_once: bool, form: str | None) -> None:
    """Show the runs until all have ended or Ctrl-C; once, with JSON or without a terminal."""
    console = terminal()
    if form == "json":
        click.echo(report.runs_json(top.look_once(run_dirs)), nl=False)
    elif is_once or not console.is_terminal:
        runs = top.look_once(run_dirs)
        _print(console, report.runs_frame(runs, now=time.time(), width=console.width))
    else:
        looks = top.follow(run_dirs, period_s=interval_s)
        _redraw(console, (_drawn(runs) for runs in looks))


def show_machine(interval_s: float, *, is_once: bool, form: str | None) -> None:
    """Show this machine until Ctrl-C; once, with JSON or without a terminal."""
    from hpcml.operations.top_local import machine

    console = terminal()
    is_once = is_once or form is not None or not console.is_terminal
    between_s = min(interval_s, _BETWEEN_S) if is_once else interval_s
    with machine(os.environ, interval_s=between_s) as sample:

        def frames() -> Iterator[Draw]:
            for count in itertools.count():
                node = sample()
                yield lambda width: report.machine_frame(node, now=time.time(), width=width)  # noqa: B023 - drawn at once
                time.sleep(min(interval_s, _BETWEEN_S) if count == 0 else interval_s)

        if not is_once:
            _redraw(console, frames())
            return
        sample()
        time.sleep(between_s)
        node = sample()
    if form == "json":
        click.echo(report.machine_json(node), nl=False)
    else:
        _print(console, report.machine_frame(node, now=time.time(), width=console.width))


def _drawn(runs: Sequence[RunNow]) -> Draw:
    return lambda width: report.runs_frame(runs, now=time.time(), width=width)


def _redraw(console: Console, frames: Iterator[Draw]) -> None:
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False, transient=False) as live:
        for draw in frames:
            lines = draw(console.width)
            # what does not fit would scroll away at every redrawing
            room = max(3, console.height - 2)
            hidden = [Text(f"... and {len(lines) - room} more lines", style="dim")] if len(lines) > room else []
            live.update(Group(*lines[:room], *hidden), refresh=True)


def _print(console: Console, lines: Sequence[Text]) -> None:
    if console.is_terminal:
        show(Group(*lines))
    else:
        click.echo(report.plain(lines), nl=False)
