"""What the callbacks for frameworks make of the rows that they are given; with the real ones: tests/docs."""

from __future__ import annotations

import math
from pathlib import Path

import hpcml_client
from hpcml.runs.journal import Metrics, read_journal
from hpcml_client.rows import report_row


class _Several:
    def __float__(self) -> float:
        raise ValueError("only one element tensors can be converted")


def test_numbers_of_a_row_are_reported_and_what_is_none_ends_no_training(tmp_path: Path) -> None:
    with hpcml_client.connect({"HPCML_RUN_DIR": str(tmp_path), "HPCML_RUN_ID": "uid"}) as run:
        report_row(run, {"loss": 1, "ok": True, "words": "1.0", "bad": math.inf, "many": _Several(), "no": None}, 5)
        report_row(run, {"val": {"acc": 0.5, "top": {"5": 1.0}}}, 6)
        report_row(run, {"words": "only"}, 7)

    (path,) = (tmp_path / "journal").iterdir()
    rows = [(r.step, r.values) for r in read_journal(path).records if isinstance(r, Metrics)]
    assert rows == [(5, {"loss": 1.0, "bad": math.inf}), (6, {"val/acc": 0.5, "val/top/5": 1.0})]
