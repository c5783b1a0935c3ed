from __future__ import annotations

from hpcml.analysis.compare.cells import group_runs
from hpcml.analysis.compare.comparison import compare
from hpcml.model.state import State
from tests.analysis.recorded_runs import arm, run


def test_runs_stand_behind_the_cells_of_the_comparison_in_their_order() -> None:
    small = [*arm("fp32", [0.9, 0.91]), *arm("tf32", [0.9, 0.92])]
    large = [
        run(each.precision, each.seed, 0.8, uid=f"{each.uid}-big", params={"training.batch_size": 512})
        for each in small
    ]
    runs = [*large, *small]
    comparison = compare(runs, {})

    groups = group_runs(runs, "precision", comparison)

    assert [dict(group.where) for group in groups] == [dict(cell.where) for cell in comparison.cells]
    assert [[level.name for level in group.levels] for group in groups] == [["fp32", "tf32"]] * 2
    assert sorted(uid for group in groups for level in group.levels for uid in level.uids) == sorted(
        r.uid for r in runs
    )
    assert all(uid.endswith("-big") for level in groups[1].levels for uid in level.uids)


def test_runs_that_failed_or_have_no_number_do_not_count() -> None:
    runs = [*arm("fp32", [0.9, 0.91, None]), *arm("tf32", [0.9, 0.92]), run("tf32", 2, 0.5, state=State.FAILED)]
    comparison = compare(runs, {})

    (group,) = group_runs(runs, "precision", comparison)

    assert [(len(level.uids), len(level.counted)) for level in group.levels] == [(3, 2), (3, 2)]


def test_without_a_comparison_runs_are_sorted_all_the_same() -> None:
    runs = [*arm("fp32", [0.9]), run("fp32", 1, 0.5, state=State.FAILED)]

    (group,) = group_runs(runs, "precision", None)

    assert [(level.name, len(level.uids), len(level.counted)) for level in group.levels] == [("fp32", 2, 1)]
