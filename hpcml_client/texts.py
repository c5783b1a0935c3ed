"""Texts that are on this machine already, as bytes, and which parts of them are held out; nothing here downloads."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import List, Optional, Tuple

from hpcml_client.datasets import DatasetError
from hpcml_client.recipe_task import RecipeError

PYDOC = "pydoc"
TEXTS = (PYDOC, "text")  # what `data` may be

Span = Tuple[int, int]  # begin and end


@dataclass(frozen=True)
class Text:
    """A text in UTF-8. Its SHA-256 tells apart what has one name: Python's help changes with its version."""

    content: bytes
    sha256: str
    where: str  # the setting that chose it, for messages

    def __len__(self) -> int:
        return len(self.content)


def read_text(data: Optional[str], path: Optional[str]) -> Text:
    """Return the text *data*: ``pydoc``, the help topics of this Python (460 kB), or ``text``, the file *path*."""
    if data == PYDOC:
        return _read_pydoc()
    if path is None:
        raise RecipeError("data=text needs data.path: a file in UTF-8")
    return _read_file(path)


def spread(count: int, holdout: float) -> Tuple[List[int], List[int]]:
    """Return the numbers below *count* without and with the share *holdout*, which is spread evenly over them."""
    if not 0.0 < holdout < 1.0:
        raise ValueError(f"holdout={holdout} must lie between 0 and 1")
    kept: List[int] = []
    held_out: List[int] = []
    for index in range(count):
        # every time that the share passes a whole number
        (held_out if int((index + 1) * holdout) > int(index * holdout) else kept).append(index)
    return kept, held_out


def split_spans(size: int, piece: int, holdout: float) -> Tuple[List[Span], List[Span]]:
    """Return the spans of *size* bytes to train on and those held out, cut in pieces; neighbours are joined."""
    parts = spread(-(-size // piece), holdout)
    kept, held_out = (_join([(i * piece, min(size, (i + 1) * piece)) for i in part]) for part in parts)
    return kept, held_out


def _join(spans: List[Span]) -> List[Span]:
    joined: List[Span] = []
    for begin, end in spans:
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


def _read_pydoc() -> Text:
    try:
        from pydoc_data import topics
    except ImportError as error:
        raise DatasetError(f"data={PYDOC} is a part of Python that this one lacks ({error}): use data=text") from error
    found = topics.topics
    return _text("\n".join(found[name] for name in sorted(found)).encode(), f"data={PYDOC}")


def _read_file(path: str) -> Text:
    where = f"data.path={path}"
    if os.path.isdir(path):
        raise DatasetError(f"{where} is a folder: name one file in UTF-8")
    try:
        with open(path, "rb") as file:
            content = file.read()
        content.decode()
    except OSError as error:
        raise DatasetError(f"{where} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{where} is no UTF-8: byte {error.start} is {content[error.start]:#04x}") from error
    return _text(content, where)


def _text(content: bytes, where: str) -> Text:
    return Text(content=content, sha256=hashlib.sha256(content).hexdigest(), where=where)
