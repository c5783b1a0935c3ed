"""How often something that turned out slow is done: each time, then every second, fourth, eighth ... time."""

from __future__ import annotations

from dataclasses import dataclass

SLOW_S = 0.020  # NVML's calls take the driver's lock, and the program waits for it (MangoHud#2104, nvtop#365)
_RAREST = 64


@dataclass(slots=True)
class Pace:
    """Backs off exponentially while a call is slow, and comes back as soon as it is fast."""

    every: int = 1  # of so many ticks one is used
    _left: int = 0

    def is_due(self) -> bool:
        """Count one tick; tell whether it is used."""
        if self._left:
            self._left -= 1
            return False
        return True

    def took(self, duration_s: float, *, slow_s: float = SLOW_S) -> None:
        """Take note of what a tick that was used took."""
        self.every = min(2 * self.every, _RAREST) if duration_s > slow_s else 1
        self._left = self.every - 1
