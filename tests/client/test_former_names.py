from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

_RECIPE = """
from hpcml_client import datasets
from hpcml_client.recipe_start import start
from hpcml_client.recipe_task import RecipeError, Task, TrainingFailed
import hpcml_train.data.digits, hpcml_train.errors, hpcml_train.start, hpcml_train.task
assert start is hpcml_train.start.start and datasets.read_digits is hpcml_train.data.digits.read_digits
assert (Task, TrainingFailed) == (hpcml_train.task.Task, hpcml_train.errors.TrainingFailed)
"""


def test_a_recipe_that_imports_former_names_gets_what_they_are_now_and_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", _RECIPE], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert "DeprecationWarning: hpcml_client.recipe_start is hpcml_train.start now" in done.stderr


def test_what_was_never_there_is_still_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"hpcml_client\.never"):
        importlib.import_module("hpcml_client.never")
