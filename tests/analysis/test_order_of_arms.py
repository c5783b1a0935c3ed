from __future__ import annotations

from collections.abc import Sequence

from recorded_runs import run, texts

from hpcml.analysis.compare.comparison import compare
from hpcml.model.records import RunRecord

BEGAN = 1_800_000_000.0


def launched(order: Sequence[str], nodes: Sequence[str]) -> list[RunRecord]:
    """Return runs that started one after the other, each with the next seed of its precision."""
    seeds = dict.fromkeys(order, -1)
    runs = []
    for at, (precision, node) in enumerate(zip(order, nodes, strict=True)):
        seeds[precision] += 1
        seed = seeds[precision]
        runs.append(run(precision, seed, 0.9 + seed / 100, t_start=BEGAN + 60 * at, facts={"hostname": node}))
    return runs


def remarks(order: Sequence[str], nodes: Sequence[str]) -> str:
    return " | ".join(texts(compare(launched(order, nodes), {}).cells[0]))


def test_arms_one_after_the_other_on_a_node_are_remarked() -> None:
    text = remarks(["tf32"] * 3 + ["fp32"] * 3, ["n1"] * 6)

    assert text.startswith("not interleaved: tf32, then fp32 on n1; what drifted meanwhile is in the differences")


def test_interleaved_arms_are_not() -> None:
    assert remarks(["fp32", "tf32"] * 3, ["n1"] * 6) == ""


def test_one_run_of_each_on_a_node_has_an_order_that_says_nothing() -> None:
    assert remarks(["fp32", "tf32"] * 2, ["n1", "n1", "n2", "n2"]) == ""


def test_nodes_with_the_same_order_are_listed_together() -> None:
    order = ["fp32"] * 4 + ["tf32"] * 4
    nodes = ["n1", "n2", "n1", "n2"] * 2

    assert "not interleaved: fp32, then tf32 on n1, n2" in remarks(order, nodes)


def test_runs_that_started_at_once_were_not_one_after_the_other() -> None:
    runs = [run(p, s, facts={"hostname": "n1"}) for p in ("fp32", "tf32") for s in range(3)]

    assert compare(runs, {}).cells[0].flags == ()


def test_without_a_node_nothing_is_said() -> None:
    runs = [run(p, s, t_start=BEGAN + at) for at, p in enumerate(("fp32", "tf32")) for s in range(3)]

    assert compare(runs, {}).cells[0].flags == ()


def test_of_many_arms_one_after_the_other_the_first_are_named() -> None:
    arms = ["fp32", "fp64", "tf32", "bf16", "fp16", "amp_bf16", "amp_fp16"]
    text = remarks([each for each in arms for _ in range(2)], ["n1"] * 14)

    assert "not interleaved: fp32, then fp64, then tf32, then 4 more on n1; what drifted" in text
