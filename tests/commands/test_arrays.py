"""Packs divided among job arrays that share one limit on how many run at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcml.commands.submit.packs import chunks, share


@given(size=st.integers(1, 300), largest=st.none() | st.integers(1, 50))
def test_arrays_are_as_few_as_may_be_and_leave_nothing_out(size: int, largest: int | None) -> None:
    found = chunks(range(size), largest)

    assert [element for chunk in found for element in chunk] == list(range(size))
    assert all(0 < len(chunk) <= (largest or size) for chunk in found)
    assert len(found) == -(-size // (largest or size))


@given(limit=st.integers(1, 40), arrays=st.integers(1, 60))
def test_a_limit_is_divided_evenly_and_each_array_may_run_one(limit: int, arrays: int) -> None:
    shares = [share(limit, number, arrays) or 0 for number in range(arrays)]

    assert max(shares) - min(shares) <= 1
    assert sum(shares) == max(limit, arrays)
    assert share(None, 0, arrays) is None
