from __future__ import annotations

from collections.abc import Callable

from hpcml_train.loop import StepClock


class Device:
    """Works on after it was given something, as a GPU does; its clock goes on only while somebody waits or works."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pending_s = 0.0

    def launch(self, seconds: float) -> None:
        self.pending_s += seconds

    def wait(self) -> None:
        self.now_s += self.pending_s
        self.pending_s = 0.0

    def clock(self) -> Callable[[], float]:
        return lambda: self.now_s


def test_each_part_is_waited_for_and_nothing_of_one_falls_into_the_other() -> None:
    device = Device()
    clock = StepClock(device.wait, now=device.clock())
    measured = []

    for data_s, step_s, between_s in ((0.25, 2.0, 4.0), (0.5, 1.0, 0.0)):
        with clock.data:
            device.launch(data_s)
        with clock.step:
            device.launch(step_s)
        measured.append((clock.data.took_s, clock.step.took_s))
        device.launch(between_s)  # an evaluation that nobody waited for

    assert measured == [(0.25, 2.0), (0.5, 1.0)]
