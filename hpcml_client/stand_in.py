"""What the stand-ins for W&B and MLflow share: one client, the names of several runs in one program, and warnings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hpcml_client.client import Client, connect
from hpcml_client.rows import numbers_of


class Reporter:
    """Reports for the module *name*, whose runs in this program follow each other or are nested.

    A metric that two of them have keeps its name for the first, and is ``run2/loss`` for the second.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_on = True
        self._client: Client | None = None
        self._runs = 0
        self._owners: dict[str, int] = {}  # by metric
        self._said: set[str] = set()

    def connect(self) -> Client:
        """Return the client of hpcml's run; the first time, say so where there is none."""
        if self._client is None:
            self._client = connect()
            if self._client.run_dir is None and self._client.rank == 0:
                self.say("not started by hpcml: nothing is recorded. Start it with: hpcml run -- python ...")
        return self._client

    def begin(self) -> int:
        """Return the number of a new run, from 1."""
        self._runs += 1
        return self._runs

    def report(self, row: Mapping[str, Any], step: int | None, *, number: int) -> None:
        """Report the numbers of *row* at *step* for run *number*; what is no number is left out."""
        values = dict(self._named(numbers_of(row), number))
        if values and self.is_on:
            self.connect().metrics(values, step)

    def has(self, name: str) -> bool:
        """Whether any run has reported the metric *name*."""
        return name in self._owners

    def event(self, name: str, details: Mapping[str, Any]) -> None:
        """Report an event with *details*, if there are any."""
        if details and self.is_on:
            self.connect().event(name, **{str(key): value for key, value in details.items()})

    def file(self, path: str, kind: str | None = None) -> None:
        """Report a file, or all files of a folder; `FileNotFoundError` where there is none."""
        if not self.is_on:
            return
        if not os.path.isdir(path):
            self.connect().artifact(path, kind)
        for folder, _, names in os.walk(path):
            for each in sorted(names):
                self.connect().artifact(os.path.join(folder, each), kind)

    def say(self, text: str) -> None:
        """Print a line on standard error, each *text* once."""
        if text not in self._said:
            self._said.add(text)
            sys.stderr.write(f"{self.name}: {text}\n")

    def lacks(self, name: str, instead: str) -> AttributeError:
        """Return the error for what the module does not have."""
        return AttributeError(f"{self.name} has no {name}: {instead}")

    def _named(self, numbers: Iterator[tuple[str, float]], number: int) -> Iterator[tuple[str, float]]:
        for name, value in numbers:
            owner = self._owners.setdefault(name, number)
            yield (name if owner == number else f"run{number}/{name}"), value
