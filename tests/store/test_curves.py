from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hpcml.store.curves import EMPTY, Columns, Precedence, extend, mean_of, merge

VALUES = st.lists(st.floats(), max_size=30)


@given(VALUES, st.integers(0, 30))
def test_adding_in_pieces_gives_to_the_bit_what_adding_at_once_gives(values: list[float], cut: int) -> None:
    steps = list(range(len(values)))

    pieces = extend(extend(EMPTY, steps[:cut], values[:cut]), steps[cut:], values[cut:])

    assert repr(pieces) == repr(extend(EMPTY, steps, values))


@given(VALUES)
def test_a_summary_says_what_a_plain_look_at_the_values_says(values: list[float]) -> None:
    finite = [value for value in values if math.isfinite(value)]

    summary = extend(EMPTY, list(range(0, 2 * len(values), 2)), values)

    assert (summary.n, summary.n_nonfinite) == (len(values), len(values) - len(finite))
    assert summary.min == min(finite, default=None)
    assert summary.max == max(finite, default=None)
    assert summary.first == (finite[0] if finite else None)
    assert summary.last == (values[-1] if values and math.isfinite(values[-1]) else None)
    assert summary.last_step == (2 * len(values) - 2 if values else None)
    assert summary.min_step == (2 * values.index(min(finite)) if finite else None)
    assert summary.max_step == (2 * values.index(max(finite)) if finite else None)


def test_the_mean_is_over_finite_values_and_none_where_their_sum_is_too_large() -> None:
    for values, mean in ([1.0, math.nan, 2.0], 1.5), ([1e308, 1e308], None), ([math.inf], None):
        tally = extend(EMPTY, range(len(values)), values)
        assert mean_of(tally.total, tally.n - tally.n_nonfinite) == mean


def test_a_later_attempt_counts_before_an_earlier_and_rank_0_before_all_others() -> None:
    order = [(1, "launch"), (1, "agent"), (1, "rank10"), (1, "rank2"), (1, "rank0"), (2, "agent"), (2, "rank0")]
    ranks = [Precedence.of(attempt=attempt, writer=writer, t0=0.0, file="") for attempt, writer in order]

    assert ranks == sorted(ranks)


def test_each_step_has_one_point_of_whoever_counts_most() -> None:
    first = Precedence.of(attempt=1, writer="rank0", t0=0.0, file="a")
    second = Precedence.of(attempt=2, writer="rank0", t0=9.0, file="b")

    merged = merge([(second, Columns([2, 3], [80, 90], [0.2, 0.3])), (first, Columns([1, 2], [10, 20], [1.0, 2.0]))])

    assert merged == ((1, 2, 3), (10, 80, 90), (1.0, 0.2, 0.3))
