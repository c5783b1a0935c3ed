"""What this machine has for building and starting images, and what will not work: for ``hpcml doctor``."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcml.errors import HpcmlError, ImageError
from hpcml.images import cache, registry, releases
from hpcml.images.logins import login_for
from hpcml.images.runtime import find_runtime
from hpcml.images.runtimes import runtime_named
from hpcml.model.cluster import Cluster

_NGC = "nvcr.io"
_ROOM = 50 << 30  # bytes: five times what is downloaded of an image of NVIDIA's
_SUBUID = Path("/etc/subuid")
_FUSE = Path("/dev/fuse")

Finding = tuple[str, bool, str]  # what was looked at, whether it is well, and what was found


def ready_for_images(site: Cluster, environ: Mapping[str, str], *, network: bool) -> Iterator[Finding]:
    """Yield what was found of the runtime, the rights and the room that images need on this machine.

    Where there is no runtime, or one for which nothing is built, that is all. Only with *network* is NVIDIA's registry
    asked, for the digest of one image. Nothing is changed.
    """
    try:
        runtime = find_runtime(environ, site.container_runtime, module=site.container_module)
    except ImageError as error:
        yield "containers", False, str(error)
        return
    yield "containers", True, f"{runtime}, {runtime.path}"
    entry = runtime_named(runtime.name)
    if not entry.builds:
        yield "images", True, f"{entry.name} takes {entry.takes}: hpcml builds none for it"
        return
    yield _user_ids(environ)
    yield _namespaces()
    yield _fuse()
    yield _room(site, environ)
    host = environ.get("HPCML_NGC_REGISTRY") or _NGC
    has_login = login_for(host, environ) is not None
    without = "none: enough for images that everybody may pull; for others export NGC_API_KEY"
    yield f"login of {host}", True, "there is one" if has_login else without
    if network:
        yield _answer(host, environ)


def _user_ids(environ: Mapping[str, str]) -> Finding:
    """Look for the user's line in /etc/subuid (subuid(5)), and for the program that makes use of it."""
    if os.geteuid() == 0:
        return "user ids", True, "root needs none"
    try:
        names = {pwd.getpwuid(os.getuid()).pw_name, str(os.getuid())}
    except KeyError:
        names = {str(os.getuid())}
    try:
        rows = _SUBUID.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        rows = []
    less = "apt-get and chown in %post fail: ask the site, or build elsewhere and import"
    if not any(row.partition(":")[0] in names for row in rows):
        return "user ids", False, f"you are not in {_SUBUID}: {less}"
    if shutil.which("newuidmap", path=environ.get("PATH", "")) is None:
        return "user ids", False, f"you are in {_SUBUID}, and newuidmap (package uidmap) is not on PATH: {less}"
    return "user ids", True, f"in {_SUBUID}"


def _namespaces() -> Finding:
    """Make a user namespace, as the runtime does."""
    try:
        done = subprocess.run(["unshare", "--user", "true"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "user namespaces", False, f"could not be tried: {error}"
    if done.returncode == 0:
        return "user namespaces", True, "can be made"
    said = " ".join(done.stderr.split())
    return "user namespaces", False, f"{said}: images start only where the runtime was installed setuid; ask the site"


def _fuse() -> Finding:
    if os.access(_FUSE, os.R_OK | os.W_OK):
        return "fuse", True, f"{_FUSE}"
    state = "cannot be used" if _FUSE.exists() else "is not there"
    remedy = "container.options=[--unsquash] unpacks an image before each start"
    return "fuse", False, f"{_FUSE} {state}: without setuid images cannot be mounted; {remedy}"


def _room(site: Cluster, environ: Mapping[str, str]) -> Finding:
    try:
        place = cache.locate(environ, site=site.scratch)
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        free = shutil.disk_usage(there).free
    except (HpcmlError, OSError) as error:
        return "images", False, str(error)
    words = f"{place}, {free / (1 << 30):.0f} GiB free"
    few = f"{words}: an image of NVIDIA's needs up to {_ROOM >> 30} GiB while it is built"
    return "images", free >= _ROOM, words if free >= _ROOM else few


def _answer(host: str, environ: Mapping[str, str]) -> Finding:
    newest = releases.newest("nvidia/cuda", None, None)
    try:
        registry.ask(registry.Reference(host=host, name=newest.image, tag=newest.tag), environ=environ)
    except registry.UnreachableError as error:
        return host, False, str(error)
    except ImageError as error:
        return host, False, f"answers: {error}"
    return host, True, "answers"
