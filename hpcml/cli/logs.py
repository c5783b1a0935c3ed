"""``hpcml logs``: show what a run printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import click

from hpcml.cli.options import WholeNumber, pass_places
from hpcml.cli.say import complain, say
from hpcml.paths import Places


@click.command()
@click.argument("reference", metavar="RUN")
@click.option("--out", "stream", flag_value="out", help="Standard output alone.")
@click.option("--err", "stream", flag_value="err", help="Standard error alone.")
@click.option("--rank", type=WholeNumber(min=0), default=0, help="Of which process.")
@click.option("--attempt", type=WholeNumber(min=0), metavar="A", help="Of which attempt; the last unless given.")
@click.option("-n", "--lines", type=WholeNumber(min=0), metavar="N", help="Only the last so many lines.")
@click.option("--raw", is_flag=True, help="Bytes as they are; else control characters but colours are left out.")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the run has ended, over all attempts.")
@pass_places
def logs(
    places: Places,
    reference: str,
    *,
    stream: str | None,
    rank: int,
    attempt: int | None,
    lines: int | None,
    raw: bool,
    following: bool,
) -> None:
    """Show what a run printed; of one that never got so far, what its scheduler wrote.

    First its standard output, then its standard error; as they come with -f.
    """
    from hpcml.commands import logs
    from hpcml.commands.selection import find

    streams = ("out", "err") if stream is None else (stream,)
    wanted = logs.LogRequest(rank=rank, streams=streams, attempt=attempt, lines=lines)
    ((record, run_dir),) = find(places, [reference])
    if following:
        _write(logs.follow(run_dir, wanted, note=complain, refresh=lambda: _refresh(places, record.uid)), is_raw=raw)
    found = logs.find_logs(run_dir, wanted)
    printed = [path for path in found if logs.has_words(path, run_dir.path)]
    for path in () if following else printed if len(printed) > 1 else found:
        if len(printed) > 1:
            say(f"==> standard {'output' if path.suffix == '.out' else 'error'} <==", err=True)
        _write(logs.read(path, lines=lines, within=run_dir.path), is_raw=raw)
    if found:
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
        _write(logs.read(path, lines=lines), is_raw=raw)


def _write(pieces: Iterator[bytes], *, is_raw: bool) -> None:
    from hpcml.report.printed import printable

    for piece in pieces if is_raw else printable(pieces):
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
