"""Where ranks leave their addresses: torch's store in place of Horovod's own server."""

from __future__ import annotations

from collections.abc import Sequence

from torch import distributed

_serving: list[distributed.TCPStore] = []  # until the process ends, as Horovod's thread does


class RendezvousServer:
    """Started by whoever starts the ranks."""

    def start(self) -> int:
        """Serve at a free port, and return it."""
        _serving.append(distributed.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False))
        return _serving[-1].port

    def init(self, host_alloc_plan: Sequence[object]) -> None:
        """Begin a new group of so many ranks."""
        assert host_alloc_plan
