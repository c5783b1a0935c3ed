"""``hpcml run``: Hydra's command line, and what hpcml adds to it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcml.cli.main import pass_places
from hpcml.places import Places

if TYPE_CHECKING:
    from hpcml.operations.backends import Backends
    from hpcml.operations.plan import Planned

# Taken out word by word and not by click, which would read the n of Hydra's -cn as our --dry-run.
_OWN_FLAGS = {
    "-n": "dry-run",
    "--dry-run": "dry-run",
    "--dryrun": "dry-run",
    "--dry-run=script": "script",
    "--detach": "detach",
    "--missing": "missing",
    "--json": "json",
}


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@pass_places
def run(places: Places, words: tuple[str, ...]) -> int:
    """Compose a configuration with Hydra's command line, check it, and run it or submit it."""
    from hpcml.cli.terminal import ask
    from hpcml.config.compose import compose_from_cli
    from hpcml.config.studies import what_then
    from hpcml.operations import plan
    from hpcml.operations.account import with_accounts
    from hpcml.operations.backends import Backends
    from hpcml.operations.machine import look_around
    from hpcml.schedulers.request import ACCOUNT_PLACEHOLDER

    flags = {_OWN_FLAGS[word] for word in words if word in _OWN_FLAGS}
    is_dry = bool(flags & {"dry-run", "script"})
    if is_dry and "missing" in flags:
        raise click.UsageError("--dry-run changes nothing and so cannot ask the store what --missing leaves out")
    points = compose_from_cli([word for word in words if word not in _OWN_FLAGS], project=Path.cwd())
    if not points:
        return 0  # Hydra has printed what was asked for
    placeholder = ACCOUNT_PLACEHOLDER if is_dry else None
    points = with_accounts(points, os.environ, Path.cwd(), ask=ask, placeholder=placeholder)
    machine = look_around(os.environ)
    planned = plan.plan_all(points, machine)
    backends = Backends(places=places, machine=machine)
    if is_dry:
        _show(planned, places, backends, script_only="script" in flags)
        return 0
    code = _submit(planned, places, backends, flags)
    if code == 0 and "json" not in flags:
        for command in what_then(points):
            click.echo(f"then: {command}")
    return code


def _show(planned: list[Planned], places: Places, backends: Backends, *, script_only: bool) -> None:
    from hpcml.cli.hints import warn
    from hpcml.operations import launch, preflight, snapshot
    from hpcml.report import plan_text

    lines: list[str] = []
    if any(item.wants_image for item in planned):
        from hpcml.operations import run_images

        planned, lines = run_images.foreseen(planned, os.environ, Path.cwd())
    previews = launch.preview(planned, places, backends)
    code = [*snapshot.foreseen(planned, places), *lines]
    for warning in preflight.all_warnings(planned, places, backends.machine):
        warn(warning)
    if script_only:
        click.echo("\n".join(preview.script for preview in previews), nl=False)
        return
    runs = [(item.run, launch.plan_shown(item, places), item.overrides) for item in planned]
    click.echo("\n".join(code))
    click.echo(plan_text.to_text(runs, [(item.command, item.script) for item in previews]), nl=False)


def _with_images(planned: list[Planned], places: Places, backends: Backends) -> list[Planned]:
    from hpcml.cli.build import display
    from hpcml.cli.hints import warn
    from hpcml.operations import run_images
    from hpcml.operations.build_jobs import BuildJobs

    jobs = BuildJobs(
        places=places,
        backends=backends,
        command_line=_command_line(),
        tell=lambda words: click.echo(f"hpcml: {words}", err=True),
    )
    voice = run_images.Voice(display=display, warn=warn)
    return run_images.with_images(planned, os.environ, Path.cwd(), voice, jobs)


def _command_line() -> list[str]:
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def _submit(planned: list[Planned], places: Places, backends: Backends, flags: set[str]) -> int:
    from hpcml.cli import progress
    from hpcml.cli.hints import warn
    from hpcml.operations import launch, preflight, recover
    from hpcml.operations.repeats import split_repeats

    if "missing" in flags:
        recover.refuse_if_interrupted(places)

    # This opens the store: one that cannot be used is said before hours of computing, not after.
    missing, repeats = split_repeats(planned, places)
    if repeats:
        what = "left out" if "missing" in flags else "run again as replicates"
        click.echo(
            f"hpcml: {len(repeats)} of {len(planned)} configurations are done or under way, the last as "
            f"{repeats[-1][1]}: {what}",
            err=True,
        )
    planned = missing if "missing" in flags else planned
    if any(item.wants_image for item in planned):
        planned = _with_images(planned, places, backends)
    for warning in preflight.all_warnings(planned, places, backends.machine):
        warn(warning)
    launched = launch.launch(planned, places, backends, _command_line()) if planned else []
    if "json" in flags:
        click.echo(json.dumps([launch.describe(item) for item in launched], indent=2))
        return 0
    if launched and "detach" not in flags and all(item.ticket.scheduler == "local" for item in launched):
        return progress.follow_to_the_end(launched, places)
    progress.list_submitted(launched)
    if launched:
        click.echo(f"submission {launched[0].manifest.provenance.submission}")
    return 0
