"""What recipes ask of their settings when they start, asked of a run that was planned; nothing is started."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, cast

from hpcml.codec import encode
from hpcml.commands.submit.plan import Planned
from hpcml.paths import resource_dir
from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.torch import arithmetic
from hpcml_train.torch import strategies as torch_strategies

if TYPE_CHECKING:
    from hpcml_client import Client


@dataclass(frozen=True, kw_only=True)
class Modules:
    """The parts of recipes that look at settings, loaded once: recipes have modules of the same name."""

    staleness: ModuleType
    inference: ModuleType
    lu: ModuleType
    shape: ModuleType  # of transformers


def load_modules() -> Modules:
    return Modules(
        staleness=load("staleness"), inference=load("inference"), lu=load("lu"), shape=load("transformer", "shape")
    )


def load(recipe: str, name: str = "training") -> ModuleType:
    """Return a module of *recipe*, forgotten again afterwards."""
    folder = resource_dir("recipes") / recipe
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        for sibling in folder.glob("*.py"):
            sys.modules.pop(sibling.stem, None)


def refused_at_start(planned: Planned, modules: Modules) -> str | None:
    """Return why the recipe of *planned* would refuse its settings when it starts, or None."""
    run, plan = planned.run, planned.plan
    try:
        task = Task.from_config({"run": encode(run)})
        if run.model.recipe == "lu":
            _ask_lu(modules.lu, task, run.precision.name.name)
        elif run.model.recipe == "inference":
            modules.inference._check(run.precision.name.name, modules.inference.Options(**task.options))
        elif run.model.framework == "torch" and run.model.recipe not in ("gemm", "allreduce"):
            task.part_size(plan.processes_per_node * run.resources.nodes)
            torch_strategies.refuse_impossible(task, _arithmetic(planned))
        if run.model.recipe == "staleness":
            modules.staleness._refuse_impossible(task, task.options["workers"])
        if run.model.recipe == "transformer":
            modules.shape.Shape(**task.options)
    except RecipeError as error:
        return str(error)
    return None


def _arithmetic(planned: Planned) -> arithmetic.Arithmetic:
    precision, numerics = planned.run.precision, planned.plan.numerics
    scales = precision.loss_scaling and precision.name.name == "amp_fp16"
    words = SimpleNamespace(
        precision=precision.name.name, numerics=numerics.name, loss_scaling=scales, _row=precision.name.value
    )
    words.replaces_products = arithmetic.Arithmetic.replaces_products.func(words)
    return cast("arithmetic.Arithmetic", words)


class _PassedError(Exception):
    """The recipe has looked at its settings and goes on."""


def _ask_lu(module: ModuleType, task: Task, precision: str) -> None:
    def go_on(_: str) -> None:
        raise _PassedError

    try:
        module.train(cast("Client", SimpleNamespace(precision=precision, apply_precision=go_on)), task, None)
    except _PassedError:
        return
