"""Runs divided among job arrays that share one limit on how many run at once."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from hpcml.commands.submit.arrays import Part, divide


def counts(parts: list[Part]) -> list[int]:
    return [part.count for part in parts]


def most_at_once(divided: list[list[Part]]) -> int:
    """Return how many elements can run at once in the worst case: the last of each line stands for its line."""
    parts = [part for group in divided for part in group]
    first_in_line = [number for number, part in enumerate(parts) if part.after is None]
    return sum(min(parts[number].at_once or parts[number].count, parts[number].count) for number in first_in_line)


def test_one_array_has_the_whole_limit() -> None:
    assert divide([10], largest=None, at_once=4) == [[Part(count=10, at_once=4)]]


def test_without_a_limit_arrays_are_as_large_as_they_may_be() -> None:
    assert divide([5], largest=2, at_once=None) == [[Part(count=2), Part(count=2), Part(count=1)]]


def test_each_array_gets_a_share_of_the_limit_and_as_much_work_as_that_can_do() -> None:
    assert divide([1000], largest=500, at_once=4) == [[Part(count=500, at_once=2)] * 2]
    assert divide([1000], largest=400, at_once=4) == [[Part(count=250, at_once=1)] * 4]
    assert divide([900, 100], largest=None, at_once=4) == [[Part(count=900, at_once=3)], [Part(count=100, at_once=1)]]


def test_more_arrays_than_may_run_at_once_stand_in_line() -> None:
    (parts,) = divide([10], largest=2, at_once=2)

    assert counts(parts) == [2] * 5
    assert [part.after for part in parts] == [None, None, 0, 1, 2]
    assert {part.at_once for part in parts} == {1}


def test_plain_jobs_count_too() -> None:
    assert [[part.after for part in group] for group in divide([1, 1, 1], largest=None, at_once=1)] == [
        [None],
        [0],
        [1],
    ]


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    largest=st.none() | st.integers(1, 50),
    at_once=st.integers(1, 40),
)
def test_the_limit_is_never_exceeded_and_nothing_is_left_out(
    sizes: list[int], largest: int | None, at_once: int
) -> None:
    divided = divide(sizes, largest=largest, at_once=at_once)

    assert [sum(counts(parts)) for parts in divided] == sizes
    assert all(0 < part.count <= (largest or part.count) for parts in divided for part in parts)
    assert most_at_once(divided) <= at_once
    assert most_at_once(divided) == min(at_once, sum(sizes))
    ends = list(accumulate(len(parts) for parts in divided))
    after = [part.after for parts in divided for part in parts]
    assert len(after) == ends[-1]
    assert all(before is None or before < number for number, before in enumerate(after))
    followed = [before for before in after if before is not None]
    assert len(set(followed)) == len(followed)  # a line, not a tree
