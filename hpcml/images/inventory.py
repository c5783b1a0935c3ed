"""What is done with images that are there: which may go, and how they travel."""

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
from datetime import datetime
from pathlib import Path

from hpcml import lease
from hpcml.codec import decode, encode
from hpcml.errors import ConfigError, ImageError
from hpcml.image import FORMAT, ImageRecord, ImageUse, key_of
from hpcml.images.cache import Cache, remove_tree, sha256_of
from hpcml.images.claims import Claim, claims_in

_RECORD, _IMAGE = "record.json", "image.sif"  # the members of an exported image, in this order
_MOST_RECORD_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Stocked:
    """An image and who uses it."""

    record: ImageRecord
    uses: Sequence[ImageUse]
    is_whole: bool  # whether the file is as it was recorded, by its size and date
    claims: Collection[Claim] = ()  # as they were when this was found out

    @property
    def needed(self) -> list[ImageUse]:
        """The uses that have not ended, or are not known to."""
        return [use for use in self.uses if not use.has_ended]

    @property
    def last_used_at(self) -> float | None:
        """When it was last used, in unix seconds; None: never, as far as is known here."""
        return max((use.at for use in self.uses if use.at is not None), default=None)

    @property
    def idle_since(self) -> float:
        """Since when nobody has used it; a new one since it was built or brought here."""
        came = datetime.fromisoformat(self.record.imported_at or self.record.built_at).timestamp()
        return max(came, self.last_used_at or came)


def stock(cache: Cache, uses: Collection[ImageUse], claims: Collection[Claim] = ()) -> list[Stocked]:
    """Return all images, oldest first; *claims* were read before *uses* were found out."""
    return [
        Stocked(
            record=record,
            uses=[use for use in uses if use.key == record.key],
            is_whole=_looks_whole(record),
            claims=[claim for claim in claims if claim.key == record.key],
        )
        for record in cache.records()
    ]


def why_needed(item: Stocked) -> str | None:
    """Return in words who needs an image; None if nobody does. What is certain goes first."""
    needed = sorted(item.needed, key=lambda use: (use.uid is None, use.home is not None))
    if not needed:
        return None
    first, more = needed[0], f" and {len(needed) - 1} more" if len(needed) > 1 else ""
    name = f"image {item.record.key[:12]}"
    if first.uid is not None:
        where, then = (f" of {first.home}", "") if first.home else ("", ": hpcml cancel it first")
        return f"{name} is needed by run {first.uid}{where}{more}, which has not ended{then}"
    if first.home is None:
        return f"{name} is needed by what is being submitted at this moment{more}"
    return (
        f"{name} may be needed by runs of {first.home}{more} (user {first.user}), which cannot be read: ask for "
        "hpcml images there, or use --force"
    )


def refuse_needed(chosen: Sequence[Stocked], *, force: bool = False) -> None:
    """Raise `ImageError` if somebody needs one of the images.

    With *force* what cannot be read is not waited for: a home that is gone would keep its images for ever.
    """
    for item in chosen:
        asked = item if not force else replace(item, uses=[use for use in item.uses if use.uid is not None])
        if why := why_needed(asked):
            raise ImageError(f"{why}; nothing was removed")


def remove(cache: Cache, chosen: Sequence[Stocked], *, force: bool = False) -> None:
    """Remove images; one that somebody needs, or that is being built, refuses all."""
    refuse_needed(chosen, force=force)
    for item in chosen:
        held = _locked(cache, item.record.key)
        try:
            with cache.hidden(item.record.key):  # who claims it from now on sees that it is gone
                if _keys_of(claims_in(cache, item.record.key)) != _keys_of(item.claims):
                    raise ImageError(
                        f"image {item.record.key[:12]}: a run that uses it is being submitted at this moment; "
                        "it was not removed"
                    )
            cache.remove(item.record.key)
        except OSError as error:
            raise ImageError(f"{error.filename} cannot be removed: {error.strerror} (whose is it?)") from error
        finally:
            held.release()


def may_go(stocked: Sequence[Stocked], *, now: float, older_than_s: float) -> list[Stocked]:
    """Return the images that no open run needs and that nobody has used for so long."""
    return [item for item in stocked if not item.needed and now - item.idle_since >= older_than_s]


def sweep(cache: Cache) -> int:
    """Remove what dead builds left, and the downloaded layers if nobody builds; return how many bytes that freed."""
    freed = 0
    lease.clear_dead(cache.locks)
    for path in cache.leftovers():
        size_bytes = size_of(path)
        freed += size_bytes if remove_tree(path) else 0
    if not any(not owner.is_gone for owner in lease.owners(cache.locks).values()) and cache.layers.exists():
        size_bytes = size_of(cache.layers)
        freed += size_bytes if remove_tree(cache.layers) else 0
    return freed


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder that can be seen."""
    total = 0
    for file in path.rglob("*") if path.is_dir() else (path,):
        with suppress(OSError):
            total += file.lstat().st_size if not file.is_dir() else 0
    return total


def export(cache: Cache, record: ImageRecord, target: Path, *, on_bytes: Callable[[int], None]) -> None:
    """Write an image with all that is known of it into the new tar file *target*."""
    _refuse_target(target)
    if wrong := cache.verify(record):
        raise ImageError(f"image {record.key[:12]} {wrong}: it is not exported; hpcml images rm it and build it again")
    draft = target.with_name(f".{target.name}.part")
    words = json.dumps({"format": FORMAT, **encode(record)}, indent=2).encode()
    try:
        with tarfile.open(draft, "w") as archive:
            _add(archive, _RECORD, len(words), io.BytesIO(words))
            with Path(record.path).open("rb") as file:
                _add(archive, _IMAGE, record.size_bytes, _Counted(file, on_bytes))
        draft.rename(target)
    except OSError as error:
        hint = ": choose a place with room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise ImageError(f"{target} cannot be written: {error.strerror}{hint}") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _refuse_target(target: Path) -> None:
    """Notice before an image is read what would be noticed after it."""
    if target.exists():
        raise ImageError(f"{target} exists: choose another name")
    if not target.parent.is_dir():
        raise ImageError(f"{target} cannot be written: there is no folder {target.parent}")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise ImageError(f"{target} cannot be written: {os.strerror(errno.EACCES)}")


def bring_in(cache: Cache, source: Path, *, on_bytes: Callable[[int], None]) -> ImageRecord:
    """Take an exported image into the cache; return its record. One that is here already stays as it is."""
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


def _keys_of(claims: Collection[Claim]) -> set[tuple[str, float]]:
    return {(claim.home, claim.at) for claim in claims}


def _locked(cache: Cache, key: str) -> lease.Lock:
    try:
        held = lease.try_lock(cache.locks, key)
    except OSError as error:
        raise ImageError(f"{cache.locks} cannot be written: {error.strerror} (whose is it?)") from error
    if isinstance(held, lease.Owner):
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
    with lease.kept_alive(held):
        try:
            folder.mkdir(mode=0o700)
            member = archive.getmember(_IMAGE)
            content = archive.extractfile(member) if member.isreg() else None
            if content is None:
                raise ImageError(f"{source} holds no image")
            image = folder / _IMAGE
            with image.open("xb") as file:
                shutil.copyfileobj(_Counted(content, on_bytes), file, 4 << 20)
            if sha256_of(image) != record.sha256:
                raise ImageError(f"the image in {source} has changed on its way: its SHA-256 is another; copy it again")
            now = datetime.now().astimezone().isoformat(timespec="seconds")
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
    if record.key != key_of(record.definition, record.base_digest, record.architecture):
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
