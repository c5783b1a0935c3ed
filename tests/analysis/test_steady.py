from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import curve

from hpcml.analysis.steady import (
    MIN_STEPS,
    Window,
    common_window,
    steady_state,
    steady_states,
)
from hpcml.model.records import Curve, Point


def points(values: list[float], *, first_step: int = 1) -> list[Point]:
    return [Point(step=first_step + i, t_s=float(i), value=value) for i, value in enumerate(values)]


def test_the_steady_state_is_the_median_of_the_last_half() -> None:
    state = steady_state(points([9.0] * 10 + [1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 50.0]))

    assert state is not None
    assert state.window == Window(from_step=11, to_step=20)
    assert (state.median_s, state.n) == (2.5, 10)
    assert state.p5_s == 1.0
    assert 3.0 < state.p95_s < 50.0


def test_start_up_and_stalls_move_it_by_less_than_two_percent() -> None:
    state = steady_state(curve(0.020))

    assert state is not None
    assert abs(state.median_s / 0.020 - 1) < 0.02


def test_fewer_than_eight_steps_in_the_window_are_no_steady_state() -> None:
    assert steady_state(points([1.0] * (2 * MIN_STEPS - 2))) is None
    assert steady_state(points([1.0] * (2 * MIN_STEPS))) is not None
    assert steady_state(points([1.0] * 40), Window(from_step=34, to_step=40)) is None
    assert steady_state([]) is None


def test_values_that_are_no_durations_are_ignored() -> None:
    values = [1.0] * 40
    values[30], values[35], values[36] = math.nan, math.inf, -1.0

    state = steady_state(points(values))

    assert state is not None
    assert state.median_s == 1.0
    assert state.p95_s == 1.0


def test_points_may_come_in_any_order() -> None:
    shuffled = sorted(points([5.0] * 20 + [1.0] * 20), key=lambda point: (point.step * 7) % 41)

    state = steady_state(shuffled)

    assert state is not None
    assert state.median_s == 1.0


def test_all_curves_are_seen_in_the_window_that_lies_in_every_last_half() -> None:
    long, short = points([1.0] * 100), points([1.0] * 80)

    assert common_window([long, short]) == Window(from_step=51, to_step=80)


def test_a_curve_that_is_too_short_does_not_shrink_the_window_of_the_others() -> None:
    assert common_window([points([1.0] * 100), points([1.0] * 3)]) == Window(from_step=51, to_step=100)


def test_curves_without_a_common_last_half_have_no_window() -> None:
    assert common_window([points([1.0] * 100), points([1.0] * 20)]) is None
    assert common_window([]) is None


@given(
    st.dictionaries(
        st.integers(0, 9),
        st.lists(st.floats(1e-4, 1e3) | st.sampled_from([math.nan, math.inf, 0.0, -1.0]), max_size=60),
        max_size=10,
    )
)
def test_many_curves_at_once_in_columns_give_what_each_gives_alone(curves: dict[int, list[float]]) -> None:
    points = {str(at): [Point(step, step / 2, of) for step, of in enumerate(values)] for at, values in curves.items()}
    columns = {uid: Curve(*zip(*of, strict=True)) if of else Curve() for uid, of in points.items()}
    alone = {uid: state for uid, of in points.items() if (state := steady_state(of)) is not None}

    assert steady_states(columns) == steady_states(points) == alone
    for uid, state in alone.items():
        inside = [
            value
            for step, _, value in points[uid]
            if state.window.from_step <= step <= state.window.to_step and 0 < value < math.inf
        ]
        cuts = statistics.quantiles(inside, n=20, method="inclusive")
        assert (state.p5_s, state.median_s, state.p95_s) == pytest.approx((cuts[0], cuts[9], cuts[18]), rel=1e-12)
