import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcml.errors import ConfigError
from hpcml.units import parse_interval_s, parse_memory_mb
from hpcml.walltime import format_walltime, parse_wait_s, parse_walltime_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("01:30:00", 5400),
        ("1:30:00", 5400),
        ("100:00:00", 360_000),
        ("1-00:00:00", 86_400),
        ("2-12", 216_000),
        ("1-02:03", 93_780),
        ("2h30m", 9000),
        ("45m", 2700),
        ("90min", 5400),
        ("1d", 86_400),
        ("30s", 30),
    ],
)
def test_the_usual_ways_to_write_a_walltime_are_understood(text: str, seconds: int) -> None:
    assert parse_walltime_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1.0), ("500ms", 0.5), ("0.5s", 0.5), (" 2m ", 120.0), ("2min", 120.0), ("2", 2)]
)
def test_intervals_may_be_shorter_than_a_second(text: str, seconds: float) -> None:
    assert parse_interval_s(text, field="x") == seconds


@pytest.mark.parametrize("text", ["", "1h30m", "1 h", "-1s", "1 s 5", "nan"])
def test_what_is_no_interval_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(ConfigError, match="telemetry"):
        parse_interval_s(text, field="telemetry.interval")


@pytest.mark.parametrize(
    ("text", "seconds"), [("200", 200), ("200s", 200), ("5m", 300), ("2h30m", 9000), ("01:00:00", 3600)]
)
def test_what_no_scheduler_reads_may_be_bare_seconds(text: str, seconds: int) -> None:
    assert parse_wait_s(text, field="--timeout") == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "soon", "24:00", "²", "9" * 5000])
def test_what_is_no_time_is_refused_with_the_ways_to_write_one(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--timeout=.* is no time: write 200"):
        parse_wait_s(text, field="--timeout")


@pytest.mark.parametrize("text", ["24:00", "90:00"])
def test_two_numbers_are_refused_as_ambiguous(text: str) -> None:
    with pytest.raises(ConfigError, match="ambiguous"):
        parse_walltime_s(text)


@pytest.mark.parametrize(
    "text", ["", "60", "1:75:00", "00:00:00", "-1h", "2h30", "1.5h", "24:00:00:00", "h", "infinite"]
)
def test_what_is_no_walltime_is_refused_with_the_field_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"resources\.walltime"):
        parse_walltime_s(text)


def test_a_number_is_refused_with_how_yaml_makes_one_of_a_walltime() -> None:
    with pytest.raises(ConfigError, match=r"'86400' is no walltime: .*in quotes: 24:00:00 without is a number"):
        parse_walltime_s("86400")


@given(st.integers(min_value=1, max_value=10_000_000))
def test_a_formatted_walltime_reads_back_as_itself(seconds: int) -> None:
    assert parse_walltime_s(format_walltime(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "megabytes"), [("64G", 65_536), ("500M", 500), ("1T", 1_048_576), ("2048K", 2), ("8GB", 8192)]
)
def test_memory_is_read_in_powers_of_1024(text: str, megabytes: int) -> None:
    assert parse_memory_mb(text) == megabytes


@pytest.mark.parametrize("text", ["64", "0G", "1.5G", "lots", "", "1K"])
def test_memory_without_a_unit_or_a_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"resources\.mem"):
        parse_memory_mb(text)
