"""What one setting asks of another is data, and says itself in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hpcml.errors import ConfigError
from hpcml.model.recipe import Requirement

IN_A_LIBRARY = Requirement(
    when={"model.options.kind": "library"}, setting="precision", one_of=["fp64", "fp32"], because="it has no other"
)
HEADS = Requirement(setting="width", multiple_of="heads")
STAGES = Requirement(setting="stages", at_most="layers", plus=2)


@pytest.mark.parametrize(
    ("asked", "settings"),
    [
        (IN_A_LIBRARY, {"model.options.kind": "library", "precision": "fp32"}),
        (IN_A_LIBRARY, {"model.options.kind": "blocked", "precision": "bf16"}),
        (HEADS, {"width": 12, "heads": 3}),
        (STAGES, {"stages": 4, "layers": 2}),
        (Requirement(setting="compile", one_of=[False]), {"compile": False}),
        (Requirement(setting="samples", at_least=2), {"samples": 2}),
    ],
)
def test_what_is_as_asked_gives_no_complaint(asked: Requirement, settings: Mapping[str, Any]) -> None:
    assert asked.complaint(settings) is None


@pytest.mark.parametrize("asked", [IN_A_LIBRARY, HEADS, STAGES, Requirement(setting="samples", at_least=2)])
def test_what_is_not_set_is_left_to_the_recipe(asked: Requirement) -> None:
    assert asked.complaint({"model.options.kind": "library"}) is None
    assert asked.complaint({"width": 7, "stages": 9}) is None


@pytest.mark.parametrize(
    ("asked", "settings", "line"),
    [
        (
            IN_A_LIBRARY,
            {"model.options.kind": "library", "precision": "bf16"},
            "precision=bf16 with model.options.kind=library must be fp64 or fp32: it has no other",
        ),
        (HEADS, {"width": 7, "heads": 3}, "width=7 with heads=3 must be a multiple of heads"),
        (Requirement(setting="width", multiple_of=4), {"width": 7}, "width=7 must be a multiple of 4"),
        (STAGES, {"stages": 5, "layers": 2}, "stages=5 with layers=2 must be at most layers + 2"),
        (Requirement(setting="stages", at_most=2.0), {"stages": 3}, "stages=3 must be at most 2"),
        (Requirement(setting="samples", at_least=2), {"samples": 1}, "samples=1 must be at least 2"),
        (Requirement(setting="compile", one_of=[False]), {"compile": True}, "compile=true must be false"),
    ],
)
def test_a_complaint_names_the_settings_their_values_and_why(
    asked: Requirement, settings: Mapping[str, Any], line: str
) -> None:
    assert asked.complaint(settings) == line


def test_one_of_several_values_is_enough_for_a_requirement_to_apply() -> None:
    asked = Requirement(when={"strategy": ["pipeline", "model_parallel"]}, setting="kind", one_of=["decoder"])

    assert asked.complaint({"strategy": "model_parallel", "kind": "encoder"}) is not None
    assert asked.complaint({"strategy": "ddp", "kind": "encoder"}) is None
    assert str(asked) == "kind must be decoder with strategy=pipeline or model_parallel"


@pytest.mark.parametrize(("ways", "count"), [({}, 0), ({"at_least": 1, "at_most": 2}, 2)])
def test_a_requirement_that_asks_nothing_or_twice_is_refused(ways: Mapping[str, Any], count: int) -> None:
    with pytest.raises(ConfigError, match=rf"requires\.setting='width': say one of one_of, .*, not {count}"):
        Requirement(setting="width", **ways)
