"""Commands about container images: build, and images with those below it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcml.cli.options import CommandGroup, form, print_output
from hpcml.cli.say import complain, pass_on, say, saying_what_is_printed
from hpcml.paths import Places
from hpcml.report.render.forms import Output, document_output

if TYPE_CHECKING:
    from hpcml.commands.images import UnresolvedImage, WantedImage
    from hpcml.images.build import BuildProgress, OnProgress
    from hpcml.images.cache import Cache
    from hpcml.images.inventory import Stocked


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


@dataclass(frozen=True, slots=True)
class _Where:
    """Which cache was asked for."""

    folder: str | None
    cluster: str | None

    def cache(self) -> Cache:
        """Return it."""
        from hpcml.commands import images as act

        return act.cache_at(os.environ, Path.cwd(), folder=self.folder, cluster=self.cluster)


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--dir", "folder", metavar="DIR", help="Where the images are (HPCML_IMAGES; the scratch of --cluster).")
@click.option("--cluster", metavar="NAME", help="Take the folder on the scratch of this cluster's profile.")
@form("json")
@click.pass_context
def images(context: click.Context, folder: str | None, cluster: str | None, form: str | None) -> None:
    """List the images that were built or imported, with their sizes and who uses them."""
    where = _Where(folder, cluster)
    places = context.find_object(Places)
    assert places is not None
    if context.invoked_subcommand is None:
        print_output(_listed(where.cache(), places), form)
    context.obj = where, places


def _listed(cache: Cache, places: Places) -> Output[Any]:
    import time

    from hpcml.commands import images as act
    from hpcml.report import images as report

    found = [(item.record, item.uses, item.is_whole) for item in act.stock(cache, places)]
    remark = f"{report.total(found)} in {cache.root}; what each build printed: KEY.log there"
    return document_output(
        report.images_document(found, now=time.time()), remark=remark if found else f"no images in {cache.root}"
    )


_WhereAndPlaces = tuple[_Where, Places]


@images.command()
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option(
    "--older-than",
    metavar="AGE",
    help="All that no run has used for so long (30d, 12h, 0), what dead builds left, and downloaded layers.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Show what would go.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def rm(given: _WhereAndPlaces, keys: tuple[str, ...], *, older_than: str | None, dry_run: bool, yes: bool) -> int:
    """Remove images; never one that a run needs which has not ended."""
    import time

    from hpcml.commands import images as act
    from hpcml.images import inventory
    from hpcml.report.text import size

    if bool(keys) == (older_than is not None):
        raise click.UsageError("say which images: KEY..., or --older-than AGE for those that are not used")
    where, places = given
    cache, now = where.cache(), time.time()
    stocked = act.stock(cache, places)
    chosen = act.choose(stocked, keys) if older_than is None else act.may_go(stocked, older_than, now=now)
    if dry_run:
        _tell(chosen)
        return 0
    if (chosen or older_than is None) and not _remove(cache, chosen, yes=yes):
        return 1
    if older_than is not None:
        say(f"{size(inventory.sweep(cache))} of leftovers and downloads removed")
    return 0


@images.command()
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@click.pass_obj
def verify(given: _WhereAndPlaces, keys: tuple[str, ...]) -> int:
    """Read images to the last byte and compare their SHA-256; the exit code is 1 if one has changed."""
    from hpcml.commands import images as act

    where, places = given
    is_bad = False
    for record, wrong in act.verify(where.cache(), keys, places):
        say(f"{record.key[:12]}  {record.base}  {wrong or 'as it was built'}")
        is_bad = is_bad or wrong is not None
    return 1 if is_bad else 0


@images.command()
@click.argument("key")
@click.argument("file", metavar="FILE.sif", type=click.Path(path_type=Path))
@click.pass_obj
def export(given: _WhereAndPlaces, key: str, file: Path) -> None:
    """Copy an image into FILE.sif and its record into FILE.json, for a site without a network."""
    from hpcml.images import inventory

    cache = given[0].cache()
    record = cache.get(key)
    with _bytes_shown(str(file)) as on_bytes:
        inventory.export(cache, record, file, on_bytes=on_bytes)
    say(f"wrote {file} and {file.stem}.json: {record.key[:12]}  {record.base}; there: hpcml images import {file.name}")


@images.command("import")
@click.argument("file", metavar="FILE.sif", type=click.Path(path_type=Path))
@click.pass_obj
def import_(given: _WhereAndPlaces, file: Path) -> None:
    """Take FILE.sif, with its record FILE.json, into the cache, if it has arrived as it was sent."""
    from hpcml.images import inventory

    with _bytes_shown(str(file)) as on_bytes:
        record = inventory.bring_in(given[0].cache(), file, on_bytes=on_bytes)
    say(f"{record.key[:12]}  {record.base}  {record.path}")


def _remove(cache: Cache, chosen: list[Stocked], *, yes: bool) -> bool:
    from hpcml.cli.terminal import confirm
    from hpcml.images import inventory

    inventory.refuse_needed(chosen)  # before a question is asked
    _tell(chosen)
    count = f"{len(chosen)} image{'s' if len(chosen) != 1 else ''}"
    if not yes and not confirm(f"Remove {count}?", otherwise="-y removes without a question"):
        say("nothing was removed", err=True)
        return False
    inventory.remove(cache, chosen)
    return True


def _tell(chosen: list[Stocked]) -> None:
    from hpcml.report.text import size

    for item in chosen:
        say(f"{item.record.key[:12]}  {item.record.base}  {size(item.record.size_bytes)}")
    if not chosen:
        say("nothing to remove", err=True)


@contextmanager
def _bytes_shown(what: str) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from hpcml.report.text import safe

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        task = bars.add_task(safe(what), total=None)
        yield lambda count: bars.advance(task, count)
