from __future__ import annotations

import math
import re
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from rendered import report_latex, report_markdown

from hpcml.model.records import Point
from hpcml.report.charts import decimate, level_styles, named_axis
from hpcml.report.render.latex import is_report_latex
from hpcml.report.render.markdown import is_report_markdown
from tests.report.publication_values import HOSTILE, full_comparison, publication
from tests.report.report_values import difference, flag, row


def track(values: list[float]) -> list[Point]:
    return [Point(step=at, t_s=float(at), value=value) for at, value in enumerate(values)]


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=400), st.integers(8, 60))
def test_fewer_points_are_some_of_them_in_order_with_ends_and_extremes(values: list[float], most: int) -> None:
    points = track(values)

    kept = decimate(points, most)

    steps = [point.step for point in kept]
    assert len(kept) <= max(most, 0)
    assert steps == sorted(set(steps))
    assert all(points[step] is point for step, point in zip(steps, kept, strict=True))
    assert steps[:1] == [point.step for point in points[:1]]
    assert steps[-1:] == [point.step for point in points[-1:]]
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        left = [point.value for point in kept if math.isfinite(point.value)]
        assert (min(left), max(left)) == (min(finite), max(finite))
    assert all(map(math.isfinite, values)) or not all(math.isfinite(point.value) for point in kept)


def test_no_two_of_many_levels_look_alike() -> None:
    styles = level_styles([str(at) for at in range(42)])

    assert len({(style.colour, style.marker) for style in styles.values()}) == 42


def test_the_markdown_has_the_verdicts_first_and_every_table() -> None:
    text = report_markdown(publication())

    assert is_report_markdown(text.encode()[:64])
    assert text.index("- **equivalent**: amp\\_bf16" if "amp\\_bf16" in text else "- **equivalent**: amp_bf16") < 1000
    assert "| amp_bf16 | amp_bf16 | 5 | 0.9098 ± 0.0024 | -0.0010 [-0.0018, -0.0002] |" in text
    assert "    hpcml run -m precision=fp32,amp,tf32" in text
    assert "Mean val_accuracy over seeds:" in text
    assert text.count("\n## ") == 10


def test_how_numbers_were_obtained_is_said_as_it_was_done() -> None:
    plain = report_markdown(publication(("fp32", "tf32"), seeds=2))
    alone = report_markdown(publication(("fp32",), seeds=1, comparison=None))

    assert "where all arms have the same seeds" not in plain
    assert "paired by the seeds that a row shares with the reference" in plain
    assert "own products were seen to compute in" in plain
    assert "The only run" in alone
    assert "out of 1 run." in alone


def test_hostile_words_stay_in_their_place_in_markdown() -> None:
    rows = (row(HOSTILE[0], 0.9), *(row(level, 0.9, verdict="inconclusive") for level in HOSTILE[1:]))
    text = report_markdown(
        publication(tuple(HOSTILE), seeds=2, title=HOSTILE[1], comparison=full_comparison(rows=rows))
    )

    assert "<script" not in text
    assert "<img" not in text
    tables = [line for line in text.splitlines() if line.startswith("| &lt;/script>")]
    assert tables
    text.encode()


def test_the_latex_has_each_table_as_a_float_with_as_many_columns_as_it_says() -> None:
    text = report_latex(publication())

    assert is_report_latex(text.encode()[:64])
    assert text.count(r"\begin{longtable}") == text.count(r"\end{longtable}") == text.count(r"\caption{") > 10
    for part in text.split(r"\begin{longtable}{")[1:]:
        columns, _, rest = re.sub(r"p\{[^}]*\}", "p", part).partition("}")
        rows = [line for line in rest.partition(r"\end{longtable}")[0].splitlines() if line.endswith("tabularnewline")]
        assert rows
        assert all(line.replace(r"\&", "").count("&") == len(columns) - 1 for line in rows)


def test_what_weakens_three_conclusions_or_more_is_told_once() -> None:
    levels = ("fp32", "amp_bf16", "tf32", "bf16")

    def told(n: int) -> str:
        rows = [row(level, 0.9, verdict="inconclusive", flags=(flag(f"flag of {level}"),)) for level in levels[1:n]]
        cells = full_comparison(rows=(row("fp32", 0.9), *rows), flags=(flag("ran one after the other"),))
        text = report_markdown(publication(levels[:n], seeds=2, comparison=cells))
        return text[: text.index("## Comparison")]

    assert told(3).count("ran one after the other") == 2
    assert "All of these" not in told(3)
    assert told(4).count("ran one after the other") == 1
    assert "(weakened by 1, 2)" in told(4)
    assert all(f". flag of {level}" in told(4) for level in levels[1:])


def test_remarks_of_a_report_do_not_repeat_what_its_tables_say() -> None:
    known = replace(difference(0.0, 0.01), n_pairs=5)
    rows = [row(level, 0.9, difference=known, verdict="inconclusive") for level in ("tf32", "bf16")]
    text = report_markdown(
        publication(("fp32", "tf32", "bf16"), seeds=2, comparison=full_comparison(rows=(row("fp32", 0.9), *rows)))
    )

    assert "p of TOST" not in text


def test_names_of_many_levels_on_an_axis_are_short_and_told_apart() -> None:
    levels = [f"{'x' * 60}{at}" for at in range(8)]

    axis = named_axis(levels)

    assert axis["tickvals"] == levels
    assert len(set(axis["ticktext"])) == 8
    assert max(map(len, axis["ticktext"])) <= 32
