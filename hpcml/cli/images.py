"""``hpcml images``: list, remove, verify, export and import images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcml.cli.options import CommandGroup, form
from hpcml.cli.say import say
from hpcml.paths import Places

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
    if context.invoked_subcommand is None:
        _list(where.cache(), context.find_object(Places), form)
    context.obj = where, context.find_object(Places)


def _list(cache: Cache, places: Places | None, form: str | None) -> None:
    import time

    from hpcml.cli.terminal import console, show
    from hpcml.commands import images as act
    from hpcml.report import images as report

    assert places is not None
    listed = [(item.record, item.uses, item.is_whole) for item in act.stock(cache, places)]
    if form == "json":
        say(report.images_json(listed), nl=False)
    elif listed:
        show(report.images_table(listed, console=console(), now=time.time()))
        say(f"{report.total(listed)} in {cache.root}; what each build printed: KEY.log there", err=True)
    else:
        say(f"no images in {cache.root}", err=True)


_WhereAndPlaces = tuple[_Where, Places]


@images.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def rm(given: _WhereAndPlaces, keys: tuple[str, ...], *, yes: bool) -> int:
    """Remove images; never one that a run needs which has not ended."""
    from hpcml.commands import images as act

    where, places = given
    cache = where.cache()
    return 0 if _remove(cache, act.choose(act.stock(cache, places), keys), yes=yes) else 1


@images.command()
@click.option("--older-than", default="30d", show_default=True, metavar="AGE", help="Unused for so long: 30d, 12h, 0.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would go.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def prune(given: _WhereAndPlaces, older_than: str, *, dry_run: bool, yes: bool) -> int:
    """Remove images that no run has used for long, what dead builds left, and downloaded layers."""
    import time

    from hpcml.commands import images as act
    from hpcml.report.text import size

    where, places = given
    cache = where.cache()
    stocked, now = act.stock(cache, places), time.time()
    chosen = act.may_go(stocked, older_than, now=now)
    if dry_run:
        _tell(chosen)
        return 0
    if chosen and not _remove(cache, chosen, yes=yes):
        return 1
    say(f"{size(act.sweep(cache))} of leftovers and downloads removed")
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
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_obj
def export(given: _WhereAndPlaces, key: str, file: Path) -> None:
    """Write an image and its record into FILE, for a site without a network."""
    from hpcml.commands import images as act

    with _bytes_shown(str(file)) as on_bytes:
        record = act.export(given[0].cache(), key, file, on_bytes=on_bytes)
    say(f"wrote {file}: {record.key[:12]}  {record.base}; there: hpcml images import {file.name}")


@images.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_obj
def import_(given: _WhereAndPlaces, file: Path) -> None:
    """Take an exported image into the cache, if it has arrived as it was sent."""
    from hpcml.commands import images as act

    with _bytes_shown(str(file)) as on_bytes:
        record = act.bring_in(given[0].cache(), file, on_bytes=on_bytes)
    say(f"{record.key[:12]}  {record.base}  {record.path}")


def _remove(cache: Cache, chosen: list[Stocked], *, yes: bool) -> bool:
    from hpcml.cli.terminal import confirm
    from hpcml.commands import images as act

    act.refuse_needed(chosen)  # before a question is asked
    _tell(chosen)
    count = f"{len(chosen)} image{'s' if len(chosen) != 1 else ''}"
    if not yes and not confirm(f"Remove {count}?", otherwise="-y removes without a question"):
        say("nothing was removed", err=True)
        return False
    act.remove(cache, chosen)
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
