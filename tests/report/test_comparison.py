from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace

import pytest
from publication_values import publication
from rendered import (
    comparison_csv,
    comparison_json,
    comparison_markdown,
    comparison_renderable,
    comparison_text,
    report_markdown,
    report_page,
)
from report_values import EVIL, ci, comparison, difference, flag, row, speed
from rich.console import Console

from hpcml.analysis.compare.result import Comparison, Cost, Discrepancy, Excluded, Load, Losses, Occurrence, ToTarget
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


def test_markdown_and_csv_have_the_costs_too() -> None:
    markdown, lines = comparison_markdown(measured()), list(csv.DictReader(io.StringIO(comparison_csv(measured()))))

    assert "| energy, kJ | 540.0 | 270.0 |" in markdown
    assert [line["energy_kj"] for line in lines] == ["540.0", "270.0"]
    assert (lines[0]["mfu"], lines[1]["energy_ratio"], lines[1]["energy_ratio_ci95_low"]) == ("0.4", "0.5", "0.48")
    assert (lines[1]["target"], lines[1]["target_reached"], lines[1]["target_n"]) == ("0.9", "4", "5")
    assert (lines[1]["p_adjusted"], lines[1]["cell"]) == ("0.0642", "training.batch_size=64")


def test_where_energy_and_peaks_are_from_is_said() -> None:
    text = comparison_text(measured(), width=200)

    assert "energy: of the GPUs' boards alone (counter, of the gpu)" in text
    assert "CO2: of that energy, 400 g/kWh" in text


def test_of_many_rows_it_is_said_for_how_many_the_verdicts_hold() -> None:
    many = replace(comparison(), n_tests=7)

    assert "t tests paired by seed or unpaired, Holm over 7 rows" in comparison_text(many, width=200)


def test_a_setting_that_made_cells_is_in_their_heading_once() -> None:
    heading = comparison_text(measured(), width=200).splitlines()[2]

    assert heading.count("64") == 1


def test_no_color_is_honoured() -> None:
    console = Console(
        file=io.StringIO(), width=100, force_terminal=True, color_system="standard", _environ={"NO_COLOR": "1"}
    )
    console.print(comparison_renderable(comparison(), console=console))

    assert isinstance(console.file, io.StringIO)
    assert "\x1b[32m" not in console.file.getvalue()
    assert "\x1b[33m" not in console.file.getvalue()


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


def test_where_the_margin_comes_from_is_always_said() -> None:
    assert "margin 0.005 in val_accuracy, fixed in the configuration" in comparison_text(comparison())
    assert "no margin was fixed beforehand" in comparison_text(comparison(margin=None, margin_source=None))


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


def test_no_view_says_that_two_arms_are_the_same() -> None:
    for text in (comparison_text(comparison()), comparison_markdown(comparison()), comparison_json(comparison())):
        assert not {"same", "equal", "identical"} & set(re.findall(r"[a-z]+", text.lower()))


def test_where_a_goal_comes_from_is_said_and_that_nothing_tells_it() -> None:
    guessed = comparison_text(replace(comparison(), goal="min", goal_source="metric name"), width=200)
    unknown = comparison_text(replace(comparison(), metric="depth", goal=None, goal_source=None), width=200)

    assert "lower is better, guessed from its name: say --goal if that is wrong" in guessed
    assert "last value, nothing tells whether higher is better: say --goal max or min" in unknown


def test_a_goal_against_the_metric_s_name_is_told() -> None:
    odd = replace(comparison(), metric="val_loss", goal="max", goal_source="config")

    assert "higher is better, as objective.goal says; by its name it is not: --goal min turns it" in " ".join(
        comparison_text(odd).split()
    )


def test_runs_that_have_nothing_to_do_with_the_question_are_counted_in_a_line() -> None:
    reasons = [(1, "without lr"), (2, "without loss")]
    beside = tuple(Excluded(uid=f"{n}{why}", level="not set", reason=why) for n, why in reasons for _ in range(n))

    text = " ".join(comparison_text(replace(comparison(), excluded=beside)).split())

    assert "left out: 2 runs without loss; 1 run without lr" in text
    assert "left out" not in comparison_text(comparison())


