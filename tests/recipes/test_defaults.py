"""What a recipe does by hand is what it does by hpcml: its own defaults are those of its model's file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

pytest.importorskip("torch")

from numeric_runs import ROOT, load

from hpcml.model.recipe import read_recipe

pytestmark = pytest.mark.torch
# recipe -> its model, and where the recipe says the defaults of its options
OWN = {
    "allreduce": ("allreduce", "training", "DEFAULTS"),
    "gemm": ("gemm", "training", "DEFAULTS"),
    "image_classification": ("mnist_cnn", "models", "DEFAULTS"),
    "inference": ("inference", "training", "Options"),
    "linear_mse": ("linear_mse", "line", "DEFAULTS"),
    "lstm": ("lstm", "shape", "Shape"),
    "lu": ("lu", "training", "DEFAULTS"),
    "resnet": ("resnet18", "pictures", "Options"),
    "seq2seq": ("seq2seq", "models", "Shape"),
    "staleness": ("staleness", "training", "DEFAULTS"),
    "transformer": ("transformer_tiny", "shape", "Shape"),
    "unet": ("unet", "pixels", "Options"),
    "word2vec": ("word2vec", "models", "Shape"),
}


def plain(own: Mapping[str, Any] | type[Any]) -> dict[str, Any]:
    found = dict(own) if isinstance(own, Mapping) else dataclasses.asdict(own())
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def test_the_defaults_of_each_recipe_are_those_of_its_model() -> None:
    declared = {path.parent.name: read_recipe(path.parent) for path in (ROOT / "recipes").glob("*/recipe.toml")}
    assert {name for name, recipe in declared.items() if recipe.options} == set(OWN)
    for recipe, (model, module, name) in OWN.items():
        shipped = yaml.safe_load((ROOT / "conf" / "model" / f"{model}.yaml").read_text())
        loaded = load(recipe, module)
        own = plain(getattr(loaded, name))

        assert own == shipped.get("model", shipped)["options"], recipe
        assert set(own) == set(declared[recipe].options), recipe
        assert [declared[recipe].options[key].complaint(value) for key, value in own.items()] == [None] * len(own)
        by_hand = re.search(r"learning_rate=([\d.]+)", (ROOT / "recipes" / recipe / "train.py").read_text())
        if by_hand:
            assert shipped["training"]["learning_rate"] == float(by_hand[1]), recipe
