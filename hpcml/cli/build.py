"""``hpcml build``: the image that a configuration asks for, built before any run needs it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcml.cli.say import complain, pass_on, say, saying_what_is_printed

if TYPE_CHECKING:
    from hpcml.commands.images import UnresolvedImage, WantedImage
    from hpcml.images.build import BuildProgress, OnProgress

_OWN_FLAGS = {"-n": "dry-run", "--dry-run": "dry-run", "--json": "json", "--no-wait": "no-wait"}


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def build(words: tuple[str, ...]) -> None:
    """Build the image of a configuration, if it is not there; takes the words of `hpcml run`."""
    from hpcml.commands import images
    from hpcml.config.compose import compose_from_cli
    from hpcml.config.sweep import most_runs
    from hpcml.report import images as report
    from hpcml.report.text import size

    if "-h" in words or "--help" in words:
        say(_HELP, nl=False)
        return
    sandbox, words = _taken(words, "--sandbox", "DIR")
    words = _of_file(words)
    flags = {_OWN_FLAGS[word] for word in words if word in _OWN_FLAGS}
    composed = [word for word in words if word not in _OWN_FLAGS]
    with saying_what_is_printed():
        points = compose_from_cli(composed, project=Path.cwd(), most=most_runs(os.environ))
    runs = [point.run for point in points]
    if "dry-run" in flags:
        for planned in images.draft_all(runs, os.environ, Path.cwd()):
            _show(planned)
        return
    asked_for = images.want_all(runs, os.environ, Path.cwd())
    if sandbox is not None:
        _build_sandbox(asked_for, Path(sandbox).absolute())
        return
    for wanted in asked_for:
        _remark(wanted)
        if wanted.note:
            complain(f"warning: {wanted.note}")
        with display(wanted.definition.base) as on_progress:
            record = images.build(wanted, os.environ, on_progress=on_progress, wait="no-wait" not in flags)
        if "json" in flags:
            say(report.image_json(record), nl=False)
        else:
            verb = "found" if wanted.found else "built"
            say(f"{verb} {record.key[:12]}  {record.base}  {size(record.size_bytes)}  {record.path}")


_HELP = """\
Usage: hpcml build [OPTIONS] [OVERRIDES]

  Build the image of a configuration, if it is not there. Takes the words of
  `hpcml run`: hpcml build +container=ngc_pytorch container.tag=24.12-py3

Options:
  -n, --dry-run  Show the definition, its key and where the image would be.
  --definition FILE
                 Build what a definition of Apptainer's says (train.def), with
                 +container=definition.
  --dockerfile FILE
                 Build what a Dockerfile says, with +container=dockerfile.
  --context DIR  The folder that the Dockerfile copies from: its own by
                 default.
  --build-arg NAME=VALUE
                 A value for an ARG of the Dockerfile, or for {{ NAME }} of the
                 definition; several times.
  --target STAGE
                 The stage of the Dockerfile that is wanted: the last by
                 default.
  --sandbox DIR  Build it unpacked into the new folder DIR, to develop in.
  --no-wait      If somebody builds it already, say so and end.
  --json         Print what is recorded of the image.
  -h, --help     Show this message and exit.
"""


def _of_file(words: Sequence[str]) -> tuple[str, ...]:
    """Return *words* with those of ``docker build`` and ``apptainer build`` as overrides."""
    from hpcml.errors import ConfigError

    found, chosen = [], []
    for field, what in (("definition", "FILE"), ("dockerfile", "FILE"), ("context", "DIR")):
        path, words = _taken(words, f"--{field}", what)
        if path is not None:
            found.append(f"container.{field}={_text(str(Path(path).absolute()))}")
            chosen += [f"+container={field}"] if what == "FILE" else []
    if len(chosen) > 1:
        raise ConfigError("--definition and --dockerfile are of two images: build one after the other")
    target, words = _taken(words, "--target", "STAGE")
    if target is not None:
        found.append(f"container.target={_text(target)}")
    build_args = {}
    while True:
        pair, words = _taken(words, "--build-arg", "NAME=VALUE", is_last=False)
        if pair is None:
            break
        name, sign, value = pair.partition("=")
        if not sign or re.fullmatch(r"[A-Za-z_]\w*", name) is None:
            raise ConfigError(f"--build-arg {pair}: write --build-arg NAME=VALUE, with a variable's name")
        build_args[name] = value  # of several the last, as with docker
    found += [f"+container.build_args.{name}={_text(value)}" for name, value in build_args.items()]
    _refuse_positional(words)
    return (*chosen, *found, *words)


def _refuse_positional(words: Sequence[str]) -> None:
    """Raise `ConfigError` for a file, folder or image that stands alone, as it does with other programs that build."""
    from hpcml.errors import ConfigError
    from hpcml.model.container import instead_of

    for word in words:
        if "=" in word:
            continue
        path = Path(word) / "Dockerfile" if os.path.isdir(word) else Path(word)  # noqa: PTH112 - it may be any word
        if os.path.isfile(path) and path.suffix != ".sif":  # noqa: PTH113 - as above
            option = "--dockerfile" if "dockerfile" in path.name.lower() else "--definition"
            raise ConfigError(f"{word}: to build an image of it write hpcml build {option} {shlex.quote(str(path))}")
        if "://" in word:
            raise ConfigError(f"{word} is no override: {instead_of(word)}")


def _text(value: str) -> str:
    """Return *value* as a text of Hydra's grammar, in which nothing refers to another key."""
    from hpcml.config.command_line import in_quotes

    return in_quotes(value.replace("${", "\\${"))


def _taken(words: Sequence[str], option: str, what: str, *, is_last: bool = True) -> tuple[str | None, tuple[str, ...]]:
    """Return the last value of *option* among *words*, and the other words; raise `ConfigError` for one without.

    Unless *is_last* it is the first value, and later ones stay among the words.
    """
    from hpcml.errors import ConfigError

    value, rest, given = None, [], list(words)
    while given and (is_last or value is None):
        word = given.pop(0)
        if word == option:
            if not given or given[0].startswith("-"):
                raise ConfigError(f"{option} needs a value: {option} {what}")
            value = given.pop(0)
        elif word.startswith(f"{option}="):
            value = word.partition("=")[2]
        else:
            rest.append(word)
    if value == "":
        raise ConfigError(f"{option} needs a value: {option} {what}")
    return value, (*rest, *given)


def _build_sandbox(asked_for: Sequence[WantedImage], target: Path) -> None:
    from hpcml.commands import images
    from hpcml.config.command_line import for_shell
    from hpcml.errors import ConfigError

    if len(asked_for) != 1:
        raise ConfigError(f"--sandbox={target} is one folder, and {len(asked_for)} images are asked for")
    (wanted,) = asked_for
    _remark(wanted)
    if wanted.note:
        complain(f"warning: {wanted.note}")
    with display(wanted.definition.base) as on_progress:
        images.build_sandbox(wanted, target, os.environ, on_progress=on_progress)
    say(f"unpacked {wanted.definition.base}  {target}")
    path = for_shell("container.path", str(target))
    say(f"change it:  apptainer shell --writable {shlex.quote(str(target))}", err=True)
    say(f"run in it:  hpcml run +container=sandbox {path} ...", err=True)
    say(f"keep it:    hpcml build +container=local {path}", err=True)


def _remark(wanted: WantedImage | UnresolvedImage) -> None:
    for line in wanted.remarks:
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
    if planned.note:
        complain(f"warning: {planned.note}")
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
