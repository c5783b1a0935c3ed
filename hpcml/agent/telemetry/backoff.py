"""Calls that turn out to be slow are made less often: in one of 2, 4, 8 ... ticks, at least in one of 64."""

from __future__ import annotations

from dataclasses import dataclass

SLOW_S = 0.020  # NVML's calls take the driver's lock, and the program waits for it (MangoHud#2104, nvtop#365)
_RAREST = 64


@dataclass(slots=True)
class Backoff:
    """Exponential backoff of one repeated call: rarer while it is slow, and in every tick again once it is fast."""

    every: int = 1  # of so many ticks one is used
    _left: int = 0

    def is_due(self) -> bool:
        """Count one tick; tell whether the call is to be made in it."""
        if self._left:
            self._left -= 1
            return False
        return True

    def took(self, duration_s: float, *, slow_s: float = SLOW_S) -> None:
        """Record how long a call took, in seconds; longer than *slow_s* halves the rate, else it is full again."""
        self.every = min(2 * self.every, _RAREST) if duration_s > slow_s else 1
        self._left = self.every - 1
