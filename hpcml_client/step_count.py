"""What is known of the floating point operations of a training step."""

from __future__ import annotations

from typing import NamedTuple, Optional


class StepCount(NamedTuple):
    """The operations of one forward and backward pass, a fused multiply-add as two; None where they are unknown."""

    flops: Optional[float]
    doubt: Optional[str] = None  # what the count cannot see, or why there is none; one line
