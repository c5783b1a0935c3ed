"""Several trainings of one recipe in one process, since importing torch takes longer than a few small steps."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from image_runs import Recorded, read_rank0

from tests import warm_frameworks

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"

# What recipe_start does, job after job.
_SCRIPT = """
import importlib, json, os, sys
from hpcml_client import connect
from hpcml_train.errors import DatasetError
from hpcml_train.errors import RecipeError, TrainingFailed
from hpcml_train.task import Task
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
recipe, jobs = sys.argv[1], json.load(sys.stdin)
sys.path.insert(0, recipe)
said = []
for job in jobs:
    with connect(job) as run:
        try:
            task = Task.from_config(run.config)
            checkpoints = run.checkpoints(every_steps=task.checkpoint_every)
            importlib.import_module("training").train(run, task, checkpoints)
            said.append("done")
        except (RecipeError, DatasetError, TrainingFailed) as error:
            said.append(str(error))
sys.stdout.flush()
print(json.dumps(said), flush=True)
os._exit(0)
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training."""

    name: str
    run: Mapping[str, Any]  # the part `run` of run.json
    precision: str = "fp32"


@dataclass(frozen=True, kw_only=True)
class Done:
    """What the jobs said at their end, and where they left their journals."""

    folder: Path
    said: Sequence[str]
    jobs: Sequence[Job] = field(default_factory=list)

    def recorded(self, name: str) -> Recorded:
        return read_rank0(self.folder / name)


def run_jobs(folder: Path, recipe: str, jobs: Sequence[Job]) -> Done:
    """Run *jobs* of *recipe* one after the other, each with a run directory below *folder*."""
    described = []
    for job in jobs:
        run_dir = folder / job.name
        run_dir.mkdir(exist_ok=True)
        config = run_dir / "run.json"
        precision = {"name": job.precision, "numerics": "auto", "rounding": "rna", "loss_scaling": True}
        config.write_text(json.dumps({"run": {"precision": precision, **job.run}, "plan": {"device": "cpu"}}))
        environ = {"HPCML_RUN_DIR": str(run_dir), "HPCML_CONFIG": str(config), "HPCML_PRECISION": job.precision}
        described.append(environ)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "SLURM_"))}
    env = {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    given = json.dumps(described)
    done = warm_frameworks.run(_SCRIPT, str(RECIPES / recipe), framework="torch", environ=env, given=given)
    assert done.returncode == 0, done.stderr[-3000:]
    return Done(folder=folder, said=json.loads(done.stdout.splitlines()[-1]), jobs=jobs)


def load_module(recipe: str, name: str) -> ModuleType:
    """Import a module of a recipe that imports no other one of it."""
    spec = importlib.util.spec_from_file_location(f"{recipe}_{name}", RECIPES / recipe / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
