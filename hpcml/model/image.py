"""What is recorded of a container image and of the runs that use it, and the variables that hold registry logins.

hpcml/images builds and keeps images; the other rooms only need these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# What holds the login of a registry: for the process that downloads, and for no job but one that builds.
LOGIN_VARIABLES = (
    "NGC_API_KEY",
    *(f"{name}_DOCKER_{word}" for name in ("APPTAINER", "SINGULARITY") for word in ("USERNAME", "PASSWORD")),
)


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
    compression: str | None = None  # gzip, zstd ..., as it was asked for; None: not known
    imported_at: str | None = None  # where it came from another site


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageUse:
    """A run that uses an image, or used it."""

    uid: str
    key: str
    has_ended: bool
    at: float | None  # unix seconds: when it ended, began, or was submitted, whichever is known and last
