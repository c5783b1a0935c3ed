"""The `.wandb` file of a run of Weights & Biases, as offline runs leave it: the rows of its history.

The file is `:W&B`, three bytes, then the log format of LevelDB (doc/log_format.md there): blocks of 32 KiB with records
of checksum (4 bytes; here zlib's CRC-32 of type and data), length (2), type (1) and data; a longer record is cut into a
first, middle and last part. The records are wandb_internal.proto's `Record`. There is no supported reader; the framing
has stood since 2020.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.agent.metrics.protobuf import BYTES, fields
from hpcml.agent.metrics.reading import PIECE_BYTES, Damaged, Growing, Reading, values_of
from hpcml.runs.files import parse_json

_BLOCK_BYTES = 32 << 10
_BEGINS = b":W&B"
_FILE_HEAD_BYTES = 7
_HEAD_BYTES = 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _ITEM, _STEP = 2, 1, 2  # fields of Record and HistoryRecord
_KEY, _NESTED_KEY, _VALUE_JSON = 1, 2, 16  # fields of HistoryItem
_LARGEST_RECORD_BYTES = 8 << 20


@dataclass(slots=True)
class WandbLog:
    """Follows one `.wandb` file."""

    root: Path
    path: Path
    problems: list[str] = field(default_factory=list)
    _file: Growing = field(init=False)
    _part: bytes | None = None  # of a record whose end has not come yet
    _rows: int = 0

    def __post_init__(self) -> None:
        self._file = Growing(self.root, self.path)

    def skip(self) -> None:
        """Give the file up: a run of an earlier attempt, to which no other adds."""
        raise Damaged("was there before")

    def read(self) -> tuple[Sequence[Reading], bool]:
        """Return the numbers of the next complete rows of the history, and whether there are more."""
        data = self._file.piece()
        found: list[Reading] = []
        at = 0
        if not self._file.offset:
            if len(data) < _FILE_HEAD_BYTES:
                return (), False
            if not data.startswith(_BEGINS):
                raise Damaged("is no file of Weights & Biases")
            at = _FILE_HEAD_BYTES
        for part_at, kind, part in self._parts(data, at):
            at = part_at
            if (record := self._joined(kind, part)) is not None:
                found += self._history(record)
        self._file.offset += at
        return found, len(data) == PIECE_BYTES

    def _parts(self, data: bytes, at: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield the complete parts of records in *data* from *at* on: where each ends, its type and its content."""
        while True:
            left = _BLOCK_BYTES - (self._file.offset + at) % _BLOCK_BYTES
            if left < _HEAD_BYTES:  # too little for a record: the block is filled up
                at += left
                continue
            if at + _HEAD_BYTES > len(data):
                return
            checksum, size, kind = struct.unpack_from("<IHB", data, at)
            end = at + _HEAD_BYTES + size
            part = data[at + _HEAD_BYTES : end]
            is_whole = size <= left - _HEAD_BYTES and (end > len(data) or zlib.crc32(bytes([kind]) + part) == checksum)
            if not is_whole:
                raise Damaged(f"damaged at byte {self._file.offset + at}: nothing behind it was read")
            if end > len(data):
                return
            at = end
            yield at, kind, part

    def _joined(self, kind: int, part: bytes) -> bytes | None:
        """Return the record that *part* completes; None where it completes none, or one that is too large."""
        if kind == _WHOLE:
            return part
        if kind == _FIRST:
            self._part = part
        elif self._part is not None:
            self._part = self._part + part if len(self._part) < _LARGEST_RECORD_BYTES else None
        if kind != _LAST:
            return None
        whole, self._part = self._part, None
        return whole

    def _history(self, record: bytes) -> Iterator[Reading]:
        for number, kind, value in fields(record):
            if (number, kind) == (_HISTORY, BYTES) and isinstance(value, bytes):
                row: dict[str, object] = {}
                for place, form, item in fields(value):
                    if isinstance(item, bytes) and form == BYTES:
                        if place == _ITEM:
                            row |= _item(item)
                        elif place == _STEP:
                            row.setdefault("_step", next((v for n, _, v in fields(item) if n == 1), 0))
                yield from values_of(row, number=self._rows, steps=("_step",))  # "step" is a metric of the user's
                self._rows += 1


def _item(item: bytes) -> dict[str, object]:
    names: list[str] = []
    key, text = "", b"null"
    for number, kind, value in fields(item):
        if not isinstance(value, bytes) or kind != BYTES:
            continue
        if number == _KEY:
            key = value.decode("utf-8", "replace")
        elif number == _NESTED_KEY:
            names.append(value.decode("utf-8", "replace"))
        elif number == _VALUE_JSON:
            text = value
    try:
        return {"/".join(names) or key: parse_json(text)}
    except ValueError:
        return {}
