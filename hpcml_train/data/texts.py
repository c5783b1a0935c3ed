"""Texts as bytes, and which parts of them are held out; nothing is downloaded.

Models read windows, pieces of one length: those to train on begin anywhere, those to validate on lie side by side.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import NamedTuple

from hpcml_train.errors import DatasetError, RecipeError

PYDOC = "pydoc"
TEXTS = (PYDOC, "text")  # what `data` may be
BYTES = 256  # the tokens of a text are its bytes: none is unknown, and every text has the same number of them
MOST_SAMPLES = 1_000_000  # each epoch shuffles them: in longer texts windows begin at every n-th byte
_PIECE = 4096  # bytes that are held out together; less in short texts
_FEWEST_PIECES = 20

Span = tuple[int, int]  # begin and end


@dataclass(frozen=True)
class Text:
    """A text in UTF-8. Its SHA-256 tells versions apart: Python's help changes with Python."""

    content: bytes
    sha256: str
    where: str  # the setting that chose it, for messages

    def __len__(self) -> int:
        return len(self.content)

    def facts(self) -> dict[str, object]:
        """Return details of the event ``training``."""
        return {"text_bytes": len(self), "text_sha256": self.sha256}


def read_text(data: str | None, path: str | None) -> Text:
    """Return the text *data*: ``pydoc``, the help topics of this Python (460 kB), or ``text``, the file *path*.

    Raises `RecipeError` without a path, `DatasetError` for a file that cannot be read or is no UTF-8.
    """
    if data == PYDOC:
        return _read_pydoc()
    if path is None:
        raise RecipeError("data=text needs data.path: a file in UTF-8")
    return _read_file(path)


def spread(count: int, holdout: float) -> tuple[list[int], list[int]]:
    """Return the numbers below *count* without and with the share *holdout*, which is spread evenly over them.

    >>> spread(5, 0.4)
    ([0, 1, 3], [2, 4])
    """
    if not 0.0 < holdout < 1.0:
        raise ValueError(f"holdout={holdout} must lie between 0 and 1")
    kept: list[int] = []
    held_out: list[int] = []
    for index in range(count):
        # every time that the share passes a whole number
        (held_out if int((index + 1) * holdout) > int(index * holdout) else kept).append(index)
    return kept, held_out


def split_spans(size: int, piece: int, holdout: float) -> tuple[list[Span], list[Span]]:
    """Return the spans of *size* bytes to train on and those held out, in pieces of *piece* bytes.

    Neighbours are joined.

    >>> split_spans(10, 2, 0.4)
    ([(0, 4), (6, 8)], [(4, 6), (8, 10)])
    """
    parts = spread(-(-size // piece), holdout)
    kept, held_out = (_join([(i * piece, min(size, (i + 1) * piece)) for i in part]) for part in parts)
    return kept, held_out


class Places(NamedTuple):
    """The byte offsets at which windows begin; neither list is empty."""

    training: list[range]
    validation: list[int]


def place_windows(
    text: Text, *, length: int, holdout: float, validation_windows: int, most_samples: int = MOST_SAMPLES
) -> Places:
    """Return where the windows of *length* bytes of *text* begin; independent of the seed.

    At most *validation_windows* are validated, and about *most_samples* trained on. Raises `RecipeError` where the text
    is too short.
    """
    piece = max(length, min(_PIECE, len(text) // _FEWEST_PIECES))
    kept, held_out = split_spans(len(text), piece, holdout)
    room = sum(max(0, end - begin - length + 1) for begin, end in kept)
    training = _starts(kept, length, stride=-(-room // most_samples) or 1)
    examined = [start for span in _starts(held_out, length, stride=length) for start in span]
    if not training or not examined:
        raise RecipeError(
            f"{text.where} has {len(text)} bytes: too few to hold out windows of {length} with "
            f"data.holdout={holdout:g}: take a longer text or a smaller model.options.context"
        )
    if len(examined) > validation_windows:  # evenly spread
        examined = [examined[index * len(examined) // validation_windows] for index in range(validation_windows)]
    return Places(training, examined)


def _starts(spans: list[Span], length: int, *, stride: int) -> list[range]:
    return [range(begin, end - length + 1, stride) for begin, end in spans if end - begin >= length]


def _join(spans: list[Span]) -> list[Span]:
    joined: list[Span] = []
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
