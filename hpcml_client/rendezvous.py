"""A meeting of the run's processes before their framework starts: rank 0 collects addresses and hands them out.

For frameworks that need every address beforehand, as TensorFlow's workers do. Connections stay open, so that the others
learn when rank 0 is done, or gone. Whoever comes and is no rank of the run is turned away.
"""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hpcml_client.client import Client

_PATIENCE_S = 300.0  # until all have come: some import their framework from a cold file system
_PAUSE_S = 0.1
_FIRST_PORT, _LAST_PORT = 20_000, 29_999  # below the range from which Linux takes ports by itself
_TRIES = 100
_DONE = b"+"
_LONGEST_LINE = 1 << 20  # the addresses of 10,000 ranks are less
_GOING_S = 10.0  # for a process to end that has nothing more to do
_INTRODUCTION_S = 10.0  # for who has connected to say which rank it is


class RendezvousError(Exception):
    """The processes did not find each other; the message is one line."""


class Rendezvous:
    """The connected processes of one run; made by `meet`."""

    def __init__(self, addresses: list[str], links: list[socket.socket]) -> None:
        self.addresses = addresses  # host:port of each rank, which it has found free
        self._links = links

    def dismiss(self) -> None:
        """Tell all others that the work is done, and wait until they have gone."""
        for link in self._links:
            with suppress(OSError):  # it has gone already
                link.sendall(_DONE)
        for link in self._links:
            with suppress(OSError):
                link.settimeout(_GOING_S)
                link.recv(1)  # nothing comes: they hang up
        self.close()

    def wait_until_dismissed(self) -> None:
        """Wait until rank 0 says that the work is done, or is gone."""
        with suppress(OSError):
            self._links[0].recv(1)
        self.close()

    def close(self) -> None:
        """Close the connections without a message."""
        for link in self._links:
            link.close()


def meet(run: Client, environ: Mapping[str, str] | None = None, *, patience_s: float = _PATIENCE_S) -> Rendezvous:
    """Wait for all ranks of *run* at MASTER_ADDR and MASTER_PORT; return where each can be reached.

    Raises `RendezvousError` where the environment names no address, or a rank does not come within *patience_s*
    seconds.
    """
    env = os.environ if environ is None else environ
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if missing:
        raise RendezvousError(f"{' and '.join(missing)} must be in the environment: start it with hpcml")
    host, port, name = env["MASTER_ADDR"], int(env["MASTER_PORT"]), env.get("HPCML_RUN_ID", "")
    until = time.monotonic() + patience_s
    links: dict[int, socket.socket] = {}
    try:
        if run.rank == 0:
            addresses = _gather(links, run.world_size, host, port, name, until)
        else:
            addresses = _come(links, run.rank, host, port, name, until)
    except (OSError, ValueError) as error:
        for link in links.values():
            link.close()
        raise RendezvousError(f"rank {run.rank} of {run.world_size} met nobody at {host}:{port}: {error}") from error
    return Rendezvous(addresses, list(links.values()))


def _gather(links: dict[int, socket.socket], count: int, host: str, port: int, name: str, until: float) -> list[str]:
    addresses = {0: f"{host}:{_free_port()}"}
    # where the others look, and on one machine nowhere else
    with socket.create_server((host if host == "127.0.0.1" else "", port)) as server:
        while len(addresses) < count:
            server.settimeout(_left(until, f"{len(addresses)} of {count} ranks came"))
            link, (where, *_) = server.accept()
            link.settimeout(min(_INTRODUCTION_S, _left(until, "a rank said nothing")))
            said: dict[str, Any] = {}
            with suppress(OSError, ValueError):
                said = _read_line(link) or {}
            if said.get("run") != name or said.get("rank") not in range(1, count) or "port" not in said:
                link.close()  # somebody else's, who has the same port
                continue
            addresses[said["rank"]] = f"{where}:{said['port']}"
            links[said["rank"]] = link
    found = [addresses[rank] for rank in range(count)]
    for link in links.values():
        link.sendall(json.dumps({"addresses": found}).encode() + b"\n")
    return found


def _come(links: dict[int, socket.socket], rank: int, host: str, port: int, name: str, until: float) -> list[str]:
    while 0 not in links:
        try:
            links[0] = socket.create_connection((host, port), timeout=_left(until, "the first rank did not listen"))
        except ConnectionRefusedError:  # noqa: PERF203 - of a meeting
            time.sleep(_PAUSE_S)
    link = links[0]
    link.sendall(json.dumps({"run": name, "rank": rank, "port": _free_port()}).encode() + b"\n")
    link.settimeout(_left(until, "the first rank did not answer"))
    said = _read_line(link)
    if said is None:
        raise OSError("the first rank hung up")
    link.settimeout(None)
    found: list[str] = said["addresses"]
    return found


def _read_line(link: socket.socket) -> dict[str, Any] | None:
    line = bytearray()
    while not line.endswith(b"\n"):  # byte by byte: what follows belongs to whoever reads next
        byte = link.recv(1) if len(line) < _LONGEST_LINE else b""
        if not byte:
            return None
        line += byte
    found = json.loads(line)
    return found if isinstance(found, dict) else None


def _left(until: float, otherwise: str) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise OSError(otherwise)
    return left


def _free_port() -> int:
    for port in random.sample(range(_FIRST_PORT, _LAST_PORT), _TRIES):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError(f"none of {_TRIES} ports of this node is free")
