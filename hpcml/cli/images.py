"""``hpcml images``: list, remove, verify, export and import images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcml.cli.options import CommandGroup, form, print_output
from hpcml.cli.say import say
from hpcml.paths import Places
from hpcml.report.render.forms import Output, document_output

if TYPE_CHECKING:
    from hpcml.images.cache import Cache
    from hpcml.images.inventory import Stocked


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
