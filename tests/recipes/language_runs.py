"""The language recipes as tests start them: several trainings in one process, which pays for torch's import once."""

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

import yaml
from image_runs import Recorded, read_rank0

from hpcml.model.choices import Numerics
from hpcml.model.precision import CPU, PrecisionName, decide_numerics
from hpcml.runs.atomic import write_text
from tests import warm_frameworks

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
_TRAINER = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import training
from hpcml_client import connect
from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.errors import DatasetError
said = []
for job in json.load(sys.stdin):
    with connect(job) as run:
        try:
            task = Task.from_config(run.config)
            checkpoints = run.checkpoints(every_steps=task.checkpoint_every)
            said.append(training.train(run, task, checkpoints))
        except (RecipeError, DatasetError) as error:
            said.append(str(error))
print("\\n" + json.dumps(said), flush=True)
os._exit(0)
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training."""

    run_dir: Path
    options: Mapping[str, object] = field(default_factory=dict)
    precision: str = "fp32"
    data: Mapping[str, object]
    training: Mapping[str, object] = field(default_factory=dict)
    strategy: str = "single"

    def environ(self) -> dict[str, str]:
        """Write the run.json, and return what the program finds in its environment."""
        run = {
            "model": {"name": "small", "framework": "torch", "options": dict(self.options)},
            "data": {"holdout": 0.2, **self.data},
            "training": {"steps": 4, "batch_size": 4, "learning_rate": 1e-3, "eval_every": 4, **self.training},
            "strategy": {"name": self.strategy},
            "seed": 0,
        }
        self.run_dir.mkdir(exist_ok=True)
        config = self.run_dir / "run.json"
        numerics = decide_numerics(PrecisionName[self.precision], Numerics.auto, CPU).name
        write_text(config, json.dumps({"run": run, "plan": {"device": "cpu", "numerics": numerics}}))
        environ = {"HPCML_RUN_DIR": str(self.run_dir), "HPCML_CONFIG": str(config)}
        return {**environ, "HPCML_PRECISION": self.precision, "HPCML_NUMERICS": numerics}

    def recorded(self) -> Recorded:
        return read_rank0(self.run_dir)


SQUARES = "".join(f"{n} squared is {n * n}.\n" for n in range(200))  # a text
SAYS = {"prompt": "12 squared ", "generate": 5}  # of a network that learned it
DRAWS = {**SAYS, "generate": 40, "temperature": 1.5}  # of any


def assert_it_continues(said: Recorded, drawn: Recorded) -> None:
    """Assert that *said* had learned from `SQUARES` what it `SAYS`, and that *drawn* was drawn by chance."""
    learned, random = said.events["generated"], drawn.events["generated"]
    assert learned == {"prompt": "12 squared ", "text": "is 1" + learned["text"][4:], "temperature": 0.0}  # "is 144."
    assert (random["temperature"], random["prompt"]) == (1.5, "12 squared ")
    assert len(random["text"].encode()) >= 40  # bytes that are no UTF-8 are three each


def train_all(recipe: str, jobs: Sequence[Job]) -> list[bool | str]:
    """Do all *jobs* one after the other in one process; return whether each finished, or why it was refused."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "SLURM_"))}
    environ = {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    given = json.dumps([job.environ() for job in jobs])
    done = warm_frameworks.run(_TRAINER, str(RECIPES / recipe), framework="torch", environ=environ, given=given)
    assert done.returncode == 0, done.stderr
    said: list[bool | str] = json.loads(done.stdout.splitlines()[-1])
    return said


def load(recipe: str, module: str) -> ModuleType:
    """Return a module of a recipe under a name of its own: all recipes call theirs alike, and their siblings too."""
    path = RECIPES / recipe / f"{module}.py"
    spec = importlib.util.spec_from_file_location(f"{recipe}_{module}", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    siblings = {sibling.stem for sibling in path.parent.glob("*.py")}
    before = {sibling: sys.modules.pop(sibling) for sibling in siblings & sys.modules.keys()}
    sys.path.insert(0, str(path.parent))  # where its siblings are
    try:
        spec.loader.exec_module(loaded)
    finally:
        sys.path.remove(str(path.parent))
        for sibling in siblings:
            sys.modules.pop(sibling, None)
        sys.modules.update(before)
    return loaded


def options_of(model: str) -> dict[str, Any]:
    """Return `model.options` as conf/model/*model*.yaml says them."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "conf" / "model" / f"{model}.yaml").read_text())["model"]["options"]
    return found
