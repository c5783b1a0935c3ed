"""Why clocks are lowered at this moment, for drivers that do not count for how long they have been."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pynvml

# Reason -> its bit (nvml.h, nvmlClocksEventReason...), and the counters that make it needless to look
_REASONS: Mapping[str, tuple[int, frozenset[str]]] = {
    "power": (0x04, frozenset({"throttle_power_s"})),
    "hw": (0x08, frozenset({"throttle_hw_thermal_s", "throttle_power_brake_s"})),  # by either: all that old GPUs say
    "sync_boost": (0x10, frozenset({"throttle_sync_boost_s"})),
    "sw_thermal": (0x20, frozenset({"throttle_sw_thermal_s"})),
    "hw_thermal": (0x40, frozenset({"throttle_hw_thermal_s"})),
    "power_brake": (0x80, frozenset({"throttle_power_brake_s"})),
}


class ThrottleBits:
    """Looks for the reasons that no counter counts; may raise NVML's errors in every call."""

    def __init__(self, board: object, counted: Collection[str]) -> None:
        """Take the handle of a GPU and the names of the counters that it has."""
        self._board = board
        self._bits = {reason: bit for reason, (bit, counters) in _REASONS.items() if counters.isdisjoint(counted)}
        self._has_new_name = True

    @property
    def is_needed(self) -> bool:
        """Whether there is a reason that no counter counts."""
        return bool(self._bits)

    def read(self, _: float) -> dict[str, float]:
        """Return 100 for each reason that holds now, else 0: the mean over samples is a share of them."""
        found = self._ask()
        return {f"throttled_{reason}_percent": 100.0 if found & bit else 0.0 for reason, bit in self._bits.items()}

    def _ask(self) -> int:
        if self._has_new_name:
            try:
                return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._board))
            except pynvml.NVMLError_FunctionNotFound:  # R510 knows the older name alone, R550 both
                self._has_new_name = False
        return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._board))
