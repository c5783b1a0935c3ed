"""The beginning and the end of a journal that grows, and what is added to it; the middle is left unread."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hpcml.journal import Chunk, Event, Header, Metrics, parse_chunk

EDGE_BYTES = 64 << 10  # what a journal is about stands in its first lines; ten samples of eight GPUs take 50 KiB
_CHUNK_BYTES = 4 << 20


@dataclass(slots=True)
class Tail:
    """One journal, read on with each look; whoever writes it may be anywhere in a line."""

    path: Path
    edge_bytes: int = EDGE_BYTES
    header: Header | None = None
    has_begun: bool = False  # there was a whole line
    _offset: int = 0
    _is_in_line: bool = False  # the next byte is one of a line whose beginning was left out

    def read(self) -> list[Metrics | Event]:
        """Return the records that are new, at first those of both ends; none where the file is gone."""
        try:
            file = self.path.open("rb")  # again each time: that is what makes NFS ask its server
        except FileNotFoundError:
            return []
        records: list[Metrics | Event] = []
        with file:
            if not self.has_begun:
                records += self._begin(file.read(self.edge_bytes), os.fstat(file.fileno()).st_size)
            while True:
                file.seek(self._offset)
                data = file.read(_CHUNK_BYTES)
                records += self._take(data)
                if len(data) < _CHUNK_BYTES:
                    return records

    def _begin(self, head: bytes, size: int) -> list[Metrics | Event]:
        """Take the beginning, once there is a whole line of it, and go to where the end begins."""
        chunk = parse_chunk(head, offset=0)
        if chunk.end == 0 and len(head) < self.edge_bytes:
            return []
        self.has_begun = True
        self._offset = chunk.end
        self.header = chunk.header
        if size - self.edge_bytes > chunk.end:
            self._offset = size - self.edge_bytes
            self._is_in_line = True
        return list(chunk.records)

    def _take(self, data: bytes) -> list[Metrics | Event]:
        if not self.has_begun:
            return []
        if self._is_in_line:
            begin = data.find(b"\n") + 1
            if begin == 0:
                self._offset += len(data)
                return []
            self._is_in_line = False
            self._offset += begin
            data = data[begin:]
        chunk: Chunk = parse_chunk(data, offset=self._offset)
        self._offset = chunk.end
        return list(chunk.records)
