"""A study is a whole sweep in one word, and every shipped one can be planned where there is what it needs."""

from __future__ import annotations

import re
from contextlib import chdir
from pathlib import Path

import click
import pytest

from hpcml.agent.telemetry.gpus import Gpu
from hpcml.cli.main import cli
from hpcml.commands.submit.backends import Machine
from hpcml.commands.submit.check import plan_all
from hpcml.config.compose import compose_from_cli
from hpcml.errors import ConfigError
from hpcml.paths import resource_dir

STUDIES = sorted((resource_dir("conf") / "study").glob("*.yaml"))
DEVICES = sorted((resource_dir("conf") / "devices").glob("*.yaml"))
NODE = Machine(
    cores=64,
    gpus=[
        Gpu(uuid=f"GPU-{at}", name="A100", compute_capability=(8, 0), memory_mb=40960, driver="550.54")
        for at in range(8)
    ],
)
RUNS = {
    "a100_vs_v100": 10,
    "batch_size_study": 25,
    "cpu_vs_gpu": 10,
    "layout_study": 20,
    "nccl_study": 10,
    "precision_study": 20,
    "scaling_study": 20,
    "size_study": 60,
    "smoke": 2,
}


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_shipped_study_is_a_sweep_that_a_node_with_gpus_can_run(path: Path, tmp_path: Path) -> None:
    points = compose_from_cli([f"+experiment={path.stem}"], project=tmp_path)
    planned = plan_all(points, NODE)

    assert len(planned) == RUNS[path.stem]
    assert {item.run.experiment for item in planned} == {path.stem}
    assert all(item.run.objective.margin for item in planned)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_its_first_lines_say_commands_that_exist(path: Path) -> None:
    head = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    commands = [match[1].split() for line in head for match in re.finditer(r"hpcml ((?: ?[\w.+=/-]+)+)", line)]
    context = click.Context(cli)

    assert ["run", f"+experiment={path.stem}"] == commands[0][:2]
    assert len({words[0] for words in commands}) > 1
    for name, *words in commands:
        command = cli.get_command(context, name)
        assert command is not None, name
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known


def test_words_on_the_command_line_win_over_the_study(tmp_path: Path) -> None:
    words = ["+experiment=precision_study", "experiment=mine", "precision=fp32,fp64", "seed=7", "training.steps=9"]
    runs = [point.run for point in compose_from_cli(words, project=tmp_path)]

    assert [(run.precision.name.name, run.seed, run.experiment) for run in runs] == [
        ("fp32", 7, "mine"),
        ("fp64", 7, "mine"),
    ]
    assert {run.training.steps for run in runs} == {9}


@pytest.mark.parametrize("words", [["study=smoke"], ["+study=smoke"], ["-m", "+experiment=smoke"]])
def test_a_study_can_be_asked_for_in_several_ways(words: list[str], tmp_path: Path) -> None:
    asked = [point.run for point in compose_from_cli(words, project=tmp_path)]

    assert [run.precision.name.name for run in asked] == ["fp32", "amp_bf16"]
    assert {(run.experiment, run.training.steps) for run in asked} == {("smoke", 10)}


def test_a_folder_of_runs_can_be_named_as_before(tmp_path: Path) -> None:
    (point,) = compose_from_cli(["experiment=smoke"], project=tmp_path)

    assert point.run.experiment == "smoke"
    assert point.run.training.steps == 300


def test_a_study_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Could not find 'study/nope'.*precision_study"):
        compose_from_cli(["+experiment=nope"], project=tmp_path)


def test_a_group_of_ones_own_called_experiment_stays_what_it_was(tmp_path: Path) -> None:
    for group in ("experiment", "model"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "trial.yaml").write_text("# @package _global_\nseed: 5\n")

    (point,) = compose_from_cli(["+experiment=trial"], project=tmp_path)
    assert point.run.seed == 5
    assert len(compose_from_cli(["study=smoke"], project=tmp_path)) == 2


@pytest.mark.parametrize("path", DEVICES, ids=lambda path: path.stem)
def test_devices_bring_the_strategy_that_uses_them(path: Path, tmp_path: Path) -> None:
    points = compose_from_cli([f"devices={path.stem}"], project=tmp_path)
    with chdir(tmp_path):
        (planned,) = plan_all(points, NODE)

    wanted = int(path.stem.rpartition("_")[2]) if "_" in path.stem else 1
    assert planned.plan.processes_per_node == wanted
    assert planned.plan.gpus_per_node == (wanted if path.stem.startswith("gpus") else 0)
