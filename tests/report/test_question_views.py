from __future__ import annotations

import csv
import io
import json
import math
import re
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
from hpcml.report.runs import keys_in, rows_of
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


def test_a_moment_is_shown_as_one() -> None:
    assert value_words(1_795_252_440.0, "t_start").startswith("2026-11-2")


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


def test_texts_from_users_stay_in_their_line() -> None:
    lines = shown(rows_document([EVIL, "b"], [[EVIL, 1]]))

    assert len(lines) == 2
    assert not set("".join(lines)) & {"\x1b", "\r", "\u202e"}
    assert len(list(csv.reader(io.StringIO(as_csv(rows_document([EVIL], [[EVIL]])))))) == 2


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


def test_a_short_curve_beside_a_long_one_has_steps_of_its_own() -> None:
    long, short = run(uid="20260528-202640-aaaaaa"), run(uid="20260528-202640-bbbbbb")
    of = {long.uid: points(*range(1000)), short.uid: points(0, 999, 0, 999)}

    lines = shown(curve_views.curves_document(Curves(metric="loss", runs=[long, short], points=of)), 200)

    assert " ▁█▁█ to step 3" in lines[-1]


def curves_markdown(found: Curves) -> str:
    return as_markdown(curve_views.curves_document(found))


def curves() -> Curves:
    ended = run(uid="20260528-202640-bbbbbb", metrics={"loss": summary("loss", None)})
    return Curves(
        metric="loss",
        runs=[run(uid="20260528-202640-aaaaaa", metrics={"loss": summary("loss", 0.1)}), ended],
        points={"20260528-202640-aaaaaa": points(4.0, 2.0, 0.0), "20260528-202640-bbbbbb": points(4.0, math.nan)},
    )


def test_a_last_value_that_is_not_finite_is_told_by_the_last_point_where_it_is_there() -> None:
    found = curves()
    uid = found.runs[1].uid
    reached = [Point(0, 0.0, 4.0), Point(100, 1.0, -math.inf)]

    told = curves_markdown(replace(found, points={**found.points, uid: reached}))
    without = curves_markdown(replace(found, points={**found.points, uid: reached[:1]}))

    assert "| -inf |" in told
    assert "| not finite |" in without


def test_a_first_value_that_is_not_finite_is_told() -> None:
    began = replace(summary("loss", 0.5), first=0.5)
    table = curves_markdown(
        Curves(metric="loss", runs=[run(metrics={"loss": began})], points={run().uid: points(math.inf, 0.5)})
    )

    assert re.search(r"\| inf \| 0\.5", table)


def test_a_difference_in_a_last_value_that_is_not_finite_does_not_say_which_it_is() -> None:
    contrast = RunDiffEntry(section="outcome", key="metrics.loss", first=math.nan, second=0.25)
    differences = RunDiff(first=run(), second=run(), contrasts=[contrast], alike=7)

    assert "| metrics.loss | not finite | 0.250000 |" in as_markdown(diff.differences_document(differences))


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


def test_a_best_run_that_diverged_is_told_in_every_form() -> None:
    early = replace(ranking(), ranked=[replace(ranking().ranked[0], diverged=("train_loss",))])

    (line,) = csv.DictReader(io.StringIO(as_csv(best.ranking_document(early))))

    assert [each.split()[-1] for each in shown(best.ranking_document(early), 160)[:2]] == [
        "diverged",
        "train_loss",
    ]
    assert as_markdown(best.ranking_document(early)).rstrip().endswith("| train_loss |")
    assert json.loads(as_json(best.ranking_document(early)))["ranked"][0]["diverged"] == ["train_loss"]
    assert line["diverged"] == "train_loss"
    assert "1 of those listed diverged" in best.ranking_remark(early)


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


def test_repeats_of_one_seed_are_not_called_seeds_and_one_run_is_no_runs() -> None:
    first = replace(ranking().ranked[0], alike_n=3, alike_seeds=1, alike_mean=0.91)
    repeated = replace(ranking(), ranked=[first, replace(first, alike_n=0, alike_seeds=0, alike_mean=None)])

    lines = shown(best.ranking_document(repeated), 160)

    assert lines[0].rstrip().endswith("its repeats' mean")
    assert lines[1].rstrip().endswith("0.9100 of 3")
    assert lines[2].rstrip().endswith(" 9")  # the step: none of its settings was completed
    assert "A best run is lucky among its repeats:" in best.ranking_remark(repeated)
    assert best.ranking_remark(replace(repeated, candidates=1)).startswith("1 run with val_accuracy; ")


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


def test_columns_are_what_was_asked_for() -> None:
    keys = keys_in(" uid, state,,model.name ,metrics.val_accuracy.max,age,nothing")

    assert keys == ["uid", "state", "model.name", "metrics.val_accuracy.max", "age", "nothing"]
    recorded = run(uid="u", submitted_at="2026-05-28T20:26:40+00:00", params={"model.name": "cnn"})
    assert rows_of([recorded], keys, now=1_780_000_010.0) == [["u", recorded.state, "cnn", 0.99, 10.0, None]]
    assert keys_in(None) == keys_in("") == []
