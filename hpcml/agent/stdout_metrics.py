"""Reads metrics from what a program prints, by the rules of `workload.metrics`, for programs that cannot be changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.model.run import MetricRule

_CHUNK_BYTES = 4 << 20  # a tick's work: signals must not wait for a hundred megabytes
_LONGEST_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """One value that was found; where the line gives no step, the values of a name are numbered from 0."""

    name: str
    value: float
    step: int


@dataclass(slots=True)
class StdoutScanner:
    """Follows a growing file and applies the rules to each new complete line.

    A rule is a regular expression with the groups ``value`` and, if it likes, ``step`` and ``name``.
    """

    path: Path
    rules: Sequence[MetricRule]
    _offset: int = 0
    _counts: Counter[str] = field(default_factory=Counter)
    _compiled: list[tuple[re.Pattern[str], str | None]] = field(init=False)

    def __post_init__(self) -> None:
        self._compiled = [(re.compile(rule.pattern), rule.name) for rule in self.rules]

    def scan(self, *, to_the_end: bool = False) -> Iterator[Picked]:
        """Yield the values in the new lines: of at most 4 MiB, or of everything that is left with *to_the_end*.

        A match whose value or step is no number is skipped. Raises `OSError` where the file cannot be read.
        """
        if not self._compiled:
            return
        with self.path.open("rb") as file:
            while True:
                file.seek(self._offset)
                data = file.read(_CHUNK_BYTES)
                end = data.rfind(b"\n") + 1
                if not end and len(data) >= _LONGEST_LINE_BYTES:
                    end = len(data)  # no line is that long: step over it
                if not end and to_the_end:
                    end = len(data)  # a last line without its newline
                if not end:
                    return
                self._offset += end
                for line in data[:end].decode("utf-8", "replace").splitlines():
                    yield from self._pick(line)
                if not to_the_end:
                    return

    def _pick(self, line: str) -> Iterator[Picked]:
        for pattern, name in self._compiled:
            for match in pattern.finditer(line):
                groups = match.groupdict()
                called = name or groups["name"]
                try:
                    value = float(groups["value"])
                    step = int(groups["step"]) if groups.get("step") else self._counts[called]
                except (TypeError, ValueError):
                    continue  # the words matched, the number did not: not ours to guess
                self._counts[called] += 1
                yield Picked(name=called, value=value, step=step)
