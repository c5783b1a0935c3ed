"""Recipes and the matrix are told in the forms that people and programs read."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from hpcml.model.choices import Numerics
from hpcml.model.precision import PrecisionName
from hpcml.model.recipe import ListedRecipe, Option, PrecisionOutcome, Recipe
from hpcml.model.run import Model
from hpcml.report import recipes as report
from hpcml.report.render.data import as_csv, as_json
from hpcml.report.render.markdown import as_markdown
from hpcml.report.render.terminal import as_text

NETS = ListedRecipe(
    recipe=Recipe(
        name="nets",
        summary="networks",
        frameworks=["torch"],
        data=["digits"],
        refused={"fp16": "too small"},
        options={
            "width": Option(type="int", help="neurons", min=1, max=9),
            "kind": Option(type="str", help="which", choices=["a", "b"]),
            "sizes": Option(type="int[]", help="of layers"),
        },
    ),
    folder=Path("/recipes/nets"),
    is_own=True,
    models=[
        Model(name="small", recipe="nets", framework="torch", options={"width": 3, "kind": "a", "sizes": [1, 2]}),
        Model(name="large", recipe="nets", framework="torch", options={"width": 7, "kind": "a", "sizes": [1, 2]}),
    ],
)
OUTCOMES = [
    PrecisionOutcome(
        recipe="nets", framework="torch", precision=PrecisionName.tf32, device="cpu", numerics=Numerics.emulated
    ),
    PrecisionOutcome(
        recipe="nets", framework="torch", precision=PrecisionName.tf32, device="v100", numerics=None, reason="no units"
    ),
]


def test_a_recipe_is_one_line_with_its_models() -> None:
    said = as_text(report.recipes_document([NETS]), width=120)

    assert said.splitlines()[1].split() == [
        *("nets", "(yours)", "small,", "large", "torch", "single", "digits", "networks"),
    ]
    assert next(csv.DictReader(io.StringIO(as_csv(report.recipes_document([NETS])))))["models"] == "small, large"
    assert "| nets (yours) | small, large |" in as_markdown(report.recipes_document([NETS]))


def test_options_are_told_with_range_and_the_default_of_each_model() -> None:
    assert list(csv.reader(io.StringIO(as_csv(report.recipe_document(NETS)))))[1:] == [
        ["width", "int", ">= 1, <= 9", "3 (small), 7 (large)", "neurons"],
        ["kind", "str", "a, b", "a", "which"],
        ["sizes", "int[]", "", "[1,2]", "of layers"],
    ]
    said = as_text(report.recipe_document(NETS), width=120)
    assert "refuses     fp16: too small" in said
    assert "3 (small), 7 (large)" in said
    assert "| width | int |" in as_markdown(report.recipe_document(NETS))


def test_the_json_of_a_recipe_has_everything() -> None:
    (said,) = json.loads(as_json(report.recipes_document([NETS])))

    assert said["options"]["width"] == {"type": "int", "help": "neurons", "min": 1, "max": 9, "choices": []}
    assert said["models"][1] == {
        "name": "large", "framework": "torch", "options": {"width": 7, "kind": "a", "sizes": [1, 2]},
    }  # fmt: skip
    assert (said["own"], said["refused"]) == (True, {"fp16": "too small"})


def test_the_matrix_numbers_its_reasons() -> None:
    said = as_text(report.matrix_document(OUTCOMES), width=120)

    assert said.splitlines()[1].split() == ["nets", "torch", "tf32", "emulated", "refused", "1"]
    assert said.splitlines()[-1] == "refused 1: no units"
    assert "- refused 1: no units" in as_markdown(report.matrix_document(OUTCOMES))
    assert [row["outcome"] for row in json.loads(as_json(report.matrix_document(OUTCOMES)))] == ["emulated", "refused"]
    assert list(csv.reader(io.StringIO(as_csv(report.matrix_document(OUTCOMES)))))[2][-1] == "no units"
