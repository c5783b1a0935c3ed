"""Curves of a report as a reader wants to see them: some runs, smoothed, on a logarithmic axis, zoomed and back."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from rendered import report_page

from tests.report.browsing import Open, Opened
from tests.report.publication_values import publication

_SEEDS = 11
_DATA = """plot => plot.data.filter(t => t.visible).map(t => ({name: t.meta ?? "", x: t.x, y: t.y,
    opacity: t.opacity ?? 1}))"""


@pytest.fixture(scope="module")
def whole() -> str:
    return report_page(
        publication(("fp32",), seeds=_SEEDS, points=40, comparison=None, timelines={}, scaling=None, attainment=None)
    )


def drawn(report: Opened) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = report.page.locator(".drawing").evaluate(_DATA)
    return found


def roughness(values: list[float]) -> float:
    return sum(abs(after - before) for before, after in pairwise(values)) - abs(values[-1] - values[0])


def test_smoothed_curves_have_what_was_recorded_behind_them(opened: Open, whole: str) -> None:
    report = opened(whole)
    before = drawn(report)
    assert len(before) == _SEEDS + 2  # the mean and its band

    weight = report.page.get_by_label("Smoothing")
    weight.fill("0.8")

    after = drawn(report)
    assert len(after) == 2 * (_SEEDS + 1) + 1
    lines = [each for each in before if each["name"]]
    faint, smooth = after[0 : 2 * _SEEDS : 2], after[1 : 2 * _SEEDS : 2]
    assert [each["y"] for each in faint] == [each["y"] for each in lines]
    assert all(each["opacity"] < 0.5 for each in faint)
    assert all(roughness(s["y"]) < roughness(f["y"]) / 2 for s, f in zip(smooth, faint, strict=True))
    assert smooth[0]["y"][0] == pytest.approx(faint[0]["y"][0])
    assert "moving average of weight 0.8; faint lines: as recorded" in report.page.locator(".chosen").inner_text()
    weight.fill("0")
    assert drawn(report) == before
    assert report.page.locator(".chosen").inner_text() == ""
    assert report.heard == []


def test_a_line_of_few_points_is_smoothed_as_far_as_one_of_many(opened: Open) -> None:
    alone = publication(("fp32",), seeds=1, points=301, comparison=None, timelines={}, scaling=None, attainment=None)
    report = opened(report_page(alone))

    report.page.get_by_label("Smoothing").fill("0.9")

    _, run, _, _, mean = drawn(report)
    at = dict(zip(run["x"], run["y"], strict=True))
    assert len(mean["x"]) < len(run["x"]) / 2
    assert max(abs(y - at[x]) for x, y in zip(mean["x"], mean["y"], strict=True)) < 0.05


def test_runs_are_chosen_by_whole_numbers_and_words(opened: Open, whole: str) -> None:
    report = opened(whole)
    field = report.page.get_by_role("searchbox", name="Runs")

    for words, seeds in (("seed 1", {1}), ("SEED 1, seed 10", {1, 10}), ("fp32 seed 2", {2}), ("nobody", set())):
        field.fill(words)
        assert {int(each["name"].split("seed ")[1].split(",")[0]) for each in drawn(report) if each["name"]} == seeds
        assert f"{len(seeds)} of {_SEEDS} runs are drawn" in report.page.locator(".chosen").inner_text()
    field.fill("")
    assert len(drawn(report)) == _SEEDS + 2


def test_a_logarithmic_axis_is_offered_where_all_values_have_a_logarithm(opened: Open, whole: str) -> None:
    negative = opened(whole)
    assert not negative.page.get_by_label("Logarithmic").is_visible()  # noise goes below zero at the beginning
    told = publication(("fp32",), seeds=3, points=40, comparison=None, timelines={}, scaling=None, attainment=None)
    (of,) = told.curves
    points = {
        uid: [point._replace(value=abs(point.value) + 0.001) for point in points]
        for uid, points in of.curves.points.items()
    }
    mean = {
        axis: replace(band, mean=tuple(map(abs, band.mean)), low=(-1.0,) * len(band.low))
        for axis, band in of.bands["fp32"].items()
    }
    of = replace(of, curves=replace(of.curves, points=points), bands={"fp32": mean})

    report = opened(report_page(replace(told, curves=(of,))))
    report.page.get_by_label("Logarithmic").check()

    assert report.page.locator(".drawing").evaluate("plot => plot._fullLayout.yaxis.type") == "log"
    assert min(value for each in drawn(report) for value in each["y"]) > 0
    assert report.heard == []


def test_a_chart_that_was_zoomed_is_whole_again(opened: Open, whole: str) -> None:
    report = opened(whole)
    plot = report.page.locator(".drawing")
    ranges = "plot => [plot._fullLayout.xaxis.range, plot._fullLayout.yaxis.range]"
    before = plot.evaluate(ranges)
    box = plot.locator(".nsewdrag").bounding_box()
    assert box is not None
    report.page.mouse.move(box["x"] + 100, box["y"] + 50)
    report.page.mouse.down()
    report.page.mouse.move(box["x"] + 300, box["y"] + 200, steps=4)
    report.page.mouse.up()
    report.page.wait_for_function("() => document.querySelector('.drawing').layout.yaxis.autorange === false")

    report.page.get_by_role("button", name="Whole range").click()

    assert plot.evaluate(ranges) == before
