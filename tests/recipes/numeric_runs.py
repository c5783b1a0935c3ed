"""Recipes as tests run them: several times in one process, each with a run directory of its own."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from image_runs import Recorded, read_rank0

from hpcml.model.choices import Numerics
from hpcml.model.precision import CPU, PrecisionName, decide_numerics
from tests import warm_frameworks
from tests.train.framework_scripts import AS_RECIPES

ROOT = Path(__file__).resolve().parents[2]
_DRIVER = Path(__file__).with_name("recipe_driver.py")


def config_of(
    name: str, precision: str = "fp32", framework: str = "torch", seed: int = 0, **groups: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the run.json of the recipe *name*: what its model's file says, and *groups* over it."""
    shipped = yaml.safe_load((ROOT / "conf" / "model" / f"{name}.yaml").read_text())
    model = {**shipped["model"], "framework": framework}
    model["options"] = {**model["options"], **groups.pop("options", {})}
    run: dict[str, Any] = {
        "model": model,
        "data": {"name": "none"},
        "precision": {"name": precision, "numerics": "auto", "rounding": "rna", "loss_scaling": True},
        "strategy": {"name": "single"},
        "layout": {"name": "nchw"},
        "training": dict(shipped.get("training", {})),
        "seed": seed,
    }
    for group, changes in groups.items():
        run[group] = {**run[group], **changes}
    numerics = decide_numerics(PrecisionName[precision], Numerics.auto, CPU, framework).name
    return {"run": run, "plan": {"device": "cpu", "numerics": numerics}}


def has_avx512() -> bool:
    """Whether this CPU has AVX-512: without, TensorFlow's convolutions of BF16 are NHWC alone, and equal in FP32."""
    return " avx512f " in Path("/proc/cpuinfo").read_text(encoding="utf-8")


def run_all(
    folder: Path,
    recipe: str,
    configs: Mapping[str, Mapping[str, Any]],
    *,
    left: Mapping[str, int] = {},
    refused: Sequence[str] = (),
) -> dict[str, Recorded]:
    """Run *recipe* with each of *configs*, in one process; return what each recorded, by its name.

    Those in *left* are trained once more, with a SIGUSR1 after that step, and go on in a second attempt: NAME left and
    NAME gone on. Those in *refused* must be, and record an event `refused` with the reason.
    """
    words = {name: f"{folder / name}!" if name in refused else str(folder / name) for name in configs}
    for name, config in [*configs.items(), *((f"{name} left", configs[name]) for name in left)]:
        (folder / name).mkdir()
        (folder / name / "run.json").write_text(json.dumps(config))
    again = [[f"{folder / f'{name} left'}@{step}", str(folder / f"{name} left")] for name, step in left.items()]
    frameworks = {config["run"]["model"]["framework"] for config in configs.values()} - {"numpy"}
    framework = frameworks.pop() if len(frameworks) == 1 else None
    _drive(recipe, [*words.values(), *itertools.chain.from_iterable(again)], framework)
    found = {name: read_rank0(folder / name) for name in configs}
    for name in left:
        found[f"{name} left"] = read_rank0(folder / f"{name} left")
        found[f"{name} gone on"] = read_rank0(folder / f"{name} left", 1)
    return found


def assert_it_went_on_bit_for_bit(runs: Mapping[str, Recorded], name: str) -> None:
    """Assert that the run *name* of `run_all`, which was also left, ended with the weights of the one that was not."""
    whole, before, after = runs[name], runs[f"{name} left"], runs[f"{name} gone on"]
    assert "final" not in before.events
    assert after.events["resumed"]["step"] == before.metrics[-1].step < whole.metrics[-1].step
    assert before.series("loss") + after.series("loss") == whole.series("loss")
    assert after.events["final"] == whole.events["final"]


def _drive(recipe: str, words: list[str], framework: str | None) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "SLURM_"))}
    environ = {**kept, **AS_RECIPES, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = warm_frameworks.run(_DRIVER, str(ROOT / "recipes" / recipe), *words, framework=framework, environ=environ)
    assert done.returncode == 0, done.stderr


def last(recorded: Recorded, name: str) -> float:
    return recorded.series(name)[-1]


def load(recipe: str, name: str = "training") -> ModuleType:
    """Return a module of *recipe*, forgotten again afterwards: other recipes have modules of the same name."""
    folder = ROOT / "recipes" / recipe
    siblings = {path.stem for path in folder.glob("*.py")}
    before = {sibling: sys.modules.pop(sibling) for sibling in siblings & sys.modules.keys()}
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        for sibling in siblings:
            sys.modules.pop(sibling, None)
        sys.modules.update(before)
