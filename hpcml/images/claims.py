"""Which homes use an image: each says so beside it, for the folder of images may be shared by several people.

A claim is one small file for each image and home. Its owner alone knows its runs well, and alone takes it back.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcml.images.cache import Cache, draft_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A home that uses an image."""

    key: str
    home: str
    user: str
    at: float  # unix seconds: when it last submitted a run that uses it
    has_ended: bool = False  # its owner has looked since, and all of its runs had ended


def claims_in(cache: Cache, key: str = "*") -> list[Claim]:
    """Return what homes have said of the image *key*, or of all images."""
    return list(_read_all(cache, key))


def claim(cache: Cache, key: str, home: Path, *, at: float, has_ended: bool = False) -> None:
    """Say that runs of *home* use the image *key*; raises `OSError` where that cannot be written."""
    words = asdict(Claim(key=key, home=name_of(home), user=getpass.getuser(), at=at, has_ended=has_ended))
    path = cache.claims / f"{key}.{hashlib.sha256(os.fsencode(name_of(home))).hexdigest()[:16]}.json"
    if not cache.claims.is_dir():
        cache.claims.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # whoever may put images there, may say so: whatever the umask of the first was
            cache.claims.chmod(stat.S_IMODE(cache.root.stat().st_mode))
    draft = draft_of(path, path.name)
    try:
        draft.write_text(json.dumps(words) + "\n", encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def name_of(home: Path) -> str:
    """Return what a home is called, whatever links lead to it."""
    return os.path.realpath(home)


def _read_all(cache: Cache, key: str) -> Iterator[Claim]:
    for path in cache.claims.glob(f"{key}.*.json"):
        if path.name.startswith("."):
            continue
        with suppress(OSError, ValueError, TypeError):
            words = json.loads(path.read_text(encoding="utf-8"))
            found = Claim(**words)
            if isinstance(found.home, str) and isinstance(found.at, int | float):
                yield found
