from __future__ import annotations

import pytest

from hpcml.errors import ConfigError
from hpcml.model.search import Axis, SamplerName, Search, check_space, grid, grid_size, parse_axis

KEY = "workload.args.x"


def axis(text: str) -> Axis:
    found = parse_axis(KEY, text, word=f"--x {text}")
    assert found is not None
    return found


def test_a_space_is_read_as_it_is_typed() -> None:
    found = {text: axis(text) for text in ("1..8", "log(1..1024)", "1e-4..1e-1", "log(1e-4..0.1)", "-1..1.5", "{a,b}")}

    assert {text: (each.low, each.high) for text, each in found.items() if not each.choices} == {
        "1..8": (1, 8),
        "log(1..1024)": (1, 1024),
        "1e-4..1e-1": (1e-4, 0.1),
        "log(1e-4..0.1)": (1e-4, 0.1),
        "-1..1.5": (-1, 1.5),
    }
    assert [text for text, each in found.items() if each.is_whole] == ["1..8", "log(1..1024)"]
    assert [text for text, each in found.items() if each.is_log] == ["log(1..1024)", "log(1e-4..0.1)"]
    assert found["{a,b}"].choices == ("a", "b")


@pytest.mark.parametrize("text", ["0.1", "{lr}", "a..b", "log(3)", "log(1..2", "1..2)", "", "--flag", "x{1,2}"])
def test_what_is_no_space_is_a_plain_value(text: str) -> None:
    assert parse_axis(KEY, text, word="") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("8..1", "upside down"),
        ("1..1", "upside down or empty"),
        ("log(0..1)", "no logarithm of 0"),
        ("log(-1..1)", "no logarithm of -1"),
        ("1e999..2", "a range has an end"),
        ("{1,}", "is empty"),
        ("{1,1.0}", "twice"),
        ("{true,True}", "twice"),
    ],
)
def test_a_space_that_cannot_be_is_refused_by_its_word(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        axis(text)
    assert str(caught.value).startswith(f"--x {text}: ")


def test_a_recorded_value_is_found_again_however_it_was_typed() -> None:
    assert axis("{64,1e-3,true,adam}").read(64) == "64"
    assert axis("{64,1e-3,true,adam}").read(0.001) == "1e-3"
    assert axis("{64,1e-3,true,adam}").read(True) == "true"  # noqa: FBT003 - a setting's value
    assert axis("{64,1e-3,true,adam}").read("adam") == "adam"
    assert axis("{64,128}").read(65) is None
    assert axis("1..8").read(8) == 8
    assert [axis("1..8").read(value) for value in (9, 2.5, None, "3", True)] == [None] * 5
    assert axis("1e-4..0.1").read(0.05) == 0.05


def test_a_number_is_tried_with_six_digits_and_within_its_bounds() -> None:
    assert axis("0.0..1.0").rounded(0.123456789) == 0.123457
    assert axis("0.1234564..1.0").rounded(0.1234564) == 0.1234564
    assert axis("1..8").rounded(3) == 3


def test_a_grid_has_an_end_or_none() -> None:
    axes = [axis("{a,b}"), parse_axis("y", "1..3", word="")]

    assert grid_size([each for each in axes if each]) == 6
    assert list(grid([each for each in axes if each]))[:2] == [{KEY: "a", "y": 1}, {KEY: "a", "y": 2}]
    assert grid_size([axis("0.0..1.0")]) is None


def search(sampler: SamplerName, runs: int = 4) -> Search:
    return Search(project="/", settings=[], program=None, runs=runs, sampler=sampler)


@pytest.mark.parametrize(
    ("sampler", "texts", "why"),
    [
        (SamplerName.grid, ["0.0..1.0"], "--sampler grid: x has no end of values"),
        (SamplerName.grid, ["1..5"], "the space has 5 points and --runs is 4"),
        (SamplerName.cmaes, ["{a,b}", "0.0..1.0"], "--sampler cmaes: x has choices"),
        (SamplerName.cmaes, ["0.0..1.0"], "one axis is too few"),
    ],
)
def test_a_sampler_that_cannot_search_the_space_is_refused(sampler: SamplerName, texts: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_space(search(sampler), [axis(text) for text in texts])


@pytest.mark.parametrize(("options", "why"), [({"in_flight": 0}, "--in-flight 0"), ({"until": "soon"}, "--until soon")])
def test_limits_that_are_none_are_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Search(project="/", settings=[], program=None, runs=1, **options)  # type: ignore[arg-type]
