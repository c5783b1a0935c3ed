"""The double's server: ``python -m tests.cluster.pbs.server STATE`` answers clients until its parent has gone."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from tests.cluster.pbs import programs
from tests.cluster.pbs.client import refused
from tests.cluster.pbs.faults import Faults, read_faults
from tests.cluster.pbs.scheduler import Scheduler

TICK_S = 0.02
IDLE_TICK_S = 0.2


class Server:
    """One thread: a question is answered at once, or never where the fault wants that."""

    def __init__(self, state: Path) -> None:
        self.state = state
        for name in ("aux", "jobs", "spool", "tmp"):
            (state / name).mkdir(parents=True, exist_ok=True)
        self.scheduler = Scheduler(state)
        self.failed: dict[str, int] = {}  # how many calls of a program were made to fail so far
        self.unanswered: list[socket.socket] = []

    def answer(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer, or None for silence."""
        program, faults = question["program"], self.heed_faults()
        if program == "_task":
            return self._register_task(question["argv"])
        self._count(question)
        if program in faults.hung:
            return None
        if program in faults.down or self.failed.get(program, 0) < faults.fail_next.get(program, 0):
            self.failed[program] = self.failed.get(program, 0) + 1
            said = refused(program)
            return {**said, "out": programs.empty_json() if program == "qstat" and "json" in question["argv"] else ""}
        self.scheduler.tick()
        found = programs.run(question, self.scheduler, faults)
        return None if program in faults.hung_after and "need" not in found else found

    def heed_faults(self) -> Faults:
        """Take the settings as the test left them."""
        faults = read_faults(self.state)
        self.scheduler.kill_delay_s, self.scheduler.closed = faults.kill_delay_s, faults.closed
        if faults.all_running:
            self.scheduler.pretend_to_run()
        self.scheduler.next_number = max(self.scheduler.next_number, faults.next_number or 0)
        return faults

    def _count(self, question: dict[str, Any]) -> None:
        with (self.state / "calls.jsonl").open("a") as file:
            file.write(json.dumps([question["program"], *question["argv"]]) + "\n")

    def _register_task(self, argv: list[str]) -> dict[str, Any]:
        job = self.scheduler.shown(argv[0], history=True)
        if not isinstance(job, str):
            job.sessions.append(int(argv[1]))
        return {"rc": 0, "out": "", "err": ""}

    def serve(self) -> None:
        listener = socket.socket(socket.AF_UNIX)
        address = f"pbs-double-{secrets.token_hex(8)}"
        listener.bind("\0" + address)  # an abstract name: no limit on the length of the state's path
        listener.listen(256)
        fresh = self.state / "address.new"
        fresh.write_text(address)
        fresh.rename(self.state / "address")
        parent = os.getppid()
        selector = selectors.DefaultSelector()
        selector.register(listener, selectors.EVENT_READ)
        while os.getppid() == parent:
            if selector.select(TICK_S if self.scheduler.live or self.scheduler.waiting else IDLE_TICK_S):
                self._take(listener.accept()[0])
            self.heed_faults()
            self.scheduler.tick()

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


def main(state: Path) -> None:
    server = Server(state)

    def stop(*_: object) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    try:
        server.serve()
    finally:
        server.scheduler.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
