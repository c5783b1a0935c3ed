"""Which way a metric is better, where nobody says so."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hpcml.commands.submit.backends import look_around
from hpcml.commands.submit.check import plan_all
from hpcml.config.compose import compose_from_cli
from hpcml.config.program import Program

PROGRAM = Program(words=("python", "-c", "pass"), sweeps={})


@pytest.fixture
def with_study(tmp_path: Path) -> Path:
    study = tmp_path / "conf" / "study" / "mine.yaml"
    study.parent.mkdir(parents=True)
    study.write_text("# @package _global_\nobjective: {metric: valid_ppl}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "goal"),
    [
        (["objective.metric=valid_ppl"], "min"),
        (["objective.metric=valid_ppl", "objective.goal=max"], "max"),
        (["objective.metric='eval/loss'"], "min"),
        (["objective.metric=depth"], None),
        (["data=line", "objective.metric=depth"], None),
        (["objective.metric=val_accuracy"], "max"),
        (["data=line", "objective.metric=accuracy"], "max"),  # the data's goal was that of the data's metric
        (["data=line"], "min"),
        (["-m", "seed=0", "objective.metric=train_loss"], "min"),
        (["objective.metric=images_per_s"], "max"),
        (["data=line", "objective.metric=achieved_tok_s"], "max"),  # a rule's name of what is printed as tok/s
        (["data=line", "objective.metric=best_rate_mb_s"], "max"),
        (["data=line", "objective.metric=GFLOPs"], "max"),
        (["data=line", "objective.metric=gflops"], "max"),
        (["data=line", "objective.metric=charts/SPS"], "max"),
        (["data=line", "objective.metric=charts/episodic_return"], "max"),
        (["data=line", "objective.metric=rollout/ep_rew_mean"], "max"),
        (["objective.metric=valid_0_l2"], "min"),
        (["data=line", "objective.metric=ndcg@5"], "max"),
        (["objective.metric=step_time_s"], "min"),
        (["objective.metric=elapsed"], "min"),
        (["objective.metric=rss"], "min"),
        (["objective.metric=cost"], "min"),
        (["objective.metric=final_residual"], "min"),
        (["objective.metric=total_secs"], "min"),
    ],
)
def test_a_metric_that_is_chosen_has_the_goal_of_its_name(words: list[str], goal: str | None, tmp_path: Path) -> None:
    (point,) = compose_from_cli(words, project=tmp_path, program=PROGRAM)

    assert (None if (told := point.run.objective.goal) is None else told.name) == goal


def test_that_nothing_tells_which_way_a_typed_metric_is_better_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warned(*words: str) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            plan_all(compose_from_cli(words, project=tmp_path, program=PROGRAM), look_around({}))
        return [record.getMessage() for record in caplog.records if "objective.goal" in record.getMessage()]

    told = "the name depth does not tell which way is better: say objective.goal=min or max"
    assert warned("objective.metric=depth") == [told]
    assert warned("objective.metric=depth", "objective.goal=max") == []
    assert warned("objective.metric=val_loss") == []
    assert warned() == []
