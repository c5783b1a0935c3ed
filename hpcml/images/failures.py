"""Says in one line why a build has failed, from what it printed, and keeps all that it printed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hpcml.errors import ImageError
from hpcml.images.cache import Cache
from hpcml.images.runtime import Runtime
from hpcml.runs.private import make_folder

_FULL = ("No space left on device", "no space left on device", "Disk quota exceeded", "disk quota exceeded")
IMAGES = "HPCML_IMAGES"
NOISE = re.compile(r"^(INFO|WARNING|VERBOSE|DEBUG|ERROR|FATAL)\s*:\s*")
_NO_SUBUID = "User not listed in /etc/subuid"  # Apptainer 1.4.5; %post then has no other rights than the user's own
_NO_FAKEROOT = "could not use fakeroot: no mapping entry"  # Singularity, which builds as a user by that alone
_NO_NAMESPACE = ("user namespace", "unprivileged_userns_clone", "max_user_namespaces")
_MOST_READ = 2000  # characters of one message
# Of a download that broke off, as Apptainer 1.4.5 says it
_BROKE_OFF = re.compile(
    r"conveyor failed to get: (.*(?:unexpected EOF|sha256 checksum|connection reset|[Tt]imeout|timed out).*)"
)
_SECTION_FAILED = re.compile(  # SingularityCE does not name the section
    r"(?:while running engine: (?:while running %post section: )?|failed to execute %(test) script: )exit status (\d+)"
)


def explain(lines: Sequence[str], code: int, written: Mapping[Path, str], runtime: Runtime) -> ImageError:
    """Return the error that says in one line why a build failed, as far as its last *lines* of output tell.

    *written* are the folders that it writes to, each with the setting that says where it is.
    """
    text = "\n".join(lines)
    if any(sign in text for sign in _FULL):
        return NoRoomError(_no_room(written))
    fatal = next((NOISE.sub("", line) for line in reversed(lines) if line.startswith("FATAL:")), "")
    if failed := _SECTION_FAILED.search(text):
        own = [line for line in lines if line and not NOISE.match(line) and not line.startswith("+ ")]
        errors = [NOISE.sub("", line) for line in lines if line.startswith("ERROR")]  # the program's own
        last = (own or errors or ["it printed nothing"])[-1]
        section = failed[1] or "post"
        if _NO_SUBUID in text and section == "post":
            return ImageError(
                "this machine lends you no user ids (you are not in /etc/subuid), and %post could not do all it does "
                f"elsewhere: {last.strip()[:200]}: ask the site for an entry, or build on another machine and use "
                "hpcml images export and import"
            )
        return ImageError(f"a command of %{section} failed with exit status {failed[2]}: {last.strip()[:300]}")
    if "UNAUTHORIZED" in text or "DENIED" in text:
        return ImageError("the registry refuses the login: check NGC_API_KEY (docs/containers.md)")
    lacking = f"lends you no user ids, and {runtime} needs them" if _NO_FAKEROOT in fatal else ""
    if any(sign in fatal for sign in _NO_NAMESPACE):
        lacking = f"gives you no user namespace, and {runtime} needs one"
    if lacking:
        return ImageError(
            f"this machine {lacking} to build: {fatal.strip()[:200]}: "
            "ask the site, or build on another machine and use hpcml images export and import"
        )
    words = fatal or next((line for line in reversed(lines) if line), f"exit status {code}")
    said = f"{runtime} could not build the image: {words.strip()[:400]}"
    if broke_off := _BROKE_OFF.search(fatal[:_MOST_READ]):
        said = f"the download of the base broke off: {broke_off[1][:300]}: build again, which goes on from whole layers"
    return ImageError(said)


class NoRoomError(ImageError):
    """The disk is full, so that no log of the build is written either."""


def explain_os(error: OSError, written: Mapping[Path, str]) -> ImageError:
    """Return the error that says in one line which file of the cache or of a build could not be written, and why.

    *written* is as `explain` has it, the most important first.
    """
    words = os.strerror(error.errno) if error.errno else str(error)
    if words in _FULL:
        return NoRoomError(_no_room(written))
    place, setting = next(iter(written.items()))
    return ImageError(f"{error.filename or place} cannot be written: {words} (set {setting} to a folder with room)")


def _no_room(written: Mapping[Path, str]) -> str:
    """Say so of all folders of *written*: which of them is full shows only where it is no quota."""
    places = " or ".join(map(str, written))
    return (
        f"{places}: no space left, or a quota is used up, while the image was built; only downloaded layers were kept: "
        f"{more_room(*written.values())}"
    )


def more_room(*settings: str) -> str:
    """Return what to do where a folder that one of *settings* names is full."""
    first = "hpcml images rm --older-than 30d" if IMAGES in settings else "make room there"
    return f"{first}, or set {' or '.join(settings)} to another place"


def with_log(error: ImageError, printed: Path, cache: Cache, key: str) -> ImageError:
    """Keep the file of what a build *printed* in the cache, and return *error* with its path there.

    Where the disk is full, or nothing was printed, *error* itself is returned.
    """
    log = cache.failure(key)
    with suppress(OSError):
        if isinstance(error, NoRoomError) or printed.stat().st_size == 0:
            return error
        make_folder(log.parent)
        printed.replace(log)
        return ImageError(f"{error} (all it printed: {log})")
    return error
