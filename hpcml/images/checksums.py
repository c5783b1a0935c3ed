"""SHA-256 sums of files that were read once, good for as long as the files are the ones that were read.

Which they are is told by inode, size, time of change and time of change of the inode (ctime), which no program can set
back. What a disk does to a file behind the kernel's back is not seen so: `hpcml images verify` reads every byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcml.images.cache import sha256_of

# A file that was changed this shortly before it is read may be changed again within the same tick of the clock of its
# file system, and the clocks of two hosts differ.
_YOUNG_S = 60.0


@dataclass(frozen=True, slots=True)
class Checksums:
    """What was read, remembered in *folder*: one small file for each file that was read."""

    folder: Path
    young_s: float = _YOUNG_S

    def recall(self, path: Path) -> str | None:
        """Return the SHA-256 of *path* if it was taken before and the file is still the same; raises `OSError`."""
        now = _fingerprint(path)
        try:
            words = json.loads(self._note(path).read_text(encoding="utf-8"))
            return str(words["sha256"]) if words["fingerprint"] == now and words["path"] == str(path) else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def take(self, path: Path) -> str:
        """Read the whole file, remember its SHA-256 and return it; raises `OSError` if the file cannot be read."""
        before, began = _fingerprint(path), time.time()
        digest = sha256_of(path)
        is_old = began - path.stat().st_ctime > self.young_s
        if is_old and _fingerprint(path) == before:
            self._remember(path, {"path": str(path), "fingerprint": before, "sha256": digest})
        else:
            self.forget(path)
        return digest

    def forget(self, path: Path) -> None:
        """Have it read again the next time."""
        with suppress(OSError):
            self._note(path).unlink(missing_ok=True)

    def _note(self, path: Path) -> Path:
        return self.folder / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"

    def _remember(self, path: Path, words: dict[str, object]) -> None:
        note = self._note(path)
        draft = note.with_name(f".{note.name}-{socket.gethostname()}-{os.getpid()}")
        with suppress(OSError):  # then it is read again the next time
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                draft.write_text(json.dumps(words) + "\n", encoding="utf-8")
                draft.replace(note)
            finally:
                draft.unlink(missing_ok=True)


def _fingerprint(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
