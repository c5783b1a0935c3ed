"""The stock of images: which runs of this home use them, which may go, and how they are exported and imported."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from hpcml.codec import decode, encode
from hpcml.errors import ConfigError, ImageError
from hpcml.images.cache import Cache, remove_tree, sha256_of
from hpcml.model.image import FORMAT, ImageRecord, ImageUse, key_of
from hpcml.runs import lock as locks
from hpcml.runs.atomic import creating
from hpcml.runs.private import make_folder, make_home

_RECORD, _IMAGE = "record.json", "image.sif"  # the members of an exported image, in this order
_MOST_RECORD_BYTES = 4 << 20


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


def export(cache: Cache, record: ImageRecord, target: Path, *, on_bytes: Callable[[int], None]) -> None:
    """Write an image with its record into the new tar file *target*.

    The archive has two members, in this order: ``record.json`` and ``image.sif``. *on_bytes* is called with the number
    of bytes each time some were read. Raises `ImageError` where the image is damaged, or *target* exists or cannot be
    written; then there is no *target*.
    """
    _refuse_target(target)
    if wrong := cache.verify(record):
        raise ImageError(f"image {record.key[:12]} {wrong}: it is not exported; hpcml images rm it and build it again")
    words = json.dumps({"format": FORMAT, **encode(record)}, indent=2).encode()
    try:
        with creating(target) as draft, tarfile.open(draft, "w") as archive:
            _add(archive, _RECORD, len(words), io.BytesIO(words))
            with Path(record.path).open("rb") as file:
                _add(archive, _IMAGE, record.size_bytes, _Counted(file, on_bytes))
    except OSError as error:
        hint = ": choose a place with room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise ImageError(f"{target} cannot be written: {error.strerror}{hint}") from error


def _refuse_target(target: Path) -> None:
    """Raise `ImageError` for a *target* that cannot be written, before gigabytes are read for it."""
    if target.exists():
        raise ImageError(f"{target} exists: choose another name")
    if not target.parent.is_dir():
        raise ImageError(f"{target} cannot be written: there is no folder {target.parent}")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise ImageError(f"{target} cannot be written: {os.strerror(errno.EACCES)}")


def bring_in(cache: Cache, source: Path, *, on_bytes: Callable[[int], None]) -> ImageRecord:
    """Take an exported image from the tar file *source* into the cache; return its record.

    An image that is present already stays. *on_bytes* is called with the number of bytes each time some were read. The
    image's SHA-256 is compared with the recorded one before anybody sees it. Raises `ImageError` for other files,
    damaged images, too little room, and where the same image is being built; then the cache is as it was.
    """
    try:
        with tarfile.open(source, "r:") as archive:
            record = _record_in(archive, source)
            found = cache.find(record.key)
            if found is not None:
                return found
            return _unpack(archive, record, cache, source, on_bytes)
    except tarfile.TarError as error:
        raise ImageError(
            f"{source} is no image that hpcml exported ({error}), or was cut short: copy it again"
        ) from error
    except OSError as error:
        raise ImageError(f"{error.filename or cache.root}: {error.strerror}; nothing was imported") from error


def _locked(cache: Cache, key: str) -> locks.Lock:
    try:
        make_home(cache.root)
        held = locks.try_lock(cache.locks, key)
    except OSError as error:
        raise ImageError(f"{cache.locks} cannot be written: {error.strerror} (whose is it?)") from error
    if isinstance(held, locks.Owner):
        raise ImageError(f"image {key[:12]} is being built by {held}: try again later")
    return held


def _unpack(
    archive: tarfile.TarFile, record: ImageRecord, cache: Cache, source: Path, on_bytes: Callable[[int], None]
) -> ImageRecord:
    free = shutil.disk_usage(_nearest(cache.root)).free
    if free < record.size_bytes:
        raise ImageError(f"{cache.root} has not the {record.size_bytes} bytes that the image in {source} needs")
    held = _locked(cache, record.key)
    folder = cache.building(record.key)
    with locks.kept_alive(held):
        try:
            make_folder(folder)
            member = archive.getmember(_IMAGE)
            content = archive.extractfile(member) if member.isreg() else None
            if content is None:
                raise ImageError(f"{source} holds no image")
            image = folder / _IMAGE
            with image.open("xb") as file:
                shutil.copyfileobj(_Counted(content, on_bytes), file, 4 << 20)
            if sha256_of(image) != record.sha256:
                raise ImageError(f"the image in {source} has changed on its way: its SHA-256 is another; copy it again")
            now = datetime.now(UTC).astimezone().isoformat(timespec="seconds")
            return cache.adopt(image, replace(record, imported_at=now))
        except KeyError:
            raise ImageError(f"{source} holds no image") from None
        finally:
            remove_tree(folder)


def _record_in(archive: tarfile.TarFile, source: Path) -> ImageRecord:
    try:
        member = archive.getmember(_RECORD)
        content = archive.extractfile(member) if member.isreg() and member.size <= _MOST_RECORD_BYTES else None
        raw = json.load(content) if content is not None else {}
        form = raw.pop("format", None)
        if form != FORMAT:
            raise ImageError(f"{source} has format {form!r}; this hpcml reads format {FORMAT}")
        record = decode(ImageRecord, raw)
    except (KeyError, ValueError, TypeError, AttributeError, ConfigError) as error:
        raise ImageError(f"{source} is no image that hpcml exported: {error}") from error
    assert isinstance(record, ImageRecord)
    if record.key != key_of(record.definition, record.base_digest, record.architecture, record.files):
        raise ImageError(f"{source}: its key is not that of its definition: it was changed, or made by hand")
    return record


def _add(archive: tarfile.TarFile, name: str, size: int, content: io.BufferedIOBase | _Counted) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    archive.addfile(member, content)


class _Counted:
    """A file that says how much was read of it."""

    def __init__(self, file: object, on_bytes: Callable[[int], None]) -> None:
        self._file = file
        self._on_bytes = on_bytes

    def read(self, size: int = -1) -> bytes:
        """Read on."""
        content = self._file.read(size)  # type: ignore[attr-defined]
        self._on_bytes(len(content))
        assert isinstance(content, bytes)
        return content


def _looks_whole(record: ImageRecord) -> bool:
    try:
        status = Path(record.path).stat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (record.size_bytes, record.mtime_ns)


def _nearest(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())
