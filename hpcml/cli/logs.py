"""``hpcml logs``: show what a run printed."""

from __future__ import annotations

import os
import sys

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import WholeNumber
from hpcml.cli.say import complain, say
from hpcml.paths import Places


@click.command()
@click.argument("reference", metavar="RUN")
@click.option("--err", is_flag=True, help="Standard error instead of standard output.")
@click.option("--rank", type=WholeNumber(min=0), default=0, show_default=True, help="Of which process.")
@click.option("--attempt", type=WholeNumber(min=0), metavar="A", help="Of which attempt; the last unless given.")
@click.option("-n", "--lines", type=WholeNumber(min=0), metavar="N", help="Only the last so many lines.")
@click.option("--raw", is_flag=True, help="Bytes as they are; else control characters but colours are left out.")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the run has ended, over all attempts.")
@pass_places
def logs(
    places: Places,
    reference: str,
    *,
    err: bool,
    rank: int,
    attempt: int | None,
    lines: int | None,
    raw: bool,
    following: bool,
) -> None:
    """Show what a run printed; of one that never got so far, what its scheduler wrote."""
    from hpcml.commands import logs
    from hpcml.commands.selection import find
    from hpcml.report.printed import printable

    wanted = logs.LogRequest(rank=rank, err=err, attempt=attempt, lines=lines)
    ((record, run_dir),) = find(places, [reference])
    is_shown = has_printed = False
    if following:
        pieces = logs.follow(
            run_dir,
            wanted,
            note=complain,
            refresh=lambda: _refresh(places, record.uid),
        )
    else:
        path = logs.find_log(run_dir, wanted)
        pieces = iter(()) if path is None else logs.read(path, lines=lines, within=run_dir.path)
        is_shown = path is not None
    for piece in pieces if raw else printable(pieces):
        is_shown = has_printed = True
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    if not has_printed and not err and logs.has_other_stream(run_dir, wanted):
        say("hpcml: it printed nothing there: hpcml logs --err shows its standard error", err=True)
    if is_shown or (following and logs.find_log(run_dir, wanted)):
        return
    others = (
        logs.schedulers_logs(record, places.submissions)
        if attempt is None and not any(run_dir.logs.glob("*-rank*"))
        else []
    )
    if not others:
        raise logs.no_log(run_dir, wanted, record)
    complain(f"{run_dir.uid} has printed nothing itself; this is what its scheduler and agent wrote:")
    for path in others:
        say(f"==> {path} <==", err=True)
        pieces = logs.read(path, lines=lines)
        for piece in pieces if raw else printable(pieces):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def _refresh(places: Places, uid: str) -> str | None:
    """Have the schedulers asked; return why the run *uid* waits, None where it does not or nothing is told."""
    from hpcml.commands import repairs
    from hpcml.commands.selection import Selection
    from hpcml.commands.status import poll_interval_s, standings
    from hpcml.commands.submit.backends import Backends
    from hpcml.model.state import State
    from hpcml.report.status import why_words

    backends = Backends.here(places, os.environ)
    found, _ = standings(places, Selection(), backends, poll_interval_s(os.environ))
    waiting = [one for one in found if one.record.uid == uid and one.record.state is State.PENDING]
    why = next((why_words(one.record, one.known) for one in waiting), None)
    return why or next(iter(repairs.of_queues(places) if waiting else []), None)
