from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest
from rendered import (
    attainment_csv,
    attainment_markdown,
    attainment_renderable,
    scaling_csv,
    scaling_json,
    scaling_markdown,
    scaling_renderable,
)
from report_values import EVIL, ci, flag
from rich.console import Console, RenderableType

from hpcml.analysis.attained import Attained, Attainment, Published
from hpcml.analysis.compare.result import Excluded
from hpcml.analysis.scaling.result import Scaling, ScalingCell, ScalingPoint, SerialShare, SizeRow
from hpcml.report.document import Figure, Listing
from hpcml.report.scaling import scaling_section
from hpcml.report.utilization import utilization_section

REFERENCE = ScalingPoint(
    devices=1, n=5, n_failed=0, batch_size=64, step_ms=100.0, samples_per_s=640.0, speedup=None, speedup_ci95=None,
    efficiency=None, efficiency_ci95=None, cost=None, gpu_hours=0.5, energy_kj=None, energy_per_sample_j=None,
    communication_share=None,
)  # fmt: skip
EIGHT = replace(
    REFERENCE, devices=8, n=4, n_failed=1, step_ms=20.0, samples_per_s=3200.0, speedup=5.0, speedup_ci95=ci(4.9, 5.1),
    efficiency=0.625, efficiency_ci95=ci(0.6125, 0.6375), cost=1.6, gain=1.02, gain_ci95=ci(0.99, 1.05),
    communication_share=0.21, flags=(flag("1 of 5 ended runs failed: OUT_OF_MEMORY"),),
)  # fmt: skip
CELL = ScalingCell(
    kind="strong",
    over="GPUs",
    where={"model": "lstm", "precision": "tf32", "container": "none", "batch size": "64"},
    device="cuda (A100)",
    points=(REFERENCE, EIGHT),
    reference=1,
    fit=SerialShare(law="Amdahl", share=0.09, ci95=ci(0.08, 0.1), most_speedup=11.1),
    no_help_beyond=None,
    sentences=("8 GPUs pay (efficiency shown to be 50 % or more)",),
    excluded=(Excluded(uid="run8", level="8", reason="FAILED"),),
)
SCALING = Scaling(over="GPUs", n_runs=10, cells=(CELL,), pays_from=("8 GPUs pay from batch size 64 on",))

ROW = Attained(
    where={"model": "lstm", "strategy": "ddp"}, precision="tf32", device="cuda (A100)", devices=4, n=5, step_ms=12.5,
    samples_per_s=5120.0, tokens_per_s=None, model_gflops_per_step=780.0, achieved_tflops=15.6, peak_tflops=156.0,
    peak_basis="data sheet", mfu=0.1, bandwidth_gbs=1555.0, ridge_flop_per_byte=100.3, dram_percent=None,
    limits=("waits for input 23 % of the time",), flags=(flag("n=3: indicative only"),),
)  # fmt: skip
FIGURE = Published(
    workload="DGEMM",
    device="Tesla P100",
    precision="fp64",
    value=3660.58,
    unit="GFLOP/s",
    source="slides",
    note="ERRATUM",
)
ATTAINMENT = Attainment(n_runs=5, attained=(ROW,), published=(FIGURE,), flags=(flag("not counted: FAILED (1 run)"),))


def printed(renderable: RenderableType, console: Console) -> str:
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def plain(width: int = 200, encoding: str = "utf-8") -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=file, width=width, force_terminal=False, color_system=None)


def test_a_scaling_study_shows_bars_counts_and_conclusions() -> None:
    text = printed(scaling_renderable(SCALING, console=plain()), plain())

    assert "██████▎" in text  # 62.5 % of ten
    assert "5.00 [4.90, 5.10]" in text
    assert "62 % [61, 64]" in text
    assert "4/5" in text
    assert "21 %" in text
    assert "+2.0 % [-1.0, +5.0]" in text
    assert "container" not in text
    assert "8: 1 of 5 ended runs failed: OUT_OF_MEMORY" in text
    assert "no speed: run8 (8): FAILED" in text
    assert "8 GPUs pay from batch size 64 on" in text
    assert "kJ" not in text  # nobody measured it


def test_programs_get_every_number_whole() -> None:
    document = json.loads(scaling_json(SCALING))
    lines = list(csv.DictReader(io.StringIO(scaling_csv(SCALING))))

    assert document["format"] == 2
    assert document["cells"][0]["points"][1]["speedup_ci95"] == {"low": 4.9, "high": 5.1, "confidence": 0.95}
    assert document["cells"][0]["fit"]["share"] == 0.09
    assert [line["devices"] for line in lines] == ["1", "8"]
    assert lines[1]["speedup_ci95_low"] == "4.9"
    assert lines[1]["model"] == "lstm"
    assert lines[1]["n_failed"] == "1"


