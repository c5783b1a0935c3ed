"""Runs that a selection leaves out: a claim about those that were chosen has to hold with them, too."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from hpcml.commands.collect import answering
from hpcml.commands.compare import check_runs, compare_runs
from hpcml.commands.report import Wish, publish
from hpcml.commands.selection import Selection
from hpcml.commands.submit.backends import Backends
from hpcml.commands.watch.watched import Watch, WatchedExperiment
from hpcml.model.comparison import ComparisonRequest, Row
from hpcml.model.precision import PrecisionName
from hpcml.model.run import Precision
from hpcml.paths import Places
from tests.store.building import make_run_dir

LARGE = ComparisonRequest(margin=0.02)
PROVEN = {"effective": "{}", "numerics": "native", "products": [{}], "parameters": ["float32"]}


def ended(
    root: Path,
    precision: str,
    seed: int,
    value: float,
    *,
    code: str = "9656b3b6",
    state: str = "COMPLETED",
    at: int = 9,
) -> str:
    """Write the directory of a run that ended, and return its uid."""
    name = PrecisionName[precision]
    run_dir = make_run_dir(
        root / "runs", f"20260528-202640-{precision}{seed}", seed=seed, precision=Precision(name=name)
    )
    told = json.loads(run_dir.manifest.read_text())
    told["provenance"] |= {"code": f"/home/ada/code/{code}"}
    run_dir.manifest.write_text(json.dumps(told))
    last = {"k": "m", "i": at, "v": {"val_accuracy": value if math.isfinite(value) else "nan"}}
    proof = {"k": "e", "n": "precision", "d": {**PROVEN, "effective": precision}}
    end = {"k": "e", "n": "attempt_ended", "d": {"state": state, "exit_code": int(state == "FAILED"), "wall_s": 1.0}}
    for writer, said in (("rank0", [proof, last]), ("agent", [end])):
        header = {"hpcml": 1, "journal": f"0-{writer}", "run": run_dir.uid, "attempt": 0, "writer": writer, "host": "h"}
        lines = [{**header, "pid": 1, "t0": 1}, *({"s": i, "t": 1.0, **each} for i, each in enumerate(said))]
        (run_dir.journals / f"0-{writer}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run_dir.uid


def places(root: Path) -> Places:
    return Places(home=root, store_url=f"sqlite:///{root}/store.db")


def judged(root: Path, selection: Selection, precision: str = "tf32") -> Row:
    (cell,) = compare_runs(places(root), selection, LARGE).cells
    return next(row for row in cell.rows if row.level == precision)


def ten_seeds(root: Path, *, of_tf32: dict[int, tuple[float, str]] | None = None, code: str = "9656b3b6") -> list[str]:
    """Write ten runs in two precisions that hardly differ, but for those of tf32 in *of_tf32*; return good uids."""
    good = []
    for seed in range(10):
        good.append(ended(root, "fp32", seed, 0.9 + seed / 977))
        value, state = (of_tf32 or {}).get(seed, (0.9 + seed / 979, "COMPLETED"))
        uid = ended(root, "tf32", seed, value, state=state, code=code if seed in (of_tf32 or {}) else "9656b3b6")
        good += [] if seed in (of_tf32 or {}) else [uid]
    return good


LOST = dict.fromkeys((1, 4, 6), (0.5, "FAILED"))
DIVERGED = dict.fromkeys((1, 4, 6), (math.nan, "COMPLETED"))
POOR = dict.fromkeys((1, 4, 6), (0.1, "COMPLETED"))


@pytest.mark.parametrize(
    ("of_tf32", "selection", "of_all", "verdict"),
    [
        (LOST, Selection(states=["COMPLETED"]), "unstable", "unstable"),
        (LOST, Selection(where=["state=COMPLETED"]), "unstable", "unstable"),
        (DIVERGED, Selection(where=["val_accuracy>0.5"]), "unstable", "unstable"),
        (POOR, Selection(where=["val_accuracy>0.5"]), "worse", "inconclusive"),
        (POOR, Selection(where=["seed!=1", "seed!=4", "seed!=6"]), "worse", "inconclusive"),
    ],
)
def test_a_claim_of_chosen_runs_does_not_stand_where_those_left_out_forbid_it(
    tmp_path: Path, of_tf32: dict[int, tuple[float, str]], selection: Selection, of_all: str, verdict: str
) -> None:
    good = ten_seeds(tmp_path, of_tf32=of_tf32)

    whole = judged(tmp_path, Selection())
    row = judged(tmp_path, selection)
    named = judged(tmp_path, Selection(references=good))

    assert (whole.verdict, row.verdict, named.verdict) == (of_all, verdict, verdict)
    assert row.with_all is not None
    left_out = "3 runs of tf32 and 3 runs of fp32" if "seed!=1" in selection.where else "3 runs of tf32"
    assert (row.with_all.withdrawn, row.with_all.left_out) == ("equivalent", left_out)
    assert f"the selection left out {left_out}: equivalent without them, {of_all} with them" in row.flags
    (checked, _) = check_runs(places(tmp_path), selection, LARGE)
    assert [each.verdict for each in checked.cells[0].rows] == ["reference", verdict]


def test_where_no_claim_is_made_the_first_remark_says_what_the_runs_that_were_left_out_change(tmp_path: Path) -> None:
    ten_seeds(tmp_path, of_tf32=LOST)

    (cell,) = compare_runs(places(tmp_path), Selection(states=["COMPLETED"]), ComparisonRequest()).cells

    row = next(row for row in cell.rows if row.level == "tf32")
    assert row.verdict == "no margin"
    assert row.flags[0] == "the selection left out 3 runs of tf32: no margin without them, unstable with them"


def test_a_report_says_no_more_of_chosen_runs_than_compare_does(tmp_path: Path) -> None:
    ten_seeds(tmp_path, of_tf32=LOST)
    wish = Wish(title=None, comparison=LARGE, curves=(), command_line=())

    comparison = publish(places(tmp_path), Selection(states=["COMPLETED"]), wish).comparison

    assert comparison is not None
    assert [row.verdict for row in comparison.cells[0].rows] == ["reference", "unstable"]


def test_a_page_that_is_watched_says_no_more_of_chosen_runs_either(tmp_path: Path) -> None:
    ten_seeds(tmp_path, of_tf32=LOST)
    asked = Watch(
        places=places(tmp_path),
        selection=Selection(where=["state=COMPLETED"]),
        wish=Wish(title=None, comparison=LARGE, curves=(), command_line=()),
        backends=Backends.here(places(tmp_path), os.environ),
        interval_s=1.0,
        poll_s=60.0,
    )

    with answering(asked.places) as store:
        page = WatchedExperiment(asked, store).page().whole.decode()

    assert "no verdict, for it hangs on the selection" in page


def test_a_claim_that_holds_with_those_left_out_stands_and_says_so(tmp_path: Path) -> None:
    ten_seeds(tmp_path)

    row = judged(tmp_path, Selection(where=["seed<6"]))

    assert row.verdict == "equivalent"
    assert row.with_all is not None
    assert row.with_all.withdrawn is None
    assert "the selection left out 4 runs of tf32 and 4 runs of fp32: with them it is equivalent too" in row.flags


def test_runs_of_another_version_of_the_program_are_no_part_of_the_arm(tmp_path: Path) -> None:
    ten_seeds(tmp_path, of_tf32=LOST, code="650f005e")

    row = judged(tmp_path, Selection(states=["COMPLETED"]))

    assert (row.verdict, row.with_all) == ("equivalent", None)


def test_a_selection_by_settings_leaves_out_nothing_of_an_arm(tmp_path: Path) -> None:
    ten_seeds(tmp_path)
    for seed in range(10):
        ended(tmp_path, "amp_bf16", seed, math.nan)

    row = judged(tmp_path, Selection(where=["precision!=amp_bf16"]))

    assert (row.verdict, row.with_all) == ("equivalent", None)


def test_runs_that_somebody_stopped_or_that_still_run_tell_nothing(tmp_path: Path) -> None:
    ten_seeds(tmp_path, of_tf32={1: (0.5, "CANCELLED"), 2: (0.5, "NODE_FAIL")})

    row = judged(tmp_path, Selection(states=["COMPLETED"]))

    assert (row.verdict, row.with_all) == ("equivalent", None)


def test_chosen_runs_are_exploratory_where_all_cannot_be_compared(tmp_path: Path) -> None:
    ten_seeds(tmp_path)
    ended(tmp_path, "tf32", 10, 0.2, at=4)  # stopped early

    row = judged(tmp_path, Selection(where=["val_accuracy>0.5"]))

    assert row.verdict == "equivalent"
    assert row.exploratory is not None
    assert row.exploratory.startswith("the selection left out 1 run of these arms, and with them")


def test_a_look_at_some_of_the_runs_there_were_makes_no_later_look_at_all_exploratory(tmp_path: Path) -> None:
    ten_seeds(tmp_path)

    some, everyone = judged(tmp_path, Selection(where=["seed<6"])), judged(tmp_path, Selection())
    for seed in (10, 11):
        ended(tmp_path, "tf32", seed, 0.91)
        ended(tmp_path, "fp32", seed, 0.91)
    more = judged(tmp_path, Selection())

    assert (some.exploratory, everyone.exploratory) == (None, None)
    assert more.exploratory is not None
    assert more.exploratory.endswith("and then 4 were added")