def test_a_row_without_runs_is_empty_and_not_zero() -> None:
    empty = row("fp16", None, numerics=None, n_ok=0, n_failed=2, seeds=(), sd=None, verdict="inconclusive")

    line = next(line for line in comparison_text(comparison(rows=(empty,))).splitlines() if line.startswith("fp16"))

    assert line.split() == ["fp16", "fp16", "0/2", "inconclusive"]


def test_of_a_cell_in_which_nothing_counts_no_margin_is_told() -> None:
    empty = row("fp16", None, numerics=None, n_ok=0, n_failed=2, seeds=(), sd=None, verdict="inconclusive")

    assert "margin" not in comparison_text(comparison(rows=(empty,), margin=None, margin_source=None))


def test_a_row_that_proves_no_numerics_says_so_where_its_speed_would_be() -> None:
    rows = (*comparison().cells[0].rows[:2], replace(comparison().cells[0].rows[2], numerics="unproven"))

    line = next(line for line in comparison_text(comparison(rows=rows)).splitlines() if line.startswith("tf32 "))

    assert line.split()[-3:] == ["unproven"] * 3
    assert "| unproven | unproven | unproven | unproven |" in comparison_markdown(comparison(rows=rows))


def test_only_a_reference_with_a_step_time_has_a_speed_up_of_one() -> None:
    timed, untimed = speed(19.97), replace(speed(19.97), step_ms=None, step_ms_p5=None, step_ms_p95=None, n=0)

    told = []
    for its in (timed, untimed):
        lines = comparison_markdown(comparison(rows=(row("fp32", 0.9, speed=its),))).splitlines()
        names, _, first = (line.split(" | ") for line in lines if line.startswith("|"))
        told.append(dict(zip(names, first, strict=True)).get("speed-up [95 %]"))

    assert told == ["1", None]


def test_markdown_has_one_table_for_each_cell() -> None:
    markdown = comparison_markdown(comparison())

    assert (
        "| amp_bf16 | amp_bf16 | 5 | 0.9098 ± 0.0024 | -0.0010 [-0.0018, -0.0002] | 0.032 | equivalent | 8.979 | 7128 "
        "| 2.22 [2.21, 2.23] | 1m03s |"
    ) in markdown.splitlines()
    assert "| emulated | emulated | emulated | emulated |" in markdown
    assert markdown.endswith("\n")


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


def test_json_writes_what_is_not_finite_as_text() -> None:
    odd = comparison(rows=(row("fp32", 0.9, sd=math.inf),))

    assert json.loads(comparison_json(odd))["cells"][0]["rows"][0]["sd"] == "inf"


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


def test_a_number_that_no_digits_tell_from_zero_has_no_row_of_them() -> None:
    rows = (row("fp32", 0.9), row("tf32", 0.9, difference=replace(difference(0.0, 0.01), ci90=ci(1e-18, 0.02, 0.9))))

    assert "+0.0000 [+0.0000, +0.0200]" in comparison_markdown(comparison(rows=rows))


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


def test_repeats_that_are_units_are_called_runs_and_seeds_that_only_one_arm_has_are_told() -> None:
    def said(**fields: object) -> str:
        rows = (row("fp32", 0.9, n_ok=2), row("tf32", 0.9, **{"verdict": "inconclusive", **fields}))
        return comparison_text(comparison(rows=rows), width=400)

    repeats = {"unit": "runs", "seeds": (0,), "n_ok": 7}
    part = replace(difference(0.0, 0.01), n_pairs=4, left_out=(4,))
    assert "margin 0.005; 5 runs" in said(difference=difference(0.0, 0.01, rho=None), **repeats)
    assert "; 4 seeds\n" in said(difference=part)


def test_an_arm_with_hardly_any_spread_gives_its_decimals_to_no_other() -> None:
    rows = (row("fp32", 0.9123456, sd=0.012), row("tf32", 0.9134567, sd=0.000002), row("amp", 0.9, sd=0.015))

    text = comparison_markdown(comparison(rows=rows))

    assert "| 0.912 ± " in text
    assert "| 0.913457 ± " in text
    assert "| 0.900 ± " in text


