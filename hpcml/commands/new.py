"""Templates for a user's own recipe, study, cluster profile or project, for ``hpcml new`` and ``cluster new``.

Nothing is overwritten.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from hpcml.config import user
from hpcml.config.profiles import check_name, get_profile
from hpcml.errors import ConfigError, require
from hpcml.model.choices import Goal
from hpcml.model.cluster import SchedulerName
from hpcml.paths import resource_dir
from hpcml.schedulers.registry import backend_of

_TEMPLATES = Path(__file__).with_name("templates")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")  # a folder, and a word of Hydra's override grammar
_NOT_A_WORD = frozenset({"null", "true", "false", "nan", "inf", "none"})  # that Hydra or a reader takes for a value
_METRIC = re.compile(r"[A-Za-z_][\w./@ -]{0,99}")
_ACCOUNT = re.compile(r"[\w.:@/+-]+")
_OF_A_RECIPE = ("train.py", "training.py", "recipe.toml", "README.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """The files that were written, and the command to type next."""

    files: Sequence[Path]
    then: str


def new_recipe(name: str, project: Path) -> Scaffold:
    """Write a recipe that trains at once into ``recipes/NAME``, and ``conf/model/NAME.yaml``, which chooses it.

    Raises `ConfigError`, and leaves nothing, for a bad or taken name, and where a file exists or cannot be written.
    """
    _check(name, "recipe", taken=resource_dir("recipes") / name)
    _check(name, "model", taken=resource_dir("conf") / "model" / f"{name}.yaml")
    folder = project / "recipes" / name
    require(not folder.exists(), f"{folder} exists already: choose another name or delete it")
    texts = {folder / file: _filled(file, name) for file in _OF_A_RECIPE}
    texts[project / "conf" / "model" / f"{name}.yaml"] = _filled("model.yaml", name)
    return Scaffold(files=_write(texts), then=f"hpcml run model={name} training.steps=100")


def new_study(name: str, project: Path) -> Scaffold:
    """Write ``conf/study/NAME.yaml``: a sweep with all that belongs to it. Raises as `new_recipe` does."""
    _check(name, "study", taken=resource_dir("conf") / "study" / f"{name}.yaml")
    text = _filled("study.yaml", name)
    files = _write({project / "conf" / "study" / f"{name}.yaml": text})
    return Scaffold(files=files, then=f"hpcml run -n +experiment={name}")


def new_cluster(name: str, scheduler: SchedulerName, folder: Path) -> Scaffold:
    """Write the profile ``NAME.yaml`` into *folder*; what only the site knows stands in it as comments.

    It may have the name of a profile that ships with hpcml, and is used instead of it then. Raises as `new_recipe`
    does.
    """
    check_name(name)
    _check(name, "cluster", taken=None)
    gpu_request = json.dumps(backend_of(scheduler.name).gpu_request)  # as YAML reads it too
    text = _filled("cluster.yaml", name, scheduler=scheduler.name, gpu_request=gpu_request)
    files = _write({folder / f"{name}.yaml": text})
    return Scaffold(files=files, then=f"hpcml run -n cluster={name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectAnswers:
    """What `new_project` writes down: which metric judges the runs, where they go, and who pays."""

    name: str
    metric: str
    goal: Goal
    margin: float | None  # None: said later
    cluster: str
    account: str | None


def new_project(answers: ProjectAnswers, project: Path) -> Scaffold:
    """Write ``hpcml.yaml`` and ``conf/study/NAME.yaml``, which says what the runs of *project* have in common.

    Raises as `new_recipe` does, and for a cluster that is not there, a metric that is no name, and a margin that is not
    positive.
    """
    name, account = answers.name, answers.account
    _check(name, "study", taken=resource_dir("conf") / "study" / f"{name}.yaml")
    get_profile(answers.cluster, project)
    require(
        _METRIC.fullmatch(answers.metric) is not None, f"{answers.metric!r} is no name of a metric: as in val_accuracy"
    )
    margin = answers.margin
    is_good = margin is None or (margin > 0 and math.isfinite(margin))
    require(is_good, f"a margin of {margin} must be a positive number")
    require(account is None or _ACCOUNT.fullmatch(account) is not None, f"{account!r} is no account: one word")
    written = "# accounts:\n#   karolina: OPEN-12-34"
    if account is not None:
        written = f"accounts:\n  {answers.cluster}: {json.dumps(account)}"
    text = _filled(
        "project.yaml",
        name,
        cluster=answers.cluster,
        metric=json.dumps(answers.metric),
        goal=answers.goal.name,
        margin="null" if margin is None else repr(margin),
    )
    texts = {
        project / user.PROJECT_FILE: _filled("hpcml.yaml", name, accounts=written),
        project / "conf" / "study" / f"{name}.yaml": text,
    }
    return Scaffold(files=_write(texts), then=f"hpcml run +experiment={name} -- python train.py")


def _check(name: str, kind: str, *, taken: Path | None) -> None:
    """Raise `ConfigError` where *name* is no word for Hydra, or something of that name ships with hpcml (*taken*)."""
    is_word = _NAME.fullmatch(name) is not None and name.lower() not in _NOT_A_WORD
    require(is_word, f"{name!r} is no name for a {kind}: use letters, digits, _ and -, a letter first (64 at most)")
    if taken is not None:
        require(not taken.exists(), f"the {kind} {name} ships with hpcml: choose another name")


def _filled(file: str, name: str, **words: str) -> str:
    return Template((_TEMPLATES / f"{file}.txt").read_text(encoding="utf-8")).substitute(name=name, **words)


def _write(texts: Mapping[Path, str]) -> list[Path]:
    """Create all files; raise `ConfigError` where one is there already, or cannot be written: nothing is left then."""
    for path in texts:
        require(not path.exists(), f"{path} exists already: choose another name or delete it")
    made: list[Path] = []
    try:
        for path, text in texts.items():
            for folder in reversed([folder for folder in path.parents if not folder.exists()]):
                folder.mkdir()
                made.append(folder)
            with path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(text)
    except OSError as error:
        for place in reversed(made):
            place.rmdir() if place.is_dir() else place.unlink()
        raise ConfigError(f"{error.filename or path} cannot be written: {error.strerror}") from error
    return list(texts)
