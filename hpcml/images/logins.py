"""Whom a registry is told that we are: what the environment says, else what `apptainer registry login` has stored."""

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
    """Whom a registry is told that we are; never printed."""

    user: str
    password: str


def login_for(host: str, environ: Mapping[str, str]) -> Login | None:
    """Return the login for *host*: the variables of Apptainer, NGC_API_KEY, which goes to NGC alone, or what is stored.

    HPCML_NGC_REGISTRY names one more host that may have the key: a mirror of NGC.
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
    """Tell whether *host* is NGC, or what the user has named as its mirror."""
    return host in (_NGC, environ.get("HPCML_NGC_REGISTRY"))


def login_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield where logins may be stored: by Apptainer before 1.4, by Singularity, and by all others, Docker included."""
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
