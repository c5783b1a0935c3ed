"""Commands that start runs and look after them: run, retry, cancel, wait, status, top, logs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcml.cli.options import WholeNumber, form, pass_places, print_output, selecting
from hpcml.cli.program import BeforeProgram, complete_words, reading_metrics
from hpcml.cli.say import complain, pass_on, say
from hpcml.cli.terminal import console as terminal
from hpcml.cli.terminal import redrawn, show
from hpcml.paths import Places
from hpcml.report import top as report
from hpcml.report.render.forms import document_output

if TYPE_CHECKING:
    from hpcml.commands.selection import Selection
    from hpcml.commands.submit.advice import SubmissionPreview
    from hpcml.commands.submit.launch import Launched
    from hpcml.commands.submit.run import FoundRepeats
    from hpcml.images.build import OnProgress


# Taken out word by word and not by click, which would read the n of Hydra's -cn as our --dry-run.
_OWN_FLAGS = {
    "-n": "dry-run",
    "--dry-run": "dry-run",
    "--dryrun": "dry-run",
    "--dry-run=script": "script",
    "--detach": "detach",
    "--missing": "missing",
    "--json": "json",
    "--as-is": "as-is",
}
_DRY = {"dry-run", "script"}


@click.command(cls=BeforeProgram, context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_words)
@reading_metrics
@pass_places
def run(places: Places, words: tuple[str, ...], program_words: tuple[str, ...] | None, metrics: tuple[str, ...]) -> int:
    """Compose a configuration with Hydra's command line, check it, and run it or submit it."""
    from hpcml.cli.program import compose
    from hpcml.cli.terminal import ask, say_remarks
    from hpcml.commands.submit import check
    from hpcml.commands.submit.backends import Backends
    from hpcml.commands.submit.launch import NONE_SUBMITTED
    from hpcml.config.sweep import most_runs

    flags = _flags_among(words)
    is_dry = bool(flags & _DRY)
    most = most_runs(os.environ)
    settings = [word for word in words if word not in _OWN_FLAGS]
    try:
        points, remarks = compose(settings, program_words, metrics, is_literal="as-is" in flags, most=most)
        if not points:
            return 0  # Hydra has printed what was asked for
        planned, machine = check.plan_points(points, os.environ, Path.cwd(), ask=ask, is_dry=is_dry, most=most)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(NONE_SUBMITTED) from error
    say_remarks(remarks)
    backends = Backends(places=places, machine=lambda: machine)
    if is_dry:
        from hpcml.commands.submit.advice import preview_submission

        preview = preview_submission(planned, places, backends, environ=os.environ, project=Path.cwd())
        _print_preview(preview, script_only="script" in flags)
        return 0
    from hpcml.commands.submit.run import submit_points

    launched = submit_points(
        planned,
        places,
        backends,
        _Terminal(),
        environ=os.environ,
        project=Path.cwd(),
        command_line=[Path(sys.argv[0]).name, *sys.argv[1:]],
        only_missing="missing" in flags,
    )
    return _print_launched(launched, places, flags)


def _flags_among(words: tuple[str, ...]) -> set[str]:
    """Return which of `_OWN_FLAGS` are among *words*; raise `click.UsageError` where they contradict each other."""
    flags = {_OWN_FLAGS[word] for word in words if word in _OWN_FLAGS}
    if flags & _DRY and "missing" in flags:
        raise click.UsageError("--dry-run changes nothing and so cannot ask the store what --missing leaves out")
    if flags & _DRY and "json" in flags:
        raise click.UsageError("--json tells what was submitted, and --dry-run submits nothing: leave one of them out")
    return flags


class _Terminal:
    """Tells on stderr how the submission goes."""

    def warn(self, text: str) -> None:
        from hpcml.cli.terminal import warn

        warn(text)

    def note(self, text: str) -> None:
        complain(text)

    def found_repeats(self, repeats: FoundRepeats) -> None:
        self.note(repeats.in_words())

    def building(self, base: str) -> AbstractContextManager[OnProgress]:
        from hpcml.cli.images import display

        return display(base)


