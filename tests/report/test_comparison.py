from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest
from rendered import (
    comparison_csv,
    comparison_json,
    comparison_markdown,
    comparison_renderable,
    comparison_text,
)
from report_values import EVIL, ci, comparison, difference, flag, row, speed
from rich.console import Console

from hpcml.analysis.compare.result import Comparison, Cost, Discrepancy, Load, Occurrence, ToTarget
from hpcml.analysis.flags import FlagCode


def measured() -> Comparison:
    """Return a comparison of which cost, load and the way to a target are known."""
    rows = tuple(
        row(
            level,
            0.91,
            speed=speed(20 * share, ratio and 1 / share),
            difference=ratio and difference(0.0, 0.001),
            verdict="equivalent" if ratio else "reference",
            p_adjusted=ratio and 0.0642,
            cost=Cost(
                gpu_hours=0.5 * share,
                energy_kj=540.0 * share,
                energy_method="counter",
                energy_scope="gpu",
                energy_per_sample_j=1.5 * share,
                energy_ratio=ratio,
                energy_ratio_ci95=ci(0.48, 0.52) if ratio else None,
                co2_g=60.0 * share,
                co2_source="400 g/kWh",
                n=5,
            ),
            load=Load(
                mean_power_w=300.0,
                power_limit_w=400.0,
                throttled_power_share=0.1,
                throttled_thermal_share=0.0,
                sm_mhz=1380.0,
                util_percent=97.0,
                tensor_percent=None,
                peak_memory_mb=9000.0,
                achieved_tflops=7.8,
                peak_tflops=19.5,
                peak_basis="data sheet",
                mfu=0.4,
                data_share=0.02,
                communication_share=None,
                skipped_steps=None,
                limited_by=None,
            ),
            to_target=ToTarget(
                target=0.9,
                reached=reached,
                n=5,
                median_s=30.0 * share,
                restricted_mean_s=31.0 * share,
                budget_s=63.0,
                median_kj=None,
            ),
        )
        for level, share, ratio, reached in (("fp32", 1.0, None, 5), ("tf32", 0.5, 0.5, 4))
    )
    where = {"model": "digits_cnn", "training.batch_size": "64"}
    return comparison(rows=rows, where=where, target_source="config", excluded=(), notes=())


def test_a_terminal_gets_lines_and_colour_and_a_file_gets_neither() -> None:
    terminal = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="standard", no_color=False)
    plain = Console(file=io.StringIO(), width=100, force_terminal=False)
    for console in (terminal, plain):
        console.print(comparison_renderable(comparison(), console=console))

    assert isinstance(terminal.file, io.StringIO)
    assert isinstance(plain.file, io.StringIO)
    assert "\x1b[32m" in terminal.file.getvalue()
    assert "─" in terminal.file.getvalue()
    assert "\x1b" not in plain.file.getvalue()
    assert "─" not in plain.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_costs_and_loads_stand_below_the_table_a_line_for_each(width: int) -> None:
    text = comparison_text(measured(), width=width)

    assert all(len(line) <= width for line in text.splitlines())
    lines = [line.split() for line in text.splitlines()]
    if width >= 80:
        assert ["GPU", "hours", "0.5000", "0.2500"] in lines
        assert "time to target (median)" in text
        assert ["reached", "the", "target", "5", "of", "5", "4", "of", "5"] in lines
    assert "TFLOP/s of a device" in text
    assert "steps skipped" not in text  # nobody counted any
    assert "limited by" not in text


def test_names_from_users_can_neither_style_nor_move_anything() -> None:
    evil = comparison(
        where={"model": EVIL}, rows=(row(EVIL, 0.9, flags=(flag(EVIL),)),), flags=(flag(EVIL),), reference=EVIL
    )
    evil = replace(evil, metric=EVIL, by=EVIL, cells=(replace(evil.cells[0], reference=EVIL),))

    text, markdown = comparison_text(evil, width=200), comparison_markdown(evil)

    assert "[bold]" in text
    for output in (text, markdown):
        assert not set(output) & {"\x1b", "\r", "\u202e"}
    table = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {6}


def test_confounders_stand_first() -> None:
    mixed = Discrepancy(
        key="torch",
        kind="fact",
        occurrences=(
            Occurrence(value="2.13", n_runs=5, levels=("fp32",)),
            Occurrence(value="2.12", n_runs=1, levels=("tf32",)),
        ),
    )

    text = f"CONFOUNDED by fact {mixed}"
    lines = comparison_text(comparison(flags=(flag(text, FlagCode.CONFOUNDED),))).splitlines()

    remarks = [line for line in lines if line.startswith("  - ")]
    assert remarks[0] == "  - CONFOUNDED by fact torch: 2.13 (5 runs: fp32); 2.12 (1 run: tf32)"


def test_an_effective_precision_is_shown_where_one_was_asked_for_or_rows_differ_in_it() -> None:
    def is_shown(*effective: str, requested: str = "own") -> bool:
        rows = [
            row(f"0.{at}", 0.9, precision_requested=(requested,), precision_effective=(each,))
            for at, each in enumerate(effective)
        ]
        return "effective" in comparison_text(comparison(rows=tuple(rows)))

    assert not is_shown("not proven", "not proven")
    assert is_shown("fp32", "fp32")
    assert is_shown("fp32", "tf32")
    assert is_shown("not proven", "not proven", requested="tf32")


def test_a_row_that_proves_no_numerics_says_so_where_its_speed_would_be() -> None:
    rows = (*comparison().cells[0].rows[:2], replace(comparison().cells[0].rows[2], numerics="unproven"))

    line = next(line for line in comparison_text(comparison(rows=rows)).splitlines() if line.startswith("tf32 "))

    assert line.split()[-3:] == ["unproven"] * 3
    assert "| unproven | unproven | unproven | unproven |" in comparison_markdown(comparison(rows=rows))


