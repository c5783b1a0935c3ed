from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import pytest
from report_values import EVIL, run, summary

from hpcml.analysis.ranking import Ranked, Ranking
from hpcml.analysis.run_diff import RunDiff, RunDiffEntry
from hpcml.model.query_results import Curves
from hpcml.model.records import Point
from hpcml.report import best, diff
from hpcml.report import curves as curve_views
from hpcml.report.document import Document
from hpcml.report.query import rows_document, value_words
from hpcml.report.render.data import as_csv, as_json
from hpcml.report.render.markdown import as_markdown
from hpcml.report.render.terminal import as_text
from hpcml.report.text_charts import axes, sparkline


def points(*values: float) -> list[Point]:
    return [Point(step=step, t_s=step / 2, value=value) for step, value in enumerate(values)]


@pytest.mark.parametrize(
    ("value", "heading", "words"),
    [
        (None, "", ""),
        (True, "", "true"),
        (3, "", "3"),
        (0.123456789, "", "0.123457"),
        (1e-9, "", "1.0000e-09"),
        (math.nan, "", "nan"),
        (90.0, "wall_s", "1m30s"),
        (["a", "b"], "tags", "a, b"),
        (["a", 1], "betas", "a, 1"),
        ([{"a": 1}], "", '[{"a": 1}]'),
        ({"b": 1, "a": [2]}, "", '{"a": [2], "b": 1}'),
    ],
)
def test_values_are_words_for_people(value: object, heading: str, words: str) -> None:
    assert value_words(value, heading) == words


ROWS = [["a", 1, None], ["b,c", 0.25, [1, "x"]]]


def shown(document: Document, width: int = 100) -> list[str]:
    return as_text(document, width=width).splitlines()


def test_rows_are_aligned_and_none_is_empty() -> None:
    assert shown(rows_document(["name", "value", "more"], ROWS)) == [
        "name     value  more",
        "a            1",
        "b,c   0.250000  1, x",
    ]


def test_rows_for_programs_are_whole() -> None:
    rows = [["b,c", 1 / 3, [1, "x"]], [True, math.inf, None]]
    assert as_csv(rows_document(["name", "value", "more"], rows)) == (
        'name,value,more\n"b,c",0.3333333333333333,"[1, ""x""]"\ntrue,inf,\n'
    )
    assert json.loads(as_json(rows_document(["a", "b"], [[1, math.nan], ["x", None]]))) == [
        {"a": 1, "b": "nan"},
        {"a": "x", "b": None},
    ]
    assert as_markdown(rows_document(["a|", "b"], [["x", 1.5]])).splitlines() == [
        "| a\\| | b |",
        "| --- | ---: |",
        "| x | 1.50000 |",
    ]


def test_a_terminal_gets_no_more_rows_and_columns_than_it_can_show_and_programs_get_all() -> None:
    many = rows_document(("n",), [(n,) for n in range(1500)])
    wide = rows_document([f"column{at}" for at in range(9)], [list(range(9)), [-at for at in range(9)]])

    assert shown(many)[1000:] == ["999", "... and 500 more rows: --csv, --json and --md have all"]
    assert len(json.loads(as_json(many))) == 1500
    assert shown(wide, width=40)[-1].endswith("column7, column8")


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([7, 0], "█   ▁"),
        ([1, 1, 1], "▅ ▅  ▅"),
        ([0, math.nan, math.inf, 8], "▁ ! ! █"),
        ([-1e308, 1e308], "▁   █"),
        ([0.5, 1.5, 1e300, 1.0, -1e6], "▁█ ↑▅ ↓"),
        ([], ""),
    ],
)
def test_a_curve_is_a_line_as_high_as_its_values(values: list[float], line: str) -> None:
    curve = points(*values)
    steps, ends = axes([curve])

    assert sparkline(curve, width=8, steps=steps, values=ends) == line


def test_a_curve_keeps_to_its_place_on_axes_that_several_share() -> None:
    assert sparkline(points(0, 0)[1:], width=4, steps=(0, 3), values=(0.0, 1.0)) == " ▁"
    assert sparkline(points(1.0) * 50, width=1, steps=(0, 0), values=(0.0, 1.0)) == "█"


def curves_markdown(found: Curves) -> str:
    return as_markdown(curve_views.curves_document(found))


def curves() -> Curves:
    ended = run(uid="20260528-202640-bbbbbb", metrics={"loss": summary("loss", None)})
    return Curves(
        metric="loss",
        runs=[run(uid="20260528-202640-aaaaaa", metrics={"loss": summary("loss", 0.1)}), ended],
        points={"20260528-202640-aaaaaa": points(4.0, 2.0, 0.0), "20260528-202640-bbbbbb": points(4.0, math.nan)},
    )