def _print_preview(preview: SubmissionPreview, *, script_only: bool) -> None:
    from hpcml.cli.terminal import warn
    from hpcml.report import dry_run as report

    for warning in preview.warnings:
        warn(warning)
    if script_only:
        pass_on("\n".join(each.script for each in preview.submissions))
        return
    say("\n".join(preview.sources))
    say(report.to_text(preview.runs, [(each.command, each.script) for each in preview.submissions]), nl=False)


def _print_launched(launched: list[Launched], places: Places, flags: set[str]) -> int:
    """Print what was submitted; runs of this machine are watched to their ends, unless *flags* say otherwise."""
    from hpcml.cli import progress
    from hpcml.commands.submit import launch

    if "json" in flags:
        say(json.dumps([launch.describe(item) for item in launched], indent=2))
        return 0
    if launched and "detach" not in flags and all(item.ticket.scheduler == "local" for item in launched):
        return progress.follow_to_the_end(launched, places)
    progress.list_submitted(launched)
    if launched:
        say(f"submission {launched[0].manifest.provenance.submission}")
    return 0


@click.command()
@selecting
@click.option(
    "--cause", metavar="CAUSE", help="Only runs that failed for it: time_limit, host_memory, node_failure ..."
)
@click.option("--walltime", metavar="T", help="As resources.walltime, instead of what the policy says.")
@click.option("--mem", metavar="M", help="As resources.mem, instead of what the policy says.")
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_places
def retry(
    places: Places,
    /,
    *,
    cause: str | None,
    walltime: str | None,
    mem: str | None,
    dry_run: bool,
    yes: bool,
    selection: Selection,
) -> int:
    """Try failed runs again as their cause asks for: more time, another node, from the checkpoint, or not at all.

    Without a word of which runs: all that the cluster broke and that were not done again since.
    """
    from hpcml.cli.terminal import confirm
    from hpcml.commands import retry as operation
    from hpcml.commands.submit.backends import Backends
    from hpcml.report.status import left_lines, retry_lines

    overrides = {name: value for name, value in (("walltime", walltime), ("mem", mem)) if value is not None}
    backends = Backends.here(places, os.environ)
    if not dry_run:
        operation.finish_interrupted(places, backends)
    found = operation.candidates(places, selection, cause=cause, overrides=overrides)
    decided = [(one.record, one.cause.value, one.decision.why, one.manifest is not None) for one in found]
    is_about_all = selection.is_empty and cause is None
    for line in retry_lines([entry for entry in decided if entry[-1]] if is_about_all else decided):
        say(line)
    for line in left_lines(decided) if is_about_all else ():
        say(line)
    chosen = [one for one in found if one.manifest is not None]
    if not found:
        say("no failed run matches", err=True)
    if dry_run or not chosen:
        return int(bool(found) and not chosen and not is_about_all)  # nothing to repair is no failure
    count = f"{len(chosen)} run{'s' if len(chosen) != 1 else ''}"
    if not yes and not confirm(f"Retry {count}?", otherwise="-y retries without a question"):
        say("nothing was retried", err=True)
        return 1
    for retried in operation.retry(places, backends, chosen):
        say(f"{retried.uid}  {retried.job}")
    return 0


_TROUBLES = {  # by what became of the request
    "not cancelled": "{of_runs} of them could not be marked, and go on: {trouble}",
    "cancelling": (
        "{of_runs} of them could not be told to end: {trouble}; they are marked, and hpcml sync tells again"
    ),
}


