"""The stock of images: which runs of this home use them, which may go, and how they are exported and imported."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from hpcml.codec import decode, encode
from hpcml.errors import ConfigError, ImageError
from hpcml.images.cache import Cache, remove_tree, sha256_of
from hpcml.images.key import FORMAT, key_of
from hpcml.model.image import ImageRecord, ImageUse
from hpcml.runs import lock as locks
from hpcml.runs.atomic import create_text, creating
from hpcml.runs.private import make_folder, make_home


@dataclass(frozen=True, slots=True, kw_only=True)
class Stocked:
    """An image, with its uses: what `hpcml images` lists, and what decides on its removal."""

    record: ImageRecord
    uses: Sequence[ImageUse]
    is_whole: bool  # whether the file is as it was recorded, by its size and date

    @property
    def needed(self) -> list[ImageUse]:
        """The uses that have not ended."""
        return [use for use in self.uses if not use.has_ended]

    @property
    def last_used_at(self) -> float | None:
        """The time of its last use in unix seconds; None where no use is known."""
        return max((use.at for use in self.uses if use.at is not None), default=None)

    @property
    def idle_since(self) -> float:
        """The time since which nobody has used it, in unix seconds: its last use, or the build or import if later."""
        came = datetime.fromisoformat(self.record.imported_at or self.record.built_at).timestamp()
        return max(came, self.last_used_at or came)


def stock(cache: Cache, uses: Collection[ImageUse]) -> list[Stocked]:
    """Return all images, oldest first; they are looked at, not read: `Cache.verify` computes their sums."""
    return [
        Stocked(
            record=record,
            uses=[use for use in uses if use.key == record.key],
            is_whole=_looks_whole(record),
        )
        for record in cache.records()
    ]


def refuse_needed(chosen: Sequence[Stocked]) -> None:
    """Raise `ImageError` if a run that has not ended needs one of the images."""
    for item in chosen:
        if item.needed:
            more = f" and {len(item.needed) - 1} more" if len(item.needed) > 1 else ""
            raise ImageError(
                f"image {item.record.key[:12]} is needed by run {item.needed[0].uid}{more}, which has not ended: "
                "hpcml cancel it first; nothing was removed"
            )


def remove(cache: Cache, chosen: Sequence[Stocked]) -> None:
    """Remove images; raise `ImageError`, before any is removed, if one is needed.

    Also raises it for an image that is being built, and where a file cannot be removed; then the images before it in
    *chosen* are gone already.
    """
    refuse_needed(chosen)
    for item in chosen:
        held = _locked(cache, item.record.key)
        try:
            cache.remove(item.record.key)
        except OSError as error:
            raise ImageError(f"{error.filename} cannot be removed: {error.strerror} (whose is it?)") from error
        finally:
            held.release()


def may_go(stocked: Sequence[Stocked], *, now: float, older_than_s: float) -> list[Stocked]:
    """Return the images that no open run needs and that were not used for *older_than_s* seconds before *now*.

    *now* is in unix seconds. `hpcml images rm --older-than` removes these.
    """
    return [item for item in stocked if not item.needed and now - item.idle_since >= older_than_s]


def sweep(cache: Cache) -> int:
    """Remove leftovers of dead builds, and the downloaded layers if nobody builds; return the number of bytes freed.

    What cannot be removed stays and is not counted.
    """
    freed = 0
    locks.clear_dead(cache.locks)
    for path in cache.leftovers():
        size_bytes = size_of(path)
        freed += size_bytes if remove_tree(path) else 0
    if not any(not owner.is_gone for owner in locks.owners(cache.locks).values()) and cache.layers.exists():
        size_bytes = size_of(cache.layers)
        freed += size_bytes if remove_tree(cache.layers) else 0
    return freed


def size_of(path: Path) -> int:
    """Return the size in bytes of a file, or of all files in a folder; what cannot be looked at counts as 0."""
    total = 0
    for file in path.rglob("*") if path.is_dir() else (path,):
        with suppress(OSError):
            total += file.lstat().st_size if not file.is_dir() else 0
    return total


def record_beside(image: Path) -> Path:
    """Return where the record of the exported *image* is: ``pytorch.json`` for ``pytorch.sif``."""
    return image.with_suffix(".json")


def export(cache: Cache, record: ImageRecord, target: Path, *, on_bytes: Callable[[int], None]) -> None:
    """Copy an image into the new file *target*, and its record into one beside it (`record_beside`).

    *on_bytes* is called with the number of bytes each time some were written. Raises `ImageError` where the image is
    damaged, or one of the files exists or cannot be written; then there is none of them.
    """
    _require(target.suffix == ".sif", f"{target}: write a name that ends with .sif")
    for path in (target, record_beside(target)):
        _require(not path.exists(), f"{path} exists: choose another name")
    if wrong := cache.verify(record):
        raise ImageError(f"image {record.key[:12]} {wrong}: it is not exported; hpcml images rm it and build it again")
    words = json.dumps({"format": FORMAT, **encode(record)}, indent=2) + "\n"
    try:
        with creating(target) as draft:
            _copy(Path(record.path), draft, on_bytes)
            create_text(record_beside(target), words, permissions=0o644)
    except OSError as error:
        hint = ": choose a place with room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise ImageError(f"{target} cannot be written: {error.strerror}{hint}") from error


def bring_in(cache: Cache, source: Path, *, on_bytes: Callable[[int], None]) -> ImageRecord:
    """Take the exported image *source*, with its record beside it, into the cache; return its record.

    An image that is present already stays. *on_bytes* is called with the number of bytes each time some were read. The
    image's SHA-256 is compared with the recorded one before anybody sees it. Raises `ImageError` for other files,
    damaged images, too little room, and where the same image is being built; then the cache is as it was.
    """
    try:
        record = _record_in(record_beside(source))
        found = cache.find(record.key)
        if found is not None:
            return found
        held = _locked(cache, record.key)
        folder = cache.building(record.key)
        with locks.kept_alive(held):
            try:
                make_folder(folder)
                _copy(source, folder / source.name, on_bytes)
                if sha256_of(folder / source.name) != record.sha256:
                    raise ImageError(f"{source} has changed on its way: its SHA-256 is another; copy it again")
                now = datetime.now(UTC).astimezone().isoformat(timespec="seconds")
                return cache.adopt(folder / source.name, replace(record, imported_at=now))
            finally:
                remove_tree(folder)
    except OSError as error:
        raise ImageError(f"{error.filename or cache.root}: {error.strerror}; nothing was imported") from error


def _copy(source: Path, target: Path, on_bytes: Callable[[int], None]) -> None:
    with source.open("rb") as file, target.open("xb") as copy:
        while chunk := file.read(4 << 20):
            copy.write(chunk)
            on_bytes(len(chunk))


def _locked(cache: Cache, key: str) -> locks.Lock:
    try:
        make_home(cache.root)
        held = locks.try_lock(cache.locks, key)
    except OSError as error:
        raise ImageError(f"{cache.locks} cannot be written: {error.strerror} (whose is it?)") from error
    if isinstance(held, locks.Owner):
        raise ImageError(f"image {key[:12]} is being built by {held}: try again later")
    return held


def _record_in(path: Path) -> ImageRecord:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        form = raw.pop("format", None)
        _require(form == FORMAT, f"{path} has format {form!r}; this hpcml reads format {FORMAT}")
        record = decode(ImageRecord, raw)
    except (ValueError, TypeError, AttributeError, ConfigError) as error:
        raise ImageError(f"{path} is no record of an image that hpcml exported: {error}") from error
    assert isinstance(record, ImageRecord)
    is_its_own = record.key == key_of(record.definition, record.base_digest, record.architecture, record.files)
    _require(is_its_own, f"{path}: its key is not that of its definition: it was changed, or made by hand")
    return record


def _require(holds: bool, what: str) -> None:  # noqa: FBT001 - as errors.require
    """Raise `ImageError` unless it *holds*."""
    if not holds:
        raise ImageError(what)


def _looks_whole(record: ImageRecord) -> bool:
    try:
        status = Path(record.path).stat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (record.size_bytes, record.mtime_ns)
