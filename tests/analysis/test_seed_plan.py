from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from recorded_runs import arm, run

from hpcml.analysis.plan import COLUMNS, plan_seeds
from hpcml.analysis.planning import PowerPlan
from hpcml.errors import ComparisonError
from hpcml.model.records import RunRecord
from hpcml.model.state import State

FP32, TF32 = (0.90, 0.92, 0.91, 0.93), (0.901, 0.919, 0.912, 0.931)


def planned(runs: Sequence[RunRecord], **asked: Any) -> PowerPlan:  # noqa: ANN401
    known: dict[str, Any] = {"by": "precision", "reference": None, "metric": None, "margin": 0.02, "power": 0.8}
    return plan_seeds(runs, **{**known, "verdict": "equivalent", "comparisons": 1, **asked})


def test_runs_with_the_same_seeds_are_planned_in_pairs_and_without() -> None:
    (cell,) = planned([*arm("fp32", FP32), *arm("tf32", TF32)]).cells

    paired, unpaired = cell.designs
    assert (paired.paired, unpaired.paired) == (True, False)
    assert (paired.spread.df, unpaired.spread.df) == (3, 3)  # one seed in two arms is one witness
    assert paired.spread.sd == pytest.approx(0.001258, rel=1e-3)
    assert unpaired.spread.sd == pytest.approx(0.01275, rel=1e-3)
    assert paired.seeds is not None
    assert unpaired.seeds is not None
    assert paired.seeds < unpaired.seeds
    assert cell.seeds == {"fp32": 4, "tf32": 4}


def test_seeds_at_the_bounds_of_the_spread_enclose_the_seeds_needed() -> None:
    (cell,) = planned([*arm("fp32", FP32), *arm("tf32", (0.9, 0.88, 0.93, 0.92))], margin=0.03).cells

    for design in cell.designs:
        assert design.seeds_low is not None
        assert design.seeds is not None
        assert design.seeds_high is not None
        assert design.seeds_low < design.seeds < design.seeds_high


def test_one_arm_is_enough_to_plan_without_pairs() -> None:
    (cell,) = planned(arm("fp32", FP32)).cells

    assert [design.paired for design in cell.designs] == [False]
    assert any("not paired" in flag.text for flag in cell.flags)


def test_the_table_grows_with_seeds_and_margins() -> None:
    (cell,) = planned(arm("fp32", FP32)).cells
    (design,) = cell.designs

    powers = [list(row) for _, row in design.table]
    assert len(powers[0]) == len(COLUMNS)
    assert all(row == sorted(row) for row in powers)
    assert all(list(column) == sorted(column) for column in zip(*powers, strict=True))


def test_configurations_that_differ_in_more_than_the_factor_are_planned_apart() -> None:
    small = arm("fp32", FP32)
    large = [
        run("fp32", seed, value, uid=f"large{seed}", params={"training.batch_size": 512})
        for seed, value in enumerate((0.5, 0.9, 0.7))
    ]

    first, second = planned([*small, *large]).cells

    assert (first.where["training.batch_size"], second.where["training.batch_size"]) == ("64", "512")
    assert first.designs[0].spread.sd < second.designs[0].spread.sd


def test_a_configured_margin_needs_no_other_and_none_at_all_is_asked_for() -> None:
    (cell,) = planned(arm("fp32", FP32), margin=None).cells
    assert (cell.margin, cell.margin_source) == (0.01, "config")

    without = [run("fp32", seed, value, params={"objective.margin": None}) for seed, value in enumerate(FP32)]
    with pytest.raises(ComparisonError, match="which difference in val_accuracy matters"):
        planned(without, margin=None)


def test_one_seed_tells_no_spread_and_how_many_it_takes_is_said() -> None:
    with pytest.raises(ComparisonError, match=r"fp32 n=1, tf32 n=1; it takes two seeds .* better five"):
        planned([run("fp32"), run("tf32")])
    with pytest.raises(ComparisonError, match="none matches"):
        planned([])


def test_a_cell_without_spread_is_named_beside_those_with_one() -> None:
    lonely = run("fp32", uid="lonely", params={"training.batch_size": 512})

    plan = planned([*arm("fp32", FP32), lonely])

    assert len(plan.cells) == 1
    assert len(plan.unusable) == 1
    assert "training.batch_size=512" in plan.unusable[0]


def test_few_runs_lost_runs_and_no_spread_are_remarked_upon() -> None:
    failed = run("fp32", 9, None, uid="failed", state=State.FAILED)
    (cell,) = planned([*arm("fp32", (0.9, 0.91)), failed]).cells
    assert any("1 ended runs without a value" in flag.text for flag in cell.flags)

    (cell,) = planned(arm("fp32", (0.9, 0.9, 0.9))).cells
    assert cell.designs[0].seeds == 3
    assert any("does the seed change anything?" in flag.text for flag in cell.flags)


def test_many_levels_hint_at_planning_for_all_of_them() -> None:
    runs = [*arm("fp32", FP32), *arm("tf32", TF32), *arm("amp_bf16", TF32)]

    assert any("--comparisons 2" in flag.text for flag in planned(runs).cells[0].flags)
    assert not any("--comparisons" in flag.text for flag in planned(runs, comparisons=2).cells[0].flags)


def test_a_spread_that_is_not_known_yet_is_said_to_wait_for_runs() -> None:
    runs = [*arm("fp32", (0.9,)), *arm("tf32", (0.91,)), run(uid="waits", state=State.PENDING, metrics={})]

    with pytest.raises(ComparisonError, match=r"; 1 of 3 runs has not ended \(1 PENDING\); it takes two seeds"):
        planned(runs)
