"""The models that can be chosen are read from their files as Hydra would compose them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.config.choices import list_models
from hpcml.config.compose import compose_from_cli
from hpcml.errors import ConfigError


def with_model(project: Path, name: str, text: str) -> None:
    folder = project / "conf" / "model"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(text)


def test_a_model_of_ones_own_is_read_as_hydra_composes_it(tmp_path: Path) -> None:
    with_model(tmp_path, "base", "name: base\nrecipe: image_classification\nframework: torch\noptions: {a: 1, b: 2}\n")
    with_model(tmp_path, "plain", "defaults: [base]\nname: plain\noptions: {b: 3}\n")
    with_model(tmp_path, "wide", "# @package _global_\nmodel:\n  name: wide\n  recipe: nets\n  options: {c: [1, 2]}\n")

    text = "# @package _global_\ndefaults: [_self_, /model/base]\nmodel: {options: {b: 3, c: 4}}\n"
    with_model(tmp_path, "below", text)

    found = {model.name: model for model in list_models(tmp_path)}

    for name in ("plain", "wide", "mnist_cnn"):
        (point,) = compose_from_cli([f"model={name}"], project=tmp_path)
        assert found[name] == point.run.model
    (point,) = compose_from_cli(["model=below"], project=tmp_path)
    assert replace(found["below"], name="base") == point.run.model
    assert found["custom"].recipe is None


def test_a_file_that_is_no_model_is_refused_with_its_name(tmp_path: Path) -> None:
    with_model(tmp_path, "odd", "- a\n- b\n")

    with pytest.raises(ConfigError, match=r"odd.yaml: an option is a mapping"):
        list_models(tmp_path)
