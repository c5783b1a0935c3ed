"""A double's server: ``python -m tests.cluster.double.server DIALECT STATE`` answers until its parent has gone."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import secrets
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from tests.cluster.double.faults import read_faults

TICK_S = 0.02


class Server:
    """One thread: a question is answered at once, or never where the fault wants that."""

    def __init__(self, dialect: str, state: Path) -> None:
        self.state = state
        self.dialect = importlib.import_module(f"tests.cluster.{dialect}.dialect").Dialect(state)
        self.failed: dict[str, int] = {}
        self.unanswered: list[socket.socket] = []

    def answer(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer, or None for silence."""
        faults = read_faults(self.state)
        engine = self.dialect.engine
        engine.closed = faults.closed
        if question["program"] == "_task":
            number, index, pid = question["argv"]
            for job in engine.meant(int(number), None if index == "" else int(index)):
                job.others.append(int(pid))
            return {"rc": 0, "out": "", "err": ""}
        with (self.state / "calls.jsonl").open("a") as file:
            file.write(json.dumps([question["program"], *question["argv"]]) + "\n")
        kind = self.dialect.kind_of(question["program"], question["argv"])
        if kind in faults.hung:
            return None
        if kind in faults.down or self.failed.get(kind, 0) < faults.fail_next.get(kind, 0):
            self.failed[kind] = self.failed.get(kind, 0) + 1
            return self.dialect.unheard(kind, is_down=kind in faults.down)
        engine.tick(self.dialect.variables)
        said = self.dialect.run(question, faults)
        said["out"] = faults.banner + said["out"]
        engine.tick(self.dialect.variables)
        return None if kind in faults.hung_after else said

    def serve(self) -> None:
        listener = socket.socket(socket.AF_UNIX)
        address = f"double-{secrets.token_hex(8)}"
        listener.bind("\0" + address)  # an abstract name: no limit on the length of the state's path
        listener.listen(256)
        fresh = self.state / "address.new"
        fresh.write_text(address)
        fresh.rename(self.state / "address")
        parent = os.getppid()
        selector = selectors.DefaultSelector()
        selector.register(listener, selectors.EVENT_READ)
        engine = self.dialect.engine
        while os.getppid() == parent:
            if selector.select(TICK_S if engine.is_busy else 10 * TICK_S):
                self._take(listener.accept()[0])
            engine.closed = read_faults(self.state).closed
            engine.tick(self.dialect.variables)

    def _take(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            connection.settimeout(5)
            with connection.makefile("rb") as file:
                question = json.loads(file.readline())
            said = self.answer(question)
            if said is None:
                self.unanswered.append(connection)  # kept open: the client waits for ever
                return
            connection.sendall(json.dumps(said).encode())
        connection.close()


def main(dialect: str, state: Path) -> None:
    server = Server(dialect, state)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        server.serve()
    finally:
        server.dialect.engine.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
