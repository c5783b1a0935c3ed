import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcml.walltime import parse_walltime_s, spell_walltime


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1s"), (59, "59s"), (61, "2m"), (3600, "1h"), (5400, "1h30m"), (90_000, "25h")]
)
def test_a_walltime_is_spelt_as_people_do(seconds: float, words: str) -> None:
    assert spell_walltime(seconds) == words


@given(st.floats(min_value=0.001, max_value=1e7))
@settings(deadline=None)
def test_what_is_spelt_is_read_as_no_less_and_at_most_a_minute_more(seconds: float) -> None:
    assert seconds <= parse_walltime_s(spell_walltime(seconds)) <= seconds + 61
