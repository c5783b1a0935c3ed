from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import hpcml_train
from tests.client.test_old_python import find_python310

_PACKAGE = Path(hpcml_train.__file__).parent
_SCRIPT = """
import sys
assert sys.version_info[:2] == (3, 10), sys.version
from hpcml_train import loop, start
from hpcml_train.task import Task
task = Task.from_config({"run": {"training": {"accumulate": 2}}})
assert task.part_size(1) == 32 and task.choose("model", ["net"]) == "net"
clock = loop.StepClock()
with clock.step:
    pass
assert clock.step.took_s >= 0
foreign = {name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "hpcml", "sklearn", "tensorflow"}
assert not foreign, foreign
"""


def test_recipes_can_start_on_python_3_10_before_any_framework_is_there(tmp_path: Path) -> None:
    python = find_python310()
    if python is None:
        pytest.skip("no python3.10 on this machine")
    env = {"PYTHONPATH": str(_PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"}

    subprocess.run([python, "-W", "error", "-c", _SCRIPT], env=env, check=True, cwd=tmp_path)


def test_every_module_compiles_on_python_3_10() -> None:
    python = find_python310()
    if python is None:
        pytest.skip("no python3.10 on this machine")
    script = "import ast, sys; [ast.parse(open(name, encoding='utf-8').read(), name) for name in sys.argv[1:]]"

    subprocess.run([python, "-c", script, *map(str, _PACKAGE.rglob("*.py"))], check=True)
