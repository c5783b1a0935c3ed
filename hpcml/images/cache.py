"""The folder of built images (`Cache`), and remembered SHA-256 sums of image files (`Checksums`).

Each image is stored under the key of its definition (images/key.py), and is visible only once it is complete: the
record is written last. `hpcml images` and submissions use it. The folder has these entries:

    KEY.sif  KEY.def  KEY.json   an image, its definition, and its record
    KEY.log                      all that its build printed
    locks/                       of builds in progress
    uses/                        which home directories use which images
    failed/KEY.log               the output of a failed build
    .layers/                     downloaded layers
    .building-KEY-HOST-PID/      a build in progress

`Checksums` recognizes a file that has not changed by inode, size, time of change and time of change of the inode
(ctime), which no program can set back. Changes by a failing disk are not noticed so: `hpcml images verify` reads every
byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.codec import decode, encode
from hpcml.errors import ConfigError, ImageError
from hpcml.images.key import FORMAT, key_of
from hpcml.model.image import ImageRecord
from hpcml.model.record_keys import unix_time
from hpcml.runs import lock as locks
from hpcml.runs.atomic import is_forgotten, sync, write_text
from hpcml.runs.files import open_folders, read_json
from hpcml.runs.liveness import Liveness, ProcessIdentity, liveness_of
from hpcml.runs.private import make_folder

_CHUNK = 4 << 20
_KEY = re.compile(r"[0-9a-f]{32}")
_DRAFT = re.compile(r"\.(?:[0-9a-f]{32}\.(?:json|def)|probe)[.-]")  # there for milliseconds
_BUILDING = re.compile(r"\.?building-(?P<key>[0-9a-f]{32})-(?P<host>.+)-(?P<pid>\d+)")


def locate(environ: Mapping[str, str], *, chosen: str | None = None, site: str | None = None) -> Path:
    """Return the folder for images: *chosen*, then HPCML_IMAGES, then *site* (the cluster's scratch, default $SCRATCH).

    Nothing is created. Raises `ConfigError` where only a place in the home directory is left, since one image (10 GB)
    fills most quotas.
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
    """The images in the folder *root*, which need not exist yet.

    Several processes and users may use it at once. Its methods take no locks: `build.build` and `inventory.remove` hold
    the lock of an image while they change it.
    """

    root: Path

    @property
    def locks(self) -> Path:
        """The locks of builds in progress."""
        return self.root / "locks"

    @property
    def layers(self) -> Path:
        """Downloaded layers, so that an interrupted build need not download them again."""
        return self.root / ".layers"

    @property
    def archives(self) -> Path:
        """Images of Dockerfiles, until Apptainer has taken them in."""
        return self.layers / "archives"

    def image(self, key: str) -> Path:
        """The image file of *key*."""
        return self.root / f"{key}.sif"

    def definition(self, key: str) -> Path:
        """The definition that the image was built from."""
        return self.root / f"{key}.def"

    def record(self, key: str) -> Path:
        """The record of the image; written last, so that an image without one does not count as present."""
        return self.root / f"{key}.json"

    def failure(self, key: str) -> Path:
        """The output of the last build, if it failed."""
        return self.root / "failed" / f"{key}.log"

    def log(self, key: str) -> Path:
        """All that the build of the image printed; not there for one that was imported."""
        return self.root / f"{key}.log"

    def building(self, key: str) -> Path:
        """The folder in which this process builds the image."""
        process = ProcessIdentity.of_this_process()
        return self.root / f".building-{key}-{process.host}-{process.pid}"

    def find(self, key: str) -> ImageRecord | None:
        """Return the record of an image if its file is as recorded, else None.

        The file must have the recorded size and time. Where only its time has changed, its SHA-256 is computed again
        (which reads the whole file), and on success the record gets the new time, if this user may write it.
        """
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
        """Return the record of an image, without looking at its file; None where there is none that can be read.

        A record in another format than this version's counts as none. Its `path` is where the cache is now.
        """
        try:
            raw = read_json(self.record(key))
            if raw.pop("format") != FORMAT:
                return None
            found = decode(ImageRecord, raw)
        except (OSError, ValueError, AttributeError, KeyError, TypeError, ConfigError):
            return None
        assert isinstance(found, ImageRecord)
        if any(unix_time(moment) is None for moment in (found.built_at, found.imported_at or found.built_at)):
            return None
        return replace(found, path=str(self.image(key)))  # the folder may have been moved

    def records(self) -> list[ImageRecord]:
        """Return the records of all images, oldest first."""
        keys = [path.stem for path in self.root.glob("*.json") if _KEY.fullmatch(path.stem)]
        found = [record for record in map(self.read, keys) if record is not None]
        return sorted(found, key=lambda record: record.built_at)

    def get(self, reference: str) -> ImageRecord:
        """Return the one image whose key begins with *reference*; raise `ImageError` for none or several."""
        found = [record for record in self.records() if record.key.startswith(reference)]
        if len(found) != 1 or not reference:
            what = "more than one image" if found else "no image"
            raise ImageError(f"{what} in {self.root} has a key that begins with {reference!r}: hpcml images lists them")
        return found[0]

    def verify(self, record: ImageRecord, checksum: Callable[[Path], str] | None = None) -> str | None:
        """Return what is wrong with the image, or None; *checksum* computes the SHA-256 (default: `sha256_of`).

        The whole file is read. The answer continues a sentence that begins with the name of the image: "has 12 bytes
        instead of 4096".
        """
        path = Path(record.path)
        if record.key != key_of(record.definition, record.base_digest, record.architecture, record.files):
            return "its record is not of its definition"
        try:
            size_bytes = path.stat().st_size
            actual = (checksum or sha256_of)(path)
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        if size_bytes != record.size_bytes:
            return f"has {size_bytes} bytes instead of {record.size_bytes}"
        return None if actual == record.sha256 else f"has SHA-256 {actual[:12]}... instead of {record.sha256[:12]}..."

    def adopt(self, image: Path, record: ImageRecord, log: Path | None = None) -> ImageRecord:
        """Move the finished file *image* into the cache, and return its final record.

        *log* is moved beside it. Both must be on the same file system, and the caller must hold the lock of the image.
        The image is written to disk (fsync) first. On failure there may be an image file without a record, which counts
        as absent. Raises `OSError`.
        """
        self.record(record.key).unlink(missing_ok=True)  # of a broken one: never a record beside another's file
        sync(image)
        image.chmod(0o644)
        image.replace(self.image(record.key))  # not by `replacing`: it was built in a folder of its own
        final = replace(record, path=str(self.image(record.key)), mtime_ns=self.image(record.key).stat().st_mtime_ns)
        write_text(self.definition(record.key), record.definition, durable=True, permissions=0o644)
        if log is not None:
            log.replace(self.log(record.key))
        self._write_record(final)
        return final

    def remove(self, key: str) -> None:
        """Remove an image and its records; the record goes first, so that nobody sees it half removed.

        Files that are absent already are no error. Raises `OSError`.
        """
        self.record(key).unlink(missing_ok=True)
        self.image(key).unlink(missing_ok=True)
        self.definition(key).unlink(missing_ok=True)
        self.failure(key).unlink(missing_ok=True)
        self.log(key).unlink(missing_ok=True)

    def leftovers(self, elsewhere: Path | None = None) -> Iterator[Path]:
        """Yield what builds that died have left: their folders, and image files without a record.

        *elsewhere* is a folder of temporary files that builds for other caches use too: there, a folder counts only if
        its process is certainly dead.
        """
        folders = list(self.root.glob(".building-*"))
        drafts = [path for path in self.root.glob(".*") if _DRAFT.match(path.name) and is_forgotten(path)]
        files = [path for suffix in ("sif", "def", "log") for path in self.root.glob(f"*.{suffix}")]
        # Who is at work is asked after what there is: whatever a living builder has made, it has made under its lock.
        held = {name: owner for name, owner in locks.owners(self.locks).items() if not owner.is_gone}
        for path in folders:
            match = _BUILDING.fullmatch(path.name)
            holder = held.get(match["key"]) if match else None
            by = None if holder is None else (holder.process.host, str(holder.process.pid))
            if match and by != (match["host"], match["pid"]):
                yield path
        for path in elsewhere.glob("building-*") if elsewhere else ():
            match = _BUILDING.fullmatch(path.name)
            if match and _is_dead(match["host"], match["pid"]):
                yield path
        for path in files:
            if _KEY.fullmatch(path.stem) and path.stem not in held and not self.record(path.stem).exists():
                yield path
        yield from drafts

    def _write_record(self, record: ImageRecord) -> None:
        words = json.dumps({"format": FORMAT, **encode(record)}, indent=2) + "\n"
        write_text(self.record(record.key), words, durable=True, permissions=0o644)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hex digits; raise `OSError` where it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def remove_tree(path: Path) -> bool:
    """Remove a file or folder, also with files of other user ids as fakeroot leaves them; return whether it is gone.

    What does not exist counts as gone, and of a link only the link goes. What plain removal leaves is tried again with
    all folders made writable, and then within a user namespace (``unshare --map-auto`` of util-linux 2.38), where it is
    there.
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return True
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        open_folders(path)
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():  # util-linux 2.38: the range of user ids that was written with
        words = ["unshare", "--map-root-user", "--map-auto", "rm", "-rf", "--", str(path)]
        with suppress(OSError):
            subprocess.run(words, capture_output=True, env={"PATH": os.defpath}, check=False)
    return not path.exists()


def scratch_name(key: str) -> str:
    """Return the name of the folder for this build's temporary files; it identifies this process.

    So a later build can tell whether the process that made the folder has died (`Cache.leftovers`).
    """
    process = ProcessIdentity.of_this_process()
    return f"building-{key}-{process.place}-{process.pid}"


def _is_dead(host: str, pid: str) -> bool:
    """Tell whether the process that a folder of temporary files is named after has certainly died."""
    return liveness_of(ProcessIdentity.at(host, int(pid))) is Liveness.DEAD


# A file that was changed this shortly before it is read may be changed again within the same tick of the clock of its
# file system, and the clocks of two hosts differ.
_YOUNG_S = 60.0


@dataclass(frozen=True, slots=True)
class Checksums:
    """SHA-256 sums that were computed before, one small file for each in *folder*.

    *young_s* is the age in seconds below which a file's sum is not remembered. A sum that cannot be written is no
    error: the file is read again the next time.
    """

    folder: Path
    young_s: float = _YOUNG_S

    def recall(self, path: Path) -> str | None:
        """Return the remembered SHA-256 of *path* if the file has not changed since, else None; may raise `OSError`."""
        now = _fingerprint(path)
        try:
            words = read_json(self._note(path))
            return str(words["sha256"]) if words["fingerprint"] == now and words["path"] == str(path) else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def take(self, path: Path) -> str:
        """Read *path*, remember its SHA-256 and return it; raise `OSError` where it cannot be read.

        A file that changed in the last *young_s* seconds is not remembered: it could change again without a new time.
        """
        before, began = _fingerprint(path), time.time()
        digest = sha256_of(path)
        is_old = began - path.stat().st_ctime > self.young_s
        if is_old and _fingerprint(path) == before:
            self._remember(path, {"path": str(path), "fingerprint": before, "sha256": digest})
        else:
            self.forget(path)
        return digest

    def forget(self, path: Path) -> None:
        """Forget the sum of *path*, so that it is computed again; nothing happens where none is remembered."""
        with suppress(OSError):
            self._note(path).unlink(missing_ok=True)

    def _note(self, path: Path) -> Path:
        return self.folder / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"

    def _remember(self, path: Path, words: dict[str, object]) -> None:
        with suppress(OSError):  # then it is read again the next time
            make_folder(self.folder, parents=True)
            write_text(self._note(path), json.dumps(words) + "\n")


def _fingerprint(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
