from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from recorded_runs import arm, run

from hpcml.analysis.compare import compare
from hpcml.errors import ComparisonError
from hpcml.records import RunRecord
from hpcml.states import State

VALUES = [0.90, 0.91, 0.92]


def arms(**of_the_second: Any) -> list[RunRecord]:  # noqa: ANN401
    return arm("fp32", VALUES) + arm("tf32", VALUES, **of_the_second)


@pytest.mark.parametrize(
    ("key", "value"),
    [("training.batch_size", 128), ("training.learning_rate", 0.1), ("resources.nodes", 2), ("workload.env.X", "1")],
)
def test_a_second_setting_that_differs_is_refused_with_its_values_and_counts(key: str, value: object) -> None:
    with pytest.raises(ComparisonError) as caught:
        compare(arms(params={key: value}), {})

    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert message.startswith("these runs differ in more than precision:\n")
    assert key in message
    assert f"{value} (3 runs: tf32)" in message
    assert "(3 runs: fp32)" in message
    assert "--where" in message
    assert "--allow-mixed" in message


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("gpu_model", "H100"),
        ("cpu_model", "Xeon"),
        ("torch", "2.12"),
        ("device", "cpu"),
        ("threads", 1),
    ],
)
def test_other_hardware_or_software_is_refused(fact: str, value: object) -> None:
    with pytest.raises(ComparisonError, match=rf"{fact}: .*{value} \(3 runs: tf32\)"):
        compare(arms(facts={fact: value}), {})


def test_a_fact_that_only_some_runs_recorded_is_a_difference() -> None:
    with pytest.raises(ComparisonError, match=r"torch: .*not recorded \(3 runs: tf32\)"):
        compare(arms(facts={"torch": None}), {})


def test_mixing_can_be_allowed_and_is_listed_as_a_confounder() -> None:
    cell = compare(arms(params={"training.batch_size": 128}, facts={"torch": "2.12"}), {}, allow_mixed=True).cells[0]

    assert [(d.key, d.kind) for d in cell.confounders] == [("training.batch_size", "setting"), ("torch", "fact")]
    assert cell.batch_size is None
    assert cell.rows[1].difference is not None


@pytest.mark.parametrize(
    "params",
    [
        {"seed": 99, "name": "again", "tags": ["a"], "experiment": "other"},
        {"resources.walltime": "2h", "resources.account": "x", "resources.partition": "y", "resources.qos": "z"},
        {"workload.stop_grace": "1m", "cluster.max_parallel": 2},
        {"precision.numerics": "native", "precision.loss_scaling": False},
    ],
)
def test_bookkeeping_and_the_factors_own_settings_may_differ(params: dict[str, Any]) -> None:
    cell = compare(arms(params=params), {}).cells[0]

    assert cell.confounders == cell.notes == ()


def test_where_and_from_which_commit_it_ran_is_only_noted() -> None:
    runs = arms(facts={"hostname": "n2", "gpu_driver": "580", "kernel": "6.1"}, git_commit="fff", git_dirty=True)

    cell = compare(runs, {}).cells[0]

    assert [d.key for d in cell.notes] == ["hostname", "git_commit", "git_dirty", "gpu_driver", "kernel"]
    assert cell.confounders == ()


def test_one_number_written_in_two_ways_is_one_value() -> None:
    assert compare(arms(params={"training.batch_size": 64.0}), {}).cells[0].confounders == ()


def test_a_setting_of_the_factor_must_not_differ_within_a_level() -> None:
    runs = arms()
    runs[-1] = replace(runs[-1], params={**runs[-1].params, "precision.rounding": "rz"})

    with pytest.raises(ComparisonError, match=r"precision.rounding: rna \(5 runs: fp32, tf32\); rz \(1 run: tf32\)"):
        compare(runs, {})


def test_runs_that_do_not_count_do_not_make_a_comparison_unfair() -> None:
    failed = run("tf32", 9, None, state=State.FAILED, params={"training.batch_size": 1})

    assert compare([*arms(), failed], {}).cells[0].confounders == ()


def test_comparing_clusters_means_comparing_their_hardware() -> None:
    here = arm("fp32", VALUES)
    there = [
        replace(
            r,
            uid=f"{r.uid}-there",
            params={**r.params, "cluster.name": "lumi", "cluster.scheduler": "slurm", "data.path": "/pfs"},
            facts={**r.facts, "gpu_model": "MI250X", "cpu_model": "Trento"},
        )
        for r in here
    ]

    cell = compare(here + there, {}, by="cluster").cells[0]

    assert [row.level for row in cell.rows] == ["karolina", "lumi"]
    assert [d.key for d in cell.notes] == ["data.path", "gpu_model", "cpu_model"]
    assert cell.device is None
    assert "cluster" not in cell.where


def test_two_kinds_of_hardware_within_one_level_are_refused_even_then() -> None:
    runs = arm("fp32", VALUES) + arm("fp32", VALUES, params={"cluster.name": "lumi"})
    runs = [replace(r, uid=str(i)) for i, r in enumerate(runs)]
    runs[0] = replace(runs[0], facts={**runs[0].facts, "gpu_model": "V100"})

    with pytest.raises(ComparisonError, match="gpu_model"):
        compare(runs, {}, by="cluster")