@click.command()
@selecting
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_places
def cancel(places: Places, /, *, yes: bool, selection: Selection) -> int:
    """Stop runs, by id (4 characters of its end are enough if it is unique), name or selection; asks before."""
    from hpcml.cli.terminal import confirm, warn
    from hpcml.commands.cancel import cancel_planned, plan_cancel
    from hpcml.commands.submit.backends import Backends
    from hpcml.report.status import open_line

    if selection.is_empty:
        raise click.UsageError("say what is to be stopped: RUN..., --experiment, --state, --where or --submission")
    backends = Backends.here(places, os.environ)
    plan = plan_cancel(places, selection)
    count = f"{len(plan.wanted)} run{'s' if len(plan.wanted) != 1 else ''}"
    if plan.wanted and not yes:
        for record in plan.wanted:
            say(open_line(record), err=True)
        if not confirm(f"Cancel {count}?", otherwise="-y cancels without a question"):
            say("nothing was cancelled", err=True)
            return 1
    troubles: Counter[tuple[str, str]] = Counter()
    for stopped in cancel_planned(plan, backends):
        say(f"{stopped.uid}  {stopped.word}")
        if stopped.trouble is not None:
            troubles[stopped.trouble, stopped.word] += 1
    for (trouble, word), of_runs in troubles.items():
        warn(_TROUBLES[word].format(of_runs=of_runs, trouble=trouble))
    if not (plan.wanted or plan.ended):
        say("no run that waits or runs matches", err=True)
    return 3 if troubles else 0


_TIME_IS_UP = 124  # as timeout(1) has it
_INTERRUPTED = 130


@click.command()
@selecting
@click.option("--timeout", metavar="T", help="Wait no longer than this: 200 (seconds), 5m or HH:MM:SS; exit code 124.")
@pass_places
def wait(places: Places, /, timeout: str | None, selection: Selection) -> int:
    """Wait until runs have ended: those named or selected, or all that have not. Exit code 0 if all completed."""
    from hpcml.cli.terminal import warn
    from hpcml.commands.collect import opened
    from hpcml.commands.status import poll_interval_s
    from hpcml.commands.submit.backends import Backends
    from hpcml.commands.wait import TimeIsUpError
    from hpcml.commands.wait import wait as wait_for
    from hpcml.model.state import State
    from hpcml.report.status import end_line
    from hpcml.walltime import parse_wait_s

    timeout_s = None if timeout is None else parse_wait_s(timeout, field="--timeout")
    interval_s = poll_interval_s(os.environ)
    backends = Backends.here(places, os.environ)
    ends: list[State] = []
    try:
        with opened(places) as store:
            for news in wait_for(store, backends, selection, interval_s=interval_s, timeout_s=timeout_s):
                if isinstance(news, str):
                    warn(news)
                else:
                    ends.append(news.state)
                    say(end_line(news))
    except TimeIsUpError as error:
        complain(f"{error} within {timeout_s} s; {error.they} on")
        return _TIME_IS_UP
    except KeyboardInterrupt:
        say("\nhpcml: stopped waiting; the runs go on: hpcml wait waits again", err=True)
        return _INTERRUPTED
    if not ends:
        say("no run is waiting or running" if selection.is_empty else "no runs match", err=True)
    return int(any(state is not State.COMPLETED for state in ends))


@click.command()
@selecting
@form("json")
@pass_places
def status(places: Places, /, *, form: str | None, selection: Selection) -> int:
    """Say where runs stand: those named or selected, or all that have not ended. Schedulers are asked once a minute."""
    from hpcml.cli.terminal import say_interrupted, warn
    from hpcml.commands.status import poll_interval_s, standings
    from hpcml.commands.submit.backends import Backends
    from hpcml.report import status as report

    found, problems = standings(places, selection, Backends.here(places, os.environ), poll_interval_s(os.environ))
    for line in problems:
        warn(line)
    none, now = "no run is waiting or running" if selection.is_empty else "no runs match", time.time()
    output = document_output(report.standing_document(found, now=now), remark=None if found else none)
    code = print_output(output, form)
    say_interrupted(places)
    return code


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