def test_json_holds_everything_under_stable_keys() -> None:
    found = json.loads(comparison_json(comparison()))

    assert found["format"] == 2
    assert list(found) == [
        "format",
        "by",
        "metric",
        "goal",
        "goal_source",
        "n_runs",
        "n_comparisons",
        "cells",
        "n_tests",
        "seed",
        "excluded",
    ]
    first, second, emulated = found["cells"][0]["rows"]
    assert first["verdict"] == "reference"
    assert second["difference"]["ci90"] == {"low": -0.0018, "high": pytest.approx(-0.0002), "confidence": 0.9}
    assert second["speed"]["speedup"] == 2.22
    assert emulated["speed"] is None


def test_csv_has_one_line_for_each_row_and_leaves_unknown_fields_empty() -> None:
    lines = list(csv.DictReader(io.StringIO(comparison_csv(comparison()))))

    assert [line["level"] for line in lines] == ["fp32", "amp_bf16", "tf32"]
    assert (lines[1]["difference_ci90_low"], lines[1]["paired"], lines[1]["verdict"]) == (
        "-0.0018",
        "true",
        "equivalent",
    )
    assert {lines[2][key] for key in ("step_ms", "samples_per_s", "speedup", "speedup_ci95_low", "wall_s")} == {""}
    assert lines[2]["precision_effective"] == "fp32;tf32"


def test_a_spreadsheet_runs_nothing_from_a_name() -> None:
    lines = list(csv.DictReader(io.StringIO(comparison_csv(comparison(where={"model": "=HYPERLINK(1)"})))))

    assert lines[0]["model"] == "'=HYPERLINK(1)"
    assert lines[1]["difference"] == "-0.001"


def test_a_verdict_that_is_weaker_among_many_rows_is_said_to_be_so() -> None:
    weaker = row("tf32", 0.9, difference=difference(0.0, 0.004), verdict="non-inferior", verdict_alone="equivalent")
    told = comparison()
    cell = replace(told.cells[0], rows=(told.cells[0].rows[0], replace(weaker, p_adjusted=0.064)))

    text = comparison_text(replace(told, n_tests=2, cells=(cell,)), width=400)

    assert (
        "tf32: not worse by the margin, and perhaps better, among 2 rows (Holm); alone it would be: no difference that "
        "matters: +0.0000, between" in text
    )


def test_the_p_of_a_paper_s_table_is_the_one_that_its_verdict_goes_by() -> None:
    told = comparison()
    rows = tuple(each if each.difference is None else replace(each, p_adjusted=0.064) for each in told.cells[0].rows)
    many = replace(told, n_tests=2, cells=(replace(told.cells[0], rows=rows),))

    table = comparison_markdown(many)

    assert "p (TOST), Holm over 2" in table
    assert "0.064" in table
    assert "0.032" not in table.partition("- ")[0]
    assert "p (TOST) |" in comparison_markdown(told)


def test_a_difference_of_pairs_has_digits_of_its_own_spread() -> None:
    rows = (
        row("fp32", 0.9, sd=0.12),
        row("tf32", 0.9, sd=0.12, difference=difference(-0.0004, 0.0017), verdict="better"),
    )

    assert "-0.0004 [-0.0021, +0.0013]" in comparison_markdown(comparison(rows=rows, margin=0.01))


def test_beside_a_verdict_stands_the_p_of_what_it_claims() -> None:
    better = row("tf32", 0.9, difference=difference(0.02, 0.01), verdict="better", p_adjusted=0.98, p_claim=0.0123)
    unsure = row("bf16", 0.9, difference=difference(0.02, 0.03), verdict="inconclusive", p_adjusted=0.7)
    told = replace(comparison(rows=(row("fp32", 0.9), better, unsure)), n_tests=2)

    table = comparison_markdown(told).splitlines()
    head = next(line for line in table if line.startswith("| precision"))
    tf32, bf16 = (next(line for line in table if line.startswith(f"| {name}")) for name in ("tf32", "bf16"))

    assert "| p (TOST), Holm over 2 | p of the verdict, Holm over 2 | verdict |" in head
    assert "| 0.980 | 0.012 | better |" in tf32
    assert "| 0.700 |  | inconclusive |" in bf16
    assert "p of the verdict" not in comparison_markdown(
        comparison()
    )  # equivalent alone: the p of TOST is that of the claim


def of_many_arms(n: int) -> Comparison:
    flagged = {"flags": (flag("one for all"),)}
    judged = [
        row(f"arm{at}", 0.9, difference=difference(-0.001 * at, 0.0005), verdict="worse" if at else "better", **flagged)
        for at in range(n)
    ]
    return comparison(rows=(row("base", 0.9), *judged), reference="base")


def test_of_many_arms_a_line_for_each_verdict_goes_before_the_table_and_says_who_has_it() -> None:
    lines = comparison_text(of_many_arms(20), width=250).splitlines()

    assert lines[3:5] == [
        "  better: 1 of 20: arm0",
        f"  worse: 19 of 20: {', '.join(f'arm{at}' for at in range(1, 13))} and 7 more",
    ]
    assert lines[5] == "  margin 0.005; 5 seeds or more"
    assert lines[6].startswith("precision ")
    assert "  - (1) one for all" in lines
    assert sum("worse (1)" in line for line in lines) == 19
    few = comparison_text(of_many_arms(6), width=250)
    assert "  arm5: worse" in few
    assert " of 6: " not in few
