"""What a container image is: the definition it is built from, its key in the cache, and the record of the build.

hpcml/images builds and keeps images; planning and the agent only need these values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

FORMAT = 1
# What holds the login of a registry: for the process that downloads, and for no job but one that builds.
LOGIN_VARIABLES = (
    "NGC_API_KEY",
    *(f"{name}_DOCKER_{word}" for name in ("APPTAINER", "SINGULARITY") for word in ("USERNAME", "PASSWORD")),
)
UNRESOLVED = "unresolved"  # in place of a digest that the registry could not be asked for
_KEY_DIGITS = 32  # 128 bits of SHA-256: no two definitions of one site will ever share them


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """Everything that decides the contents of an image; definitions with the same key build interchangeable images."""

    text: str  # as Apptainer reads it; its base is pinned by digest
    base: str  # for people: nvcr.io/nvidia/pytorch:24.12-py3
    base_digest: str
    architecture: str = "amd64"  # of a base for several, which all have one digest
    plain_http: bool = False  # the registry speaks no TLS; that changes nothing in the image
    base_size_bytes: int | None = None  # of its compressed layers
    files: Mapping[str, str] = field(default_factory=dict)  # source of %files -> SHA-256 of what it holds
    folder: str | None = None  # of the definition, where relative sources lie; None: it has no sources

    @property
    def key(self) -> str:
        """The name of the image in the cache: 32 hex digits (see `key_of`)."""
        return key_of(self.text, self.base_digest, self.architecture, self.files)


def key_of(text: str, base_digest: str, architecture: str, files: Mapping[str, str]) -> str:
    """Return the key of an image: 128 bits of SHA-256 over all that decides what is in it.

    That is the definition's text, the digest of its base (``sha256:...`` as the registry gives it), the architecture
    (amd64 or arm64), and the SHA-256 of what each source of its %files holds.
    """
    words = json.dumps([FORMAT, text, base_digest, architecture, *([sorted(files.items())] if files else [])])
    return hashlib.sha256(words.encode()).hexdigest()[:_KEY_DIGITS]


def without_login(environ: Mapping[str, str]) -> dict[str, str]:
    """Return *environ* without the variables that hold registry logins, for processes that must not see them.

    >>> without_login({"NGC_API_KEY": "secret", "PATH": "/bin"})
    {'PATH': '/bin'}
    """
    return {name: value for name, value in environ.items() if name not in LOGIN_VARIABLES}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecord:
    """What was recorded about an image when it was built or imported; stored as JSON beside the image."""

    key: str
    path: str
    sha256: str
    size_bytes: int
    mtime_ns: int  # with the size: whether the file may have changed since its SHA-256 was taken
    definition: str
    base: str
    base_digest: str
    architecture: str
    builder: str  # who built it
    built_at: str  # ISO 8601 with offset
    built_on: str  # host name
    build_s: float
    runtime: str  # apptainer 1.4.5
    labels: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # source of %files -> SHA-256 of what it held
    packages: Mapping[str, str] | None = None  # name -> version, as python:timm or deb:git; None: not known
    compression: str | None = None  # gzip, zstd ..., as the file says itself; None: not known
    imported_at: str | None = None  # where it came from another site


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageUse:
    """A run that uses an image, or used it."""

    uid: str
    key: str
    has_ended: bool
    at: float | None  # unix seconds: when it ended, began, or was submitted, whichever is known and last
