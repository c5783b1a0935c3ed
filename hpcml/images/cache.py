"""The folder of images: each under the key of its definition, visible once it is whole, never half."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml import lease
from hpcml.codec import decode, encode
from hpcml.errors import ConfigError, ImageError
from hpcml.image import FORMAT, ImageRecord, key_of

_CHUNK = 4 << 20
_KEY = re.compile(r"[0-9a-f]{32}")
_DRAFT = re.compile(r"\.(?:[0-9a-f]{32}\.(?:json|def)|probe)-(?P<host>.+)-(?P<pid>\d+)")  # there for milliseconds
_DRAFT_S = 3600.0  # after which one of another host is nobody's any more
_BUILDING = re.compile(r"\.?building-(?P<key>[0-9a-f]{32})-(?P<host>.+)-(?P<pid>\d+)")


def locate(environ: Mapping[str, str], *, chosen: str | None = None, site: str | None = None) -> Path:
    """Return where images are kept: *chosen*, then HPCML_IMAGES, then *site*, the scratch of a cluster.

    Nothing is created. A home is taken only if somebody has named it: one image fills the quota of most.
    """
    if named := chosen or environ.get("HPCML_IMAGES"):
        return Path(_expanded(named, environ)).expanduser().absolute()
    scratch = _expanded(site or "$SCRATCH", environ)
    home = environ.get("HOME")
    hint = "set HPCML_IMAGES to a folder with room for images of 10 GB each, which your jobs see"
    if "$" in scratch:
        raise ConfigError(
            f"no place for images: {'the scratch is ' + site + ', which' if site else scratch} is not set; {hint}"
        )
    place = (Path(scratch) / "hpcml-images").absolute()
    if home and place.resolve().is_relative_to(Path(home).resolve()):
        raise ConfigError(f"no place for images but {place}, which is in your home: {hint}")
    return place


def _expanded(text: str, environ: Mapping[str, str]) -> str:
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: environ.get(match[1] or match[2]) or match[0], text)


@dataclass(frozen=True, slots=True)
class Cache:
    """The images in *root*, which need not exist yet."""

    root: Path

    @property
    def locks(self) -> Path:
        """Who builds what."""
        return self.root / "locks"

    @property
    def claims(self) -> Path:
        """Which homes use which images."""
        return self.root / "uses"

    @property
    def layers(self) -> Path:
        """What has been downloaded: a build that was interrupted goes on from there."""
        return self.root / ".layers"

    def image(self, key: str) -> Path:
        """The image itself."""
        return self.root / f"{key}.sif"

    def definition(self, key: str) -> Path:
        """What it was built from."""
        return self.root / f"{key}.def"

    def record(self, key: str) -> Path:
        """What is known of it; written last, so that an image without one is not there."""
        return self.root / f"{key}.json"

    def failure(self, key: str) -> Path:
        """What the last build printed, if it failed."""
        return self.root / "failed" / f"{key}.log"

    def building(self, key: str) -> Path:
        """Where this process builds."""
        owner = lease.Owner.ourselves()
        return self.root / f".building-{key}-{owner.host}-{owner.pid}"

    def find(self, key: str) -> ImageRecord | None:
        """Return the image if it is there and as it was recorded; its SHA-256 is taken again only if it was touched."""
        found = self.read(key)
        if found is None:
            return None
        try:
            status = Path(found.path).stat()
        except OSError:
            return None
        if status.st_size != found.size_bytes:
            return None
        if status.st_mtime_ns == found.mtime_ns:
            return found
        if sha256_of(Path(found.path)) != found.sha256:
            return None
        touched = replace(found, mtime_ns=status.st_mtime_ns)
        with suppress(OSError):  # somebody else's cache
            self._write_record(touched)
        return touched

    def read(self, key: str) -> ImageRecord | None:
        """Return what is recorded of an image, whatever has become of its file."""
        try:
            raw = json.loads(self.record(key).read_text(encoding="utf-8"))
            if raw.pop("format") != FORMAT:
                return None
            found = decode(ImageRecord, raw)
        except (OSError, ValueError, AttributeError, KeyError, TypeError, ConfigError):
            return None
        assert isinstance(found, ImageRecord)
        return replace(found, path=str(self.image(key)))  # the folder may have been moved

    def records(self) -> list[ImageRecord]:
        """Return what is recorded of all images, oldest first."""
        keys = [path.stem for path in self.root.glob("*.json") if _KEY.fullmatch(path.stem)]
        found = [record for record in map(self.read, keys) if record is not None]
        return sorted(found, key=lambda record: record.built_at)

    def get(self, reference: str) -> ImageRecord:
        """Return the one image whose key begins with *reference*."""
        found = [record for record in self.records() if record.key.startswith(reference)]
        if len(found) != 1 or not reference:
            what = "more than one image" if found else "no image"
            raise ImageError(f"{what} in {self.root} has a key that begins with {reference!r}: hpcml images lists them")
        return found[0]

    def verify(self, record: ImageRecord, checksum: Callable[[Path], str] | None = None) -> str | None:
        """Return what is wrong with the image, or None; *checksum* is asked for its SHA-256, or all of it is read."""
        path = Path(record.path)
        if record.key != key_of(record.definition, record.base_digest, record.architecture):
            return "its record is not of its definition"
        try:
            size_bytes = path.stat().st_size
            actual = (checksum or sha256_of)(path)
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        if size_bytes != record.size_bytes:
            return f"has {size_bytes} bytes instead of {record.size_bytes}"
        return None if actual == record.sha256 else f"has SHA-256 {actual[:12]}... instead of {record.sha256[:12]}..."

    def adopt(self, image: Path, record: ImageRecord) -> ImageRecord:
        """Make the finished file *image*, on this file system, visible as what *record* says; return the record."""
        self.record(record.key).unlink(missing_ok=True)  # of a broken one: never a record beside another's file
        with image.open("rb") as file:
            os.fsync(file.fileno())
        image.chmod(0o644)
        image.replace(self.image(record.key))
        final = replace(record, path=str(self.image(record.key)), mtime_ns=self.image(record.key).stat().st_mtime_ns)
        _write(self.definition(record.key), record.definition)
        self._write_record(final)
        return final

    @contextmanager
    def hidden(self, key: str) -> Iterator[None]:
        """Let nobody find an image; it is back after an exception."""
        record = self.record(key)
        away = draft_of(record, record.name)
        record.rename(away)
        try:
            yield
        except BaseException:
            away.rename(record)
            raise
        away.unlink(missing_ok=True)

    def remove(self, key: str) -> None:
        """Remove an image; nobody sees it half removed."""
        self.record(key).unlink(missing_ok=True)
        self.image(key).unlink(missing_ok=True)
        self.definition(key).unlink(missing_ok=True)
        self.failure(key).unlink(missing_ok=True)
        for path in self.claims.glob(f"{key}.*.json"):
            with suppress(OSError):  # somebody else's, in a folder where each removes their own
                path.unlink(missing_ok=True)

    def leftovers(self, elsewhere: Path | None = None) -> Iterator[Path]:
        """Yield what builds that died have left: their folders, and images that were never recorded.

        *elsewhere* is where their temporary files are kept, of builds for other caches, too: there, a folder counts
        only if its process is gone from this host.
        """
        folders = list(self.root.glob(".building-*"))
        drafts = [path for path in self.root.glob(".*") if _is_forgotten_draft(path)]
        files = [path for suffix in ("sif", "def") for path in self.root.glob(f"*.{suffix}")]
        # Who is at work is asked after what there is: whatever a living builder has made, it has made under its lock.
        held = {name: owner for name, owner in lease.owners(self.locks).items() if not owner.is_gone}
        for path in folders:
            match = _BUILDING.fullmatch(path.name)
            holder = held.get(match["key"]) if match else None
            if match and (holder is None or (holder.host, str(holder.pid)) != (match["host"], match["pid"])):
                yield path
        for path in elsewhere.glob("building-*") if elsewhere else ():
            match = _BUILDING.fullmatch(path.name)
            if match and match["host"] == socket.gethostname() and not Path(f"/proc/{match['pid']}").exists():
                yield path
        for path in files:
            if _KEY.fullmatch(path.stem) and path.stem not in held and not self.record(path.stem).exists():
                yield path
        yield from drafts

    def _write_record(self, record: ImageRecord) -> None:
        _write(self.record(record.key), json.dumps({"format": FORMAT, **encode(record)}, indent=2) + "\n")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def remove_tree(path: Path) -> bool:
    """Remove a file, or a folder with files of other owners, as a pretended root leaves it; tell whether it went."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return True
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        _open_folders(path)
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():  # util-linux 2.38: the range of user ids that was written with
        words = ["unshare", "--map-root-user", "--map-auto", "rm", "-rf", "--", str(path)]
        with suppress(OSError):
            subprocess.run(words, capture_output=True, env={"PATH": os.defpath}, check=False)
    return not path.exists()


def _open_folders(path: Path) -> None:
    for folder, _, _ in os.walk(path, onerror=None):
        with suppress(OSError):
            Path(folder).chmod(0o700)


def draft_of(path: Path, name: str) -> Path:
    """Return a name beside *path* for what this process has for a moment; if it is killed then, others clean up."""
    return path.with_name(f".{name}-{socket.gethostname()}-{os.getpid()}")


def _is_forgotten_draft(path: Path) -> bool:
    match = _DRAFT.fullmatch(path.name)
    if match is None:
        return False
    if match["host"] == socket.gethostname():
        return not Path(f"/proc/{match['pid']}").exists()
    try:
        return time.time() - path.stat().st_mtime > _DRAFT_S
    except OSError:
        return False


def _write(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all, also after the machine has failed."""
    draft = draft_of(path, path.name)
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
