"""Logins for container registries: from the environment, else as `apptainer registry login` and Docker store them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_NGC = "nvcr.io"
_NGC_USER = "$oauthtoken"  # literally
_HUB_NAMES = ("docker.io", "index.docker.io", "registry-1.docker.io")  # one registry, stored under any of them


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Login:
    """User and password for a registry; never printed, so that its repr has neither."""

    user: str
    password: str


def login_for(host: str, environ: Mapping[str, str]) -> Login | None:
    """Return the login for *host*, or None: APPTAINER_DOCKER_*, then NGC_API_KEY (for NGC only), then stored logins.

    *host* is as in a reference, with its port: ``nvcr.io``, ``127.0.0.1:5000``. SINGULARITY_DOCKER_* count like
    APPTAINER_DOCKER_*, which come first. HPCML_NGC_REGISTRY names one more host that may get the key: a mirror of NGC.
    A file that cannot be read, or that leaves its logins to a helper program, has none.
    """
    for prefix in ("APPTAINER", "SINGULARITY"):
        user, password = (environ.get(f"{prefix}_DOCKER_{word}") for word in ("USERNAME", "PASSWORD"))
        if user and password:
            return Login(user=user, password=password)
    key = environ.get("NGC_API_KEY")
    if key and takes_the_ngc_key(host, environ):
        return Login(user=_NGC_USER, password=key)
    return next((found for path in login_files(environ) if (found := _stored(path, host))), None)


def takes_the_ngc_key(host: str, environ: Mapping[str, str]) -> bool:
    """Tell whether *host* is NGC, or the mirror that the user has named."""
    return host in (_NGC, environ.get("HPCML_NGC_REGISTRY"))


def login_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files that may hold logins: of Apptainer before 1.4, of Singularity, and of Docker and all others."""
    home = environ.get("HOME")
    for name in ("apptainer", "singularity"):
        if folder := environ.get(f"{name.upper()}_CONFIGDIR") or (f"{home}/.{name}" if home else None):
            yield Path(folder) / "docker-config.json"
    if folder := environ.get("DOCKER_CONFIG") or (f"{home}/.docker" if home else None):
        yield Path(folder) / "config.json"


def _stored(path: Path, host: str) -> Login | None:
    """Return the login for *host* in a file as Docker has it; one that a helper program keeps is none here."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))["auths"]
        names = _HUB_NAMES if host in _HUB_NAMES else (host,)
        said = next(words for name, words in known.items() if _host_in(name) in names)
        if said.get("auth"):
            user, _, password = base64.b64decode(said["auth"], validate=True).decode().partition(":")
        else:
            user, password = said["username"], said["password"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return None
    words_only = isinstance(user, str) and isinstance(password, str) and user and password
    return Login(user=user, password=password) if words_only else None


def _host_in(name: str) -> str:
    """Return the host of what a login is stored under: nvcr.io, or https://index.docker.io/v1/."""
    return name.rpartition("://")[2].partition("/")[0]
