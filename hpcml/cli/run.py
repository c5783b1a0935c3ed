"""``hpcml run``: Hydra's command line with a few flags of hpcml; the workflow is in commands/submit/run."""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcml.cli.options import pass_places
from hpcml.cli.program import BeforeProgram, complete_words, reading_metrics
from hpcml.cli.say import complain, pass_on, say
from hpcml.paths import Places

if TYPE_CHECKING:
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
    from hpcml.config.choices import what_then
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
    code = _print_launched(launched, places, flags)
    if code == 0 and "json" not in flags:
        for command in what_then(points):
            say(f"then: {command}")
    return code


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
        from hpcml.cli.build import display

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
