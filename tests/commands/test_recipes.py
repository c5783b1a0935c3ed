"""Recipes are listed with their models; devices are found by what people call them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.commands.recipes import CPU_AND_GPUS, find_device, list_recipes, outcomes
from hpcml.errors import ConfigError
from hpcml.model.choices import Numerics
from hpcml.model.precision import CAPABILITIES, PrecisionName
from hpcml.paths import resource_dir
from hpcml.report.recipes import recipe_document
from hpcml.report.render.markdown import as_markdown


def test_every_shipped_recipe_is_listed_and_some_model_chooses_it(tmp_path: Path) -> None:
    listed = {item.recipe.name: item for item in list_recipes(tmp_path)}

    assert set(listed) == {path.parent.name for path in resource_dir("recipes").glob("*/train.py")}
    assert not any(item.is_own for item in listed.values())
    assert all(item.models for item in listed.values())
    assert [model.name for model in listed["image_classification"].models] == ["mnist_cnn", "mnist_mlp"]


def test_every_option_of_a_recipe_has_a_default_in_each_of_its_models_that_the_recipe_admits(tmp_path: Path) -> None:
    for item in list_recipes(tmp_path):
        for model in item.models:
            assert model.framework in item.recipe.frameworks
            not_its_own = {rule.setting for rule in item.recipe.requires if rule.when.get("model") == model.name}
            its_own = {name for name in item.recipe.options if f"model.options.{name}" not in not_its_own}
            assert set(model.options) == its_own, model.name
            for name, value in model.options.items():
                assert item.recipe.options[name].complaint(value) is None, (model.name, name, value)


def test_one_recipe_is_found_by_name_or_those_that_are_there_are_named(tmp_path: Path) -> None:
    (found,) = list_recipes(tmp_path, "image_classification")

    assert found.folder == resource_dir("recipes") / "image_classification"
    with pytest.raises(ConfigError, match=r"there is no recipe nope: choose .*image_classification"):
        list_recipes(tmp_path, "nope")


@pytest.mark.parametrize(
    ("name", "models"), [("lstm", "lstm (torch by default), lstm_text (torch by default)"), ("lu", "lu (torch)")]
)
def test_the_framework_of_a_model_is_called_a_default_where_others_can_be_chosen(
    tmp_path: Path, name: str, models: str
) -> None:
    (found,) = list_recipes(tmp_path, name)

    assert f"- models: {models}" in as_markdown(recipe_document(found))


def test_a_folder_of_the_users_with_a_shipped_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipes" / "image_classification").mkdir(parents=True)
    (tmp_path / "recipes" / "image_classification" / "train.py").touch()

    with pytest.raises(ConfigError, match="give yours another"):
        list_recipes(tmp_path)


@pytest.mark.parametrize(
    ("name", "capability"), [("7.5", (7, 5)), ("v100", (7, 0)), ("Tesla P100-PCIE-16GB", (6, 0)), ("h100", (9, 0))]
)
def test_a_gpu_is_found_by_its_name_or_its_compute_capability(name: str, capability: tuple[int, int]) -> None:
    assert find_device(name).compute_capability == capability


@pytest.mark.parametrize(("name", "complaint"), [("x900", "is called 'x900'"), ("a", "of compute capabilities")])
def test_a_name_of_no_gpu_or_of_several_kinds_is_refused(name: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        find_device(name)


def test_the_matrix_holds_every_precision_on_every_device(tmp_path: Path) -> None:
    listed = list_recipes(tmp_path, "image_classification")
    found = {(item.precision, item.device): item for item in outcomes(listed) if item.framework == "torch"}

    assert set(found) == {(precision, device) for precision in CAPABILITIES for device in CPU_AND_GPUS}
    assert found[PrecisionName.tf32, "cpu"].numerics is Numerics.emulated
    assert found[PrecisionName.tf32, "8.0"].numerics is Numerics.native
    assert found[PrecisionName.tf32, "7.0"].reason == "it needs compute capability 8.0"
    assert {item.device for item in outcomes(listed, ["v100"])} == {"v100"}
