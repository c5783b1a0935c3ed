"""TensorBoard's event files: the scalars in them, read without TensorBoard.

A file is a row of records: length (8 bytes), its checksum (4), the data, their checksum (4), both CRC-32C and masked
(tensorflow/core/lib/io/record_writer.h). The data are an Event of tensorboard/compat/proto/event.proto, with a Summary
of values: `simple_value`, as PyTorch writes scalars, or a tensor without dimensions, as TensorFlow 2 does. What is no
scalar (histograms, pictures, text) is passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.agent.metrics.protobuf import BYTES, FIXED32, FIXED64, VARINT, fields
from hpcml.agent.metrics.reading import PIECE_BYTES, Damaged, Growing, Reading, whole_step

_FRAME_BYTES = 16  # around the data of a record
_HEAD_BYTES = 12  # before them
_CASTAGNOLI = 0x82F63B78
_MASK = 0xA282EAD8
_FIRST_NEGATIVE = 1 << 63
_UNPACK: dict[int, tuple[str, int]] = {1: ("<f", 5), 2: ("<d", 6), 19: ("<e", 0)}  # DataType -> format, field of values
_WHOLE: dict[int, tuple[str, int]] = {3: ("<i", 7), 9: ("<q", 10)}
_TENSOR_CONTENT = 4
_OF_HPARAMS = "_hparams_/"


@dataclass(slots=True)
class EventFile:
    """Follows one event file."""

    root: Path
    path: Path
    problems: list[str] = field(default_factory=list)
    _file: Growing = field(init=False)

    def __post_init__(self) -> None:
        self._file = Growing(self.root, self.path)

    def skip(self) -> None:
        """Begin behind what is there."""
        self._file.skip()

    def read(self) -> tuple[Sequence[Reading], bool]:
        """Return the scalars of the next complete records, and whether there are more."""
        data = self._file.piece()
        found: list[Reading] = []
        at = 0
        while at + _HEAD_BYTES <= len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            if masked_crc32c(data[at : at + 8]) != struct.unpack_from("<I", data, at + 8)[0]:
                raise Damaged(f"damaged at byte {self._file.offset + at}: nothing behind it was read")
            if at + _FRAME_BYTES + size > len(data):
                break
            record = data[at + _HEAD_BYTES : at + _HEAD_BYTES + size]
            if masked_crc32c(record) != struct.unpack_from("<I", data, at + _HEAD_BYTES + size)[0]:
                self.problems.append(f"the record at byte {self._file.offset + at} is damaged and was left out")
            else:
                found += self._scalars(record)
            at += _FRAME_BYTES + size
        is_full = len(data) == PIECE_BYTES
        if not at and is_full:  # a record that no scalar needs: a picture, a model's graph
            (size,) = struct.unpack_from("<Q", data)
            if self._file.offset + _FRAME_BYTES + size > self._file.size_bytes():
                return (), False
            at = _FRAME_BYTES + size
        self._file.offset += at
        return found, is_full

    def _scalars(self, record: bytes) -> Iterator[Reading]:
        wall_time, step = None, 0
        summary: list[bytes] = []
        for number, kind, value in fields(record):
            if (number, kind) == (1, FIXED64) and isinstance(value, bytes):
                (wall_time,) = struct.unpack("<d", value)
            elif (number, kind) == (2, VARINT) and isinstance(value, int):
                step = value - (1 << 64) if value >= _FIRST_NEGATIVE else value
            elif (number, kind) == (5, BYTES) and isinstance(value, bytes):
                summary.append(value)
        if whole_step(step) is None:
            return
        for part in summary:
            for number, kind, value in fields(part):
                if (number, kind) == (1, BYTES) and isinstance(value, bytes):
                    tag, scalar = _tag_and_scalar(value)
                    if tag and scalar is not None and not tag.startswith(_OF_HPARAMS):
                        yield Reading(name=tag, value=scalar, step=step, at=wall_time)


def _tag_and_scalar(value: bytes) -> tuple[str, float | None]:
    tag, scalar = "", None
    for number, kind, content in fields(value):
        if not isinstance(content, bytes):
            continue
        if (number, kind) == (1, BYTES):
            tag = content.decode("utf-8", "replace")
        elif (number, kind) == (2, FIXED32):
            (scalar,) = struct.unpack("<f", content)
        elif (number, kind) == (8, BYTES):
            scalar = _scalar_of_tensor(content)
    return tag, scalar


def _scalar_of_tensor(tensor: bytes) -> float | None:
    """Return the number that a TensorProto without dimensions holds; None for any other."""
    found = list(fields(tensor))
    if any(number == 2 and isinstance(v, bytes) and any(n == 2 for n, _, _ in fields(v)) for number, _, v in found):
        return None
    dtype = next((value for number, _, value in found if number == 1), None)
    if not isinstance(dtype, int):
        return None
    form, values_in = _UNPACK.get(dtype) or _WHOLE.get(dtype) or ("", 0)
    for number, _, value in found:
        if form and number in (_TENSOR_CONTENT, values_in):
            if isinstance(value, int):  # an integer by itself
                return float(value - (1 << 64) if value >= _FIRST_NEGATIVE else value)
            if dtype in _WHOLE and number != _TENSOR_CONTENT:  # packed integers: one of them
                packed = [each for _, _, each in fields(b"\x08" + value)]
                return float(packed[0]) if len(packed) == 1 and isinstance(packed[0], int) else None
            return float(struct.unpack(form, value)[0]) if len(value) == struct.calcsize(form) else None
    return None


def _masked_sum() -> Callable[[bytes], int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
        table.append(crc)

    def masked(data: bytes) -> int:
        crc = 0xFFFFFFFF
        for byte in data:
            crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
        crc ^= 0xFFFFFFFF
        return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF

    return masked


masked_crc32c = _masked_sum()
