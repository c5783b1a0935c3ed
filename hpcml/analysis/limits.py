"""What probably keeps a run from its device's peak: rules with thresholds, for `hpcml peak` and `hpcml compare`.

The thresholds are ours, chosen so that what is named is worth an hour of somebody's time; they are no measurements.
docs/peak.md lists them. A rule whose value was not measured never applies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

WAITING = 0.10  # of the time from step to step, for input
COMMUNICATION = 0.10  # of a step
THROTTLED = 0.05  # of the time
SKIPPED = 0.05  # of the steps, by loss scaling
IDLE_BELOW = 60.0  # % of the time in which any kernel ran
BUSY_FROM = 80.0
FEW_SMS_BELOW = 40.0  # % of multiprocessors at work
FULL_SMS_FROM = 60.0
TENSOR_BELOW = 10.0  # % of the time in which tensor cores worked
DRAM_FROM = 60.0  # % of the time in which the memory was read or written
SHORT_STEP_S = 0.020  # some hundred kernels of some ten microseconds each
LITTLE_MFU = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What was measured of the runs; None: not measured. Percentages are 0 to 100 (NVML), shares 0 to 1."""

    step_s: float | None = None
    data_share: float | None = None
    communication_share: float | None = None
    util_percent: float | None = None
    sm_active_percent: float | None = None
    tensor_percent: float | None = None
    dram_percent: float | None = None
    throttled_power_share: float | None = None
    throttled_thermal_share: float | None = None
    skipped_share: float | None = None
    mfu: float | None = None
    uses_tensor_cores: bool = False  # the effective precision is one that tensor cores compute in


def find_limits(signs: Signs) -> tuple[str, ...]:
    """Return what limits the runs as sentences, the likeliest first: lost time by its share, the device, its clocks.

    >>> find_limits(Signs(data_share=0.4))
    ('waits for input 40 % of the time',)
    """
    lost = sorted(_lost_time(signs), key=lambda found: -found[0])
    return (*(words for _, words in lost), *_device(signs), *_clocks(signs), *_skipped(signs))


def _lost_time(signs: Signs) -> Iterator[tuple[float, str]]:
    if _at_least(signs.data_share, WAITING):
        yield signs.data_share or 0.0, f"waits for input {_percent(signs.data_share)} of the time"
    if _at_least(signs.communication_share, COMMUNICATION):
        share = signs.communication_share
        yield share or 0.0, f"communication takes {_percent(share)} of a step"


def _device(signs: Signs) -> Iterator[str]:
    explained = _at_least(signs.data_share, WAITING) or _at_least(signs.communication_share, COMMUNICATION)
    is_short = signs.step_s is not None and signs.step_s <= SHORT_STEP_S
    if signs.util_percent is not None and signs.util_percent < IDLE_BELOW and not explained:
        why = "steps are short: launching kernels takes longer than running them" if is_short else "the host is slow"
        yield f"the GPU idles {100 - signs.util_percent:.0f} % of the time; {why}"
    if _at_least(signs.dram_percent, DRAM_FROM):
        yield f"the memory's bandwidth: it is read or written {signs.dram_percent:.0f} % of the time"
    is_busy = _at_least(signs.util_percent, BUSY_FROM)
    if is_busy and signs.sm_active_percent is not None and signs.sm_active_percent < FEW_SMS_BELOW:
        yield (
            f"small kernels: one runs {signs.util_percent:.0f} % of the time, on {signs.sm_active_percent:.0f} % of "
            f"the multiprocessors{', and steps are short' if is_short else ''}; larger batches fill more"
        )
    elif is_busy and signs.sm_active_percent is None and is_short and _below(signs.mfu, LITTLE_MFU):
        yield "busy with little arithmetic in short steps: small kernels, perhaps; how full the GPU is was not measured"
    is_full = _at_least(signs.sm_active_percent, FULL_SMS_FROM)
    if signs.uses_tensor_cores and is_full and _below(signs.tensor_percent, TENSOR_BELOW):
        yield f"tensor cores work {signs.tensor_percent:.0f} % of the time only: most kernels do not use them"


def _clocks(signs: Signs) -> Iterator[str]:
    if _at_least(signs.throttled_thermal_share, THROTTLED):
        yield f"heat lowers the clocks {_percent(signs.throttled_thermal_share)} of the time"
    if _at_least(signs.throttled_power_share, THROTTLED):
        yield f"the power limit lowers the clocks {_percent(signs.throttled_power_share)} of the time"


def _skipped(signs: Signs) -> Iterator[str]:
    if _at_least(signs.skipped_share, SKIPPED):
        yield f"loss scaling throws away {_percent(signs.skipped_share)} of the steps"


def _at_least(value: float | None, limit: float) -> bool:
    return value is not None and value >= limit


def _below(value: float | None, limit: float) -> bool:
    return value is not None and value < limit


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share * 100:.0f} %"
