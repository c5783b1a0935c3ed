"""What `hpcml compare --checklist` answers from recorded runs of which some were lost, tried twice, or go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from hpcml.config.compose import compose_from_cli
from tests.cli.command_line import Hpcml
from tests.store.building import Journal, make_run_dir

_HOUR_S = 3600.0
ON_A_CPU = {"device": "cpu", "packages": "ab12"}
SWEEP = (
    "-m",
    "precision=fp32,tf32",
    "seed=range(4)",
    "experiment=asked",
    "training.learning_rate=0.001",
    "objective.margin=0.02",
)


def record(
    user: Hpcml, project: Path, words: tuple[str, ...], letter: str, facts: Mapping[str, object] = ON_A_CPU
) -> None:
    """Write a run of an hour for each point of a sweep; what happened to some of them is told by their seeds."""
    for at, point in enumerate(compose_from_cli(list(words), project=project)):
        run = point.run
        name, seed = run.precision.name.name, run.seed
        changes = {field.name: getattr(run, field.name) for field in fields(run)}
        run_dir = make_run_dir(user.home / "runs", f"20260528-202640-{letter}{at:04}a", **changes)
        is_lost, is_second = name == "tf32" and seed == 3, name == "fp32" and seed == 1
        if is_second:  # its first attempt left no checkpoint
            first = Journal(run_dir, writer="agent", attempt=0)
            first.event("attempt_started", hostname="node7")
            first.event("attempt_ended", state="NODE_FAIL", wall_s=_HOUR_S / 2, cause="node_failure")
        t0 = 1_780_000_000.0 + 7200 * seed + 100 * (name == "tf32")
        agent, rank0 = Journal(run_dir, writer="agent", t0=t0), Journal(run_dir, t0=t0)
        agent.event("attempt_started", hostname="node7")
        agent.event("facts", cpu_model="a", hostname="node7", **facts)
        rank0.metrics(300, 20.0, val_accuracy=0.9 + seed / 977)
        state = {"state": "FAILED", "exit_code": 1, "cause": "program"} if is_lost else {"state": "COMPLETED"}
        agent.event("attempt_ended", 21.0, wall_s=_HOUR_S, **state)


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    """A user with 8 runs to compare, and two earlier ones of the same experiment at other learning rates."""
    user = Hpcml(environ=hpcml_environ, cwd=tmp_path)
    record(user, tmp_path, SWEEP, "a")
    record(user, tmp_path, (*SWEEP[:1], "training.learning_rate=0.5,0.7", "experiment=asked", "precision=tf32"), "b")
    return user


def test_a_reviewers_questions_are_answered_from_the_records_or_not_recorded(hpcml: Hpcml) -> None:
    select = ("compare", "--experiment", "asked", "--where", "training.learning_rate=0.001", "--checklist")
    found = json.loads(hpcml(*select, "--json").stdout)
    said = {answer["key"]: "; ".join(answer["lines"]) for answer in found["answers"]}

    assert said["seeds"] == "fp32: 4 (0-3); tf32: 3 (0-2)"
    assert said["pairing"] == "tf32: paired by seed over 3 seeds, left out: 3; 90 % t interval over seeds"
    assert said["interleaving"].startswith("7 runs on 1 node; none ran")
    assert "tf32: 1 of 4 runs to its own doing" in said["lost_runs"]
    assert said["margin"] == "yes: 0.02, stored with each run before it started"
    assert said["packages"] == "list of packages, digest ab12"
    assert "fp32: asked for fp32, not measured" in said["precision"]
    assert "settings tried in these experiments: fp32 1, tf32 3: not the same number for each arm" in said["tuning"]
    assert found["hours"]["node_h"] == pytest.approx(8.5)
    assert found["hours"]["lost_node_h"] == pytest.approx(1.5)  # the failed run, and the attempt that was begun anew
    assert (found["hours"]["n_attempts"], found["all_hours"]["n_attempts"]) == (9, 11)
    assert said["all_hours"].startswith("10.5 node-h, 0 GPU-h in 11 attempts of 10 runs")


def test_of_a_program_of_ones_own_only_what_is_known_is_answered(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    user = Hpcml(environ=hpcml_environ, cwd=tmp_path)
    words = ("-m", "seed=range(4)", "workload.command=python t.py", "precision=fp32,tf32", "objective.margin=0.02")
    record(user, tmp_path, (*words, "objective.metric=val_accuracy"), "a", {"env.CUDA_VISIBLE_DEVICES": ""})

    ask = ("compare", "--by", "precision", "--checklist")
    found = json.loads(user(*ask, "--json").stdout)
    said = {answer["key"]: "; ".join(answer["lines"]) for answer in found["answers"]}

    assert "training." not in said["tuning"]  # it may never have read them
    assert said["hours"].startswith("8.5 node-h, 0 GPU-h")
    assert said["packages"] == ""
    assert "Which software was installed? not recorded" in " ".join(user(*ask).stdout.split())
