"""``hpcml build``: the image that a configuration asks for, built before any run needs it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcml.cli.say import complain, pass_on, say, saying_what_is_printed

if TYPE_CHECKING:
    from hpcml.commands.images import UnresolvedImage, WantedImage
    from hpcml.images.build import BuildProgress, OnProgress


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[OVERRIDES]...")
@click.option("-n", "--dry-run", is_flag=True, help="Show the definition, its key and where the image would be.")
@click.option("--definition", metavar="FILE", help="Build what a definition of Apptainer's says (train.def).")
@click.option("--dockerfile", metavar="FILE", help="Build what a Dockerfile says.")
@click.option("--context", metavar="DIR", help="The folder that the Dockerfile copies from; default: its own.")
@click.option("--target", metavar="STAGE", help="The stage of the Dockerfile that is wanted; default: the last.")
@click.option(
    "--build-arg",
    "build_args",
    multiple=True,
    metavar="NAME=VALUE",
    help="A value for an ARG of the Dockerfile, or for {{ NAME }} of the definition; may be repeated.",
)
@click.option("--sandbox", metavar="DIR", help="Build it unpacked into the new folder DIR, to develop in.")
@click.option("--no-wait", is_flag=True, help="If somebody builds it already, say so and end.")
@click.option("--json", "is_json", is_flag=True, help="Print what is recorded of the image.")
def build(  # noqa: PLR0913 - one for each option
    *,
    words: tuple[str, ...],
    dry_run: bool,
    definition: str | None,
    dockerfile: str | None,
    context: str | None,
    target: str | None,
    build_args: tuple[str, ...],
    sandbox: str | None,
    no_wait: bool,
    is_json: bool,
) -> None:
    """Build the image of a configuration, if it is not there; takes the words of `hpcml run`.

    hpcml build +container=ngc_pytorch container.tag=24.12-py3
    """
    from hpcml.commands import images
    from hpcml.config.compose import compose_from_cli
    from hpcml.config.sweep import most_runs
    from hpcml.errors import ConfigError
    from hpcml.report import images as report
    from hpcml.report.text import size

    if definition is not None and dockerfile is not None:
        raise ConfigError("--definition and --dockerfile are of two images: build one after the other")
    files = {"definition": definition, "dockerfile": dockerfile, "context": context}
    composed = [*_of_file(files, target, build_args), *words]
    with saying_what_is_printed():
        points = compose_from_cli(composed, project=Path.cwd(), most=most_runs(os.environ))
    runs = [point.run for point in points]
    if dry_run:
        for planned in images.draft_all(runs, os.environ, Path.cwd()):
            _show(planned)
        return
    asked_for = images.want_all(runs, os.environ, Path.cwd())
    if sandbox is not None:
        _build_sandbox(asked_for, Path(sandbox).absolute())
        return
    for wanted in asked_for:
        _remark(wanted)
        with display(wanted.definition.base) as on_progress:
            record = images.build(wanted, os.environ, on_progress=on_progress, wait=not no_wait)
        if is_json:
            say(report.image_json(record), nl=False)
        else:
            verb = "found" if wanted.found else "built"
            say(f"{verb} {record.key[:12]}  {record.base}  {size(record.size_bytes)}  {record.path}")


def _of_file(files: Mapping[str, str | None], target: str | None, build_args: Sequence[str]) -> Iterator[str]:
    """Yield the options of ``docker build`` and ``apptainer build`` as overrides."""
    from hpcml.errors import ConfigError

    given = {field: path for field, path in files.items() if path is not None}
    yield from (f"+container={field}" for field in given if field != "context")
    yield from (f"container.{field}={_text(str(Path(path).absolute()))}" for field, path in given.items())
    if target is not None:
        yield f"container.target={_text(target)}"
    for name, (sign, value) in {pair.partition("=")[0]: pair.partition("=")[1:] for pair in build_args}.items():
        if not sign or re.fullmatch(r"[A-Za-z_]\w*", name) is None:
            raise ConfigError(f"--build-arg {name}{sign}{value}: write --build-arg NAME=VALUE, with a variable's name")
        yield f"+container.build_args.{name}={_text(value)}"


def _text(value: str) -> str:
    """Return *value* as a text of Hydra's grammar, in which nothing refers to another key."""
    from hpcml.config.command_line import in_quotes

    return in_quotes(value.replace("${", "\\${"))


def _build_sandbox(asked_for: Sequence[WantedImage], target: Path) -> None:
    from hpcml.commands import images
    from hpcml.config.command_line import for_shell
    from hpcml.errors import ConfigError

    if len(asked_for) != 1:
        raise ConfigError(f"--sandbox={target} is one folder, and {len(asked_for)} images are asked for")
    (wanted,) = asked_for
    _remark(wanted)
    with display(wanted.definition.base) as on_progress:
        images.build_sandbox(wanted, target, os.environ, on_progress=on_progress)
    say(f"unpacked {wanted.definition.base}  {target}")
    path = for_shell("container.path", str(target))
    say(f"change it:  apptainer shell --writable {shlex.quote(str(target))}", err=True)
    say(f"run in it:  hpcml run +container=sandbox {path} ...", err=True)
    say(f"keep it:    hpcml build +container=local {path}", err=True)


def _remark(wanted: WantedImage | UnresolvedImage) -> None:
    for line in filter(None, [*wanted.remarks, getattr(wanted, "note", None)]):
        complain(f"warning: {line}")


def _show(planned: WantedImage | UnresolvedImage) -> None:
    from hpcml.commands.images import UnresolvedImage

    definition = planned.definition
    pass_on(definition.text)
    say()
    _remark(planned)
    if isinstance(planned, UnresolvedImage):
        say("key     unresolved, for it follows from the digest of the base")
        say(f"base    {definition.base} {definition.base_digest}: {planned.why}")
        say(f"image   {planned.folder or '$HPCML_IMAGES'}/KEY.sif")
        return
    say(f"key     {definition.key}")
    say(f"base    {definition.base} {definition.base_digest}")
    state = "is there" if planned.found else "to be built"
    say(f"image   {planned.cache.image(definition.key)} ({state})")


@contextmanager
def display(base: str) -> Iterator[OnProgress]:
    """Show a build: one moving line on a terminal, a line for each stage elsewhere."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bars
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    from hpcml.report.text import safe

    console = Console(stderr=True, highlight=False)  # stdout may be for a program
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Bars(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        task = bars.add_task(escape(safe(base)), note="")
        shown = ""

        def show(progress: BuildProgress) -> None:
            nonlocal shown
            words = safe(progress.words)[: max(20, console.width - len(base) - 32)]
            bars.update(task, note=escape(f"{progress.stage}  {words}"))
            if progress.stage != shown and not console.is_terminal:
                detail = f": {progress.words}" if progress.stage == "waiting" else ""
                say(f"{base}: {progress.stage}{detail}", err=True)
            shown = progress.stage

        yield show