def test_an_arm_without_a_spread_beside_one_a_thousand_times_as_large_keeps_two_digits() -> None:
    rows = (row("fp32", 1240.0, sd=45.0), row("tf32", 1.2, sd=0.0))

    assert "| 1.2 ± " in comparison_markdown(comparison(rows=rows))


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


def test_of_many_arms_that_which_has_the_fewest_seeds_is_named() -> None:
    rows = [
        replace(each, n_ok=2, seeds=(0, 1)) if each.level == "arm3" else each for each in of_many_arms(8).cells[0].rows
    ]
    few = replace(difference(0.0, 0.01), n_pairs=2)
    rows = [replace(each, difference=few) if each.level == "arm3" else each for each in rows]

    text = comparison_text(comparison(rows=tuple(rows), reference="base"), width=250)

    assert "  margin 0.005; 2 seeds or more\n" in text
    enough = [
        replace(each, n_ok=9, seeds=tuple(range(9))) if each.level == "arm3" else each
        for each in of_many_arms(8).cells[0].rows
    ]
    many = [replace(each, difference=difference(0.0, 0.01, rho=None)) if each.difference else each for each in enough]
    text = comparison_text(comparison(rows=tuple(many), reference="base"), width=250)
    assert "  margin 0.005; 5 seeds or more\n" in text


def test_cells_of_which_one_has_the_setting_none_are_told_apart() -> None:
    where = {"cluster": "karolina", "container": "none", "workload.args.aug": "none", "training.compile": "not set"}

    heading = comparison_text(comparison(where=where), width=250).splitlines()[2]

    assert heading.startswith("cluster karolina · aug none · training.compile not set · ")


def test_large_numbers_have_no_digits_that_mean_nothing() -> None:
    rows = (
        row("fp32", 1.00044e12, sd=1.4e9, mean_ci95=ci(0.99974e12, 1.00114e12)),
        row("tf32", 1.02e12, sd=1.8e9, difference=difference(19583008184.0, 597430540.0), verdict="better"),
    )

    text = comparison_markdown(comparison(rows=rows, margin=1e9))

    assert "| 1.0004e+12 ± 7e+08 |" in text
    assert "| +1.96e+10 [+1.90e+10, +2.02e+10] |" in text


def test_csv_tells_runs_that_diverged() -> None:
    losses = Losses(n=0, n_ended=5, rate_ci90=ci(0.0, 0.45, 0.9), n_elsewhere=0, n_diverged=2)
    rows = (row("fp32", 0.9), row("tf32", 0.9, difference=difference(0.0, 0.01), verdict="unstable", losses=losses))

    lines = list(csv.DictReader(io.StringIO(comparison_csv(comparison(rows=rows)))))

    assert [line["n_diverged"] for line in lines] == ["", "2"]


def test_a_report_of_many_arms_begins_with_a_line_for_each_verdict() -> None:
    page = report_page(publication(comparison=of_many_arms(20)))
    text = report_markdown(publication(comparison=of_many_arms(20)))

    assert 0 < page.index("19 of 20: arm1 against base") < page.index('<div class="findings">')
    assert 0 < text.index("- worse: 19 of 20: arm1 against base") < text.index("- **better**")
    assert " of 6: " not in report_page(publication(comparison=of_many_arms(6)))


def test_runs_without_step_times_have_their_time_in_a_report_and_no_speed() -> None:
    timed = replace(speed(1.0), step_ms=None, step_ms_p5=None, step_ms_p95=None, samples_per_s=None, n=0)
    found = comparison()
    cell = replace(found.cells[0], rows=(row("fp32", 0.9, speed=timed), row("tf32", 0.9, speed=timed)))

    written = report_markdown(publication(comparison=replace(found, cells=(cell,))))

    assert "| precision | effective | n | val_accuracy ± 95 % | verdict | wall time |" in written