def test_curves_are_drawn_and_their_points_told() -> None:
    lines = shown(curve_views.curves_document(curves()))

    assert lines[0].split() == ["run", "model", "precision", "seed", "loss", "first", "last", "min", "max"]
    assert lines[1].startswith("aaaaaa")
    assert "█" in lines[1]
    assert "not finite" in lines[2]
    assert len(lines) == 3
    told = json.loads(as_json(curve_views.curves_document(curves())))
    assert told["metric"] == "loss"
    assert told["curves"][1] == {
        "uid": "20260528-202640-bbbbbb",
        "points": [{"step": 0, "t_s": 0.0, "value": 4.0}, {"step": 1, "t_s": 0.5, "value": "nan"}],
    }
    assert as_csv(curve_views.curves_document(curves())).splitlines()[:2] == [
        "uid,step,t_s,loss",
        "20260528-202640-aaaaaa,0,0.0,4.0",
    ]
    assert len(curves_markdown(curves()).splitlines()) == 4


def test_thinned_curves_keep_their_ends_and_only_points_that_were_there() -> None:
    whole = Curves(metric="x", runs=[], points={"a": points(*range(1000)), "b": points(1.0)})

    thin = whole.thinned(7)

    assert [p.step for p in thin.points["a"]] == [0, 166, 333, 499, 666, 832, 999]
    assert thin.points["b"] == whole.points["b"]
    assert [p.step for p in whole.thinned(1).points["a"]] == [999]
    assert whole.thinned(5000) == whole


def ranking() -> Ranking:
    ranked = [
        Ranked(place=1, group=("cnn", None), settings=(0.1,), value=0.95, step=9, run=run(uid="20260528-202640-aaaaaa"))
    ]
    return Ranking(
        metric="val_accuracy",
        goal="max",
        at="last",
        by=("model", "note"),
        differ=("lr",),
        ranked=ranked,
        candidates=3,
        without=2,
    )


def test_a_ranking_reads_in_every_form() -> None:
    lines = shown(best.ranking_document(ranking()), 140)

    assert lines[0].split()[:4] == ["model", "run", "experiment", "model"]
    assert lines[1].split()[:3] == ["1", "cnn", "aaaaaa"]
    assert " ".join(lines[0].split()).endswith("precision lr seed state val_accuracy at step")
    assert lines[1].split()[5:8] == ["tf32", "0.1", "3"]
    assert best.ranking_remark(ranking()).startswith(
        "3 runs with val_accuracy; 2 without a finite value of it; max of the value"
    )
    told = json.loads(as_json(best.ranking_document(ranking())))
    assert (told["by"], told["candidates"]) == (["model", "note"], 3)
    assert told["ranked"][0]["group"] == {"model": "cnn", "note": None}
    assert told["ranked"][0]["settings"] == {"lr": 0.1}
    (line,) = csv.DictReader(io.StringIO(as_csv(best.ranking_document(ranking()))))
    assert (line["group.model"], line["setting.lr"], line["value"]) == ("cnn", "0.1", "0.95")
    assert line["uid"] == "20260528-202640-aaaaaa"
    assert "| aaaaaa |" in as_markdown(best.ranking_document(ranking()))


def test_a_best_run_of_many_seeds_stands_beside_the_mean_of_its_settings() -> None:
    lucky = replace(ranking(), ranked=[replace(ranking().ranked[0], alike_n=5, alike_seeds=5, alike_mean=0.91)])

    lines = shown(best.ranking_document(lucky), 160)
    (line,) = csv.DictReader(io.StringIO(as_csv(best.ranking_document(lucky))))

    assert lines[0].rstrip().endswith("its seeds' mean")
    assert lines[1].rstrip().endswith("0.9100 of 5")
    assert "A best run is lucky among its seeds: expect what its settings have on average" in best.ranking_remark(lucky)
    assert "lucky" not in best.ranking_remark(ranking())
    assert (line["alike_n"], line["alike_mean"]) == ("5", "0.91")
    assert json.loads(as_json(best.ranking_document(lucky)))["ranked"][0]["alike_mean"] == 0.91


def test_differences_read_in_every_form() -> None:
    first, second = run(uid="20260528-202640-aaaaaa"), run(uid="20260528-202640-bbbbbb", name=EVIL)
    contrasts = [
        RunDiffEntry(section="settings", key="seed", first=1, second=2),
        RunDiffEntry(section="outcome", key="wall_s", first=90.0, second=None),
    ]
    differences = RunDiff(first=first, second=second, contrasts=contrasts, alike=7)

    text = "\n".join([*shown(diff.differences_document(differences)), diff.remark(differences)])

    assert text.index("settings") < text.index("seed") < text.index("outcome") < text.index("1m30s")
    assert text.endswith("7 more are alike")
    assert "environment" not in text
    assert json.loads(as_json(diff.differences_document(differences))) == {
        "first": first.uid,
        "second": second.uid,
        "alike": 7,
        "settings": {"seed": [1, 2]},
        "environment": {},
        "outcome": {"wall_s": [90.0, None]},
    }
    assert as_csv(diff.differences_document(differences)).splitlines()[2] == "outcome,wall_s,90.0,"
    same = RunDiff(first=first, second=first, contrasts=[], alike=7)
    assert diff.remark(same) == "the two do not differ"
