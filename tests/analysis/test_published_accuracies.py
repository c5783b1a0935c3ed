"""Accuracies of FP32 and TF32 that NVIDIA showed, one training each: what may be concluded from them, and what not.

Values: ILSVRC2012 top-1 in percent, "LAPENNA Unit 11: DNN computing on GPU", the table of TF32 and FP32 accuracies for
classification. The slides conclude that TF32 "matches" FP32.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from recorded_runs import run, summary, texts

from docs.published_tables import published_tables
from hpcml.analysis.compare.comparison import compare
from hpcml.analysis.compare.objective import find_yardstick
from hpcml.analysis.stats import correlation, paired, welch
from hpcml.model.records import RunRecord
from hpcml.report.comparison import comparison_document
from hpcml.report.render.terminal import as_text

_TABLE = next(table for table in published_tables() if table.key == "tf32_classification")
TOP1 = {row[1]: (float(row[2]), float(row[3])) for row in _TABLE.rows}  # network: FP32, TF32
MARGIN = 0.2  # percent points


def trained() -> list[RunRecord]:
    objective = {"objective.metric": "top1", "objective.goal": "max", "objective.margin": MARGIN}
    return [
        run(
            precision,
            uid=f"{network}-{precision}",
            params={"model.name": network, "data.name": "ilsvrc2012", **objective},
            metrics={"top1": summary("top1", value)},
        )
        for network, values in TOP1.items()
        for precision, value in zip(("fp32", "tf32"), values, strict=True)
    ]


def test_one_training_each_shows_nothing_for_any_network() -> None:
    comparison = compare(trained(), {})

    assert (len(comparison.cells), comparison.n_comparisons, comparison.n_tests) == (24, 24, 0)
    for cell in comparison.cells:
        row = cell.rows[1]
        assert row.verdict == "inconclusive"
        assert row.difference is not None
        assert row.difference.ci90 is None
        assert "1 seeds: too few for a verdict, take 5" in texts(row)
    told = as_text(comparison_document(comparison), width=200)
    assert told.count("too few for a verdict, take 5") == 48


def test_over_all_networks_as_pairs_tf32_is_equivalent_as_the_slides_conclude() -> None:
    fp32, tf32 = ([values[at] for values in TOP1.values()] for at in (0, 1))
    contrast = paired(tf32, fp32)
    interval = contrast.interval(0.90)

    assert contrast.value == pytest.approx(0.03375, abs=1e-4)  # the column of differences, 0.81 / 24
    assert interval is not None
    assert interval.low > -MARGIN
    assert interval.high < MARGIN
    p = contrast.p_tost(MARGIN)
    assert p is not None
    assert p < 0.001
    assert correlation(tf32, fp32) == pytest.approx(0.9996, abs=2e-4)


def test_not_paired_the_spread_between_networks_would_hide_it() -> None:
    fp32, tf32 = ([values[at] for values in TOP1.values()] for at in (0, 1))

    p = welch(tf32, fp32).p_tost(MARGIN)

    assert p is not None
    assert p > 0.4


def test_the_networks_as_replicates_of_one_comparison_give_the_same_answer() -> None:
    """The number of the seed stands for the network: this is what pooling pairs means."""
    networks = list(TOP1)
    pooled = [
        replace(r, seed=networks.index(r.params["model.name"]), params={**r.params, "model.name": "any"})
        for r in trained()
    ]

    row = compare(pooled, {}).cells[0].rows[1]

    assert find_yardstick(pooled, None, None).metric == "top1"
    assert row.verdict == "equivalent"
    assert row.difference is not None
    assert row.difference.paired
    assert row.difference.value == pytest.approx(0.03375, abs=1e-4)
