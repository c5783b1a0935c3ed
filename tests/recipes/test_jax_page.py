"""The recipe that docs/jax.md shows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from numeric_runs import config_of, last, run_all

from tests.docs.pages import files_of

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")


def test_the_line_of_the_page_is_found(tmp_path: Path) -> None:
    (tmp_path / "jax_training.py").write_text(files_of("jax.md")["jax_training.py"])
    training = {"steps": 300, "batch_size": 50, "learning_rate": 0.05, "eval_every": 300, "deterministic": True}
    configs = {name: config_of("linear_mse", name, "jax", training=training) for name in ("fp32", "amp_bf16")}

    runs = run_all(tmp_path, f"{tmp_path}::jax_training", configs)

    assert last(runs["fp32"], "val_loss") < 1e-3
    assert last(runs["amp_bf16"], "val_loss") < 1e-2
    assert runs["fp32"].events["work"]["model_flops"] == 2 * 2 * 50  # forward, and the gradient of the slope