def test_the_chart_of_speed_ups_says_what_they_are_against() -> None:
    points = (REFERENCE, replace(EIGHT, devices=4, speedup=3.0), EIGHT)
    study = replace(SCALING, cells=(replace(CELL, points=points),))
    chart = next(part for part in scaling_section(study).sections[0].parts if isinstance(part, Figure))

    assert chart.described.startswith("Speed-up against 1 GPU with 95 % intervals")


def test_sizes_have_one_table_and_one_chart() -> None:
    small = replace(CELL, points=(REFERENCE, replace(EIGHT, speedup=0.8, speedup_ci95=ci(0.7, 0.9))))
    four = replace(CELL, points=(REFERENCE, replace(EIGHT, devices=4, speedup=3.0, speedup_ci95=None), EIGHT))
    row = SizeRow(kind="strong", size="model", apart="", names=("width 64", "width 512"), cells=(1, 0))
    study = replace(SCALING, cells=(four, small), sizes=(row,))

    text = printed(scaling_renderable(study, console=plain()), plain())
    table = text[text.index("strong scaling by model: speed-ups [95 %] on more GPUs") :].splitlines()[1:4]
    chart = next(part for part in scaling_section(study).parts if isinstance(part, Figure))
    drawn = json.loads(chart.draw().to_json())["data"]

    assert [line.split() for line in table] == [
        ["model", "4", "GPUs", "8", "GPUs"],
        ["width", "64", "0.80", "[0.70,", "0.90]"],
        ["width", "512", "3.00", "5.00", "[4.90,", "5.10]"],
    ]
    assert [(line["name"], line["x"], line["y"]) for line in drawn] == [
        ("4 GPUs", ["width 64", "width 512"], [None, 3.0]),
        ("8 GPUs", ["width 64", "width 512"], [0.8, 5.0]),
    ]
    assert drawn[1]["error_y"]["array"] == pytest.approx([0.1, 0.1])


def test_what_runs_attained_stands_apart_from_what_others_published() -> None:
    text = printed(attainment_renderable(ATTAINMENT, console=plain()), plain())

    ours, _, theirs = text.partition("Published by others: not measured by hpcml")
    assert "10.0 %" in ours
    assert "156" in ours
    assert "tf32: waits for input 23 % of the time" in ours
    assert "the memory (1555 GB/s) is the lower roof below 100 FLOP/byte; what the runs do for a byte" in ours
    assert "3661" not in ours
    assert "3661" in theirs
    assert "DGEMM, Tesla P100, fp64: ERRATUM" in theirs
    assert "source: slides" in theirs


def test_a_report_tells_runs_apart_that_differ_in_a_flag_of_the_program_or_in_the_device() -> None:
    rows = [
        replace(ROW, where={**ROW.where, "model": "custom", "workload.args.lr": lr}, device=device)
        for lr, device in (("0.1", "cuda (A100)"), ("0.5", "cuda (A100)"), ("0.5", "cuda (H100)"))
    ]
    section = utilization_section(Attainment(n_runs=15, attained=tuple(rows), published=()))

    table = next(part for part in section.parts if isinstance(part, Listing))
    names = [table.columns[0].written(line) for line in table.rows]
    assert names == [
        "custom · lr 0.1 · device cuda (A100) · tf32",
        "custom · lr 0.5 · device cuda (A100) · tf32",
        "custom · lr 0.5 · device cuda (H100) · tf32",
    ]


def test_hostile_names_stay_text() -> None:
    cell = replace(CELL, where={"model": EVIL}, sentences=(EVIL,), device=EVIL)
    row, figure = replace(ROW, where={"model": EVIL}, device=EVIL, limits=(EVIL,)), replace(FIGURE, workload=EVIL)
    scaling = Scaling(over="GPUs", n_runs=1, cells=(cell,), pays_from=(EVIL,), flags=(flag(EVIL),))
    attainment = Attainment(n_runs=1, attained=(row,), published=(figure,), flags=(flag(EVIL),))
    for text in (
        printed(scaling_renderable(scaling, console=plain()), plain()),
        printed(attainment_renderable(attainment, console=plain()), plain()),
        scaling_markdown(scaling),
        attainment_markdown(attainment),
        scaling_csv(scaling),
        attainment_csv(attainment),
    ):
        assert "\x1b" not in text
        assert "\u202e" not in text
