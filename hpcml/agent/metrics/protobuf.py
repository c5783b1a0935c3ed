"""The wire format of protocol buffers, as far as reading needs it (protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

from collections.abc import Iterator

from hpcml.agent.metrics.reading import Damaged

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
Field = tuple[int, int, int | bytes]  # number, wire type, value: an integer for VARINT, else bytes


def fields(message: bytes) -> Iterator[Field]:
    r"""Yield the fields of *message* in their order; raise `Damaged` where it is no message.

    >>> list(fields(b"\x08\x96\x01"))
    [(1, 0, 150)]
    """
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        kind = key & 7
        if kind == VARINT:
            number, at = _varint(message, at)
            yield key >> 3, kind, number
            continue
        if kind == BYTES:
            size, at = _varint(message, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise Damaged(f"a field of wire type {kind}")
        if at + size > end:
            raise Damaged("a field longer than its message")
        yield key >> 3, kind, message[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(at + _LONGEST_VARINT, len(data))):
        byte = data[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place + 1
        shift += 7
    raise Damaged("an integer without its end")
