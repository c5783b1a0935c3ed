"""What a container image is built from, and the key of that, under which the image lies in the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

FORMAT = 1  # of an image's record, and of what goes into its key
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
