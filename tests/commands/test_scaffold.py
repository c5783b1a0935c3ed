"""What `hpcml new` writes is whole, runs at once, and is never written over anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcml.commands.new import new_cluster, new_recipe, new_study
from hpcml.commands.recipes import list_recipes
from hpcml.config.profiles import get_profile
from hpcml.errors import ConfigError
from hpcml.model.cluster import SchedulerName
from tests.commands.planning import planned_for


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_new_recipe_can_be_planned_and_is_described(tmp_path: Path) -> None:
    made = new_recipe("mine", tmp_path)
    (item,) = planned_for(tmp_path, "model=mine", "model.options.width=8", "precision=tf32")
    (listed,) = list_recipes(tmp_path, "mine")

    assert made.then == "hpcml run model=mine training.steps=100"
    assert item.plan.argv[1] == str(tmp_path / "recipes" / "mine" / "train.py")
    assert listed.is_own
    assert [(model.name, model.options) for model in listed.models] == [("mine", {"width": 32})]
    assert set(listed.recipe.options) == {"width"}
    assert 'get("width", 32)' in (tmp_path / "recipes" / "mine" / "training.py").read_text()


def test_its_options_are_checked_as_those_of_shipped_recipes(tmp_path: Path) -> None:
    new_recipe("mine", tmp_path)

    with pytest.raises(ConfigError, match=r"model.options.width=0 must be at least 1"):
        planned_for(tmp_path, "model=mine", "model.options.width=0")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("../x", "is no name for a recipe"),
        ("1st", "is no name for a recipe"),
        ("null", "is no name for a recipe"),
        ("a" * 65, "is no name for a recipe"),
        ("resnet", "the recipe resnet ships with hpcml"),
        ("mnist_cnn", "the model mnist_cnn ships with hpcml"),
    ],
)
def test_a_name_that_would_not_work_is_refused_and_nothing_written(name: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        new_recipe(name, tmp_path)
    assert everything_in(tmp_path) == []


@pytest.mark.parametrize("there", ["recipes/mine/notes.txt", "conf/model/mine.yaml"])
def test_nothing_is_written_where_a_part_is_there_already(there: str, tmp_path: Path) -> None:
    (tmp_path / there).parent.mkdir(parents=True)
    (tmp_path / there).write_text("mine")
    before = everything_in(tmp_path)

    with pytest.raises(ConfigError, match="exists already"):
        new_recipe("mine", tmp_path)

    assert everything_in(tmp_path) == before
    assert (tmp_path / there).read_text() == "mine"


def test_a_recipe_that_cannot_be_written_whole_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("a file where a folder must be")

    with pytest.raises(ConfigError, match=r"conf.* cannot be written"):
        new_recipe("mine", tmp_path)

    assert everything_in(tmp_path) == ["conf"]


def test_a_new_study_starts_a_sweep(tmp_path: Path) -> None:
    made = new_study("mine", tmp_path)

    assert made.then == "hpcml run -n +experiment=mine"
    assert {item.run.experiment for item in planned_for(tmp_path, "+experiment=mine")} == {"mine"}
    assert len(planned_for(tmp_path, "+experiment=mine", "seed=0")) == 2
    with pytest.raises(ConfigError, match="the study smoke ships with hpcml"):
        new_study("smoke", tmp_path)


@pytest.mark.parametrize("scheduler", [SchedulerName.slurm, SchedulerName.pbs])
def test_a_new_profile_can_be_planned_on(scheduler: SchedulerName, tmp_path: Path) -> None:
    new_cluster("mine", scheduler, tmp_path / "conf" / "cluster")

    (item,) = planned_for(tmp_path, "cluster=mine")
    assert (item.run.cluster.name, item.run.cluster.scheduler) == ("mine", scheduler)


@pytest.mark.parametrize("scheduler", [SchedulerName.slurm, SchedulerName.pbs])
def test_every_comment_in_a_new_profile_is_a_key_with_an_example(scheduler: SchedulerName, tmp_path: Path) -> None:
    (path,) = new_cluster("mine", scheduler, tmp_path / "conf" / "cluster").files
    path.write_text(re.sub(r"^  # ", "  ", path.read_text(), flags=re.MULTILINE))

    profile = get_profile("mine", tmp_path)
    assert profile.cluster.compute_capability == (8, 0)
    assert profile.resources.gpus_per_node == 1
    (item,) = planned_for(tmp_path, "cluster=mine", "precision=tf32", "resources.account=A-1")
    assert item.plan.gpus_per_node == 1


def test_a_profile_cannot_have_the_name_of_a_shipped_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cluster=karolina ships with hpcml"):
        new_cluster("karolina", SchedulerName.slurm, tmp_path)
