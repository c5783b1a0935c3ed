"""`hpcml recipes --gpus`, as typed."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from hpcml.model.hardware import known_gpus
from tests.cli.command_line import Hpcml, said_in_one_line


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    return Hpcml(environ=hpcml_environ, cwd=tmp_path)


def test_the_table_marks_what_no_data_sheet_settles(hpcml: Hpcml) -> None:
    done = hpcml("recipes", "--gpus", COLUMNS="200")

    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 2 + len(known_gpus())
    (a100,) = (line for line in lines if line.startswith("A100 SXM4 40GB"))
    figures = (
        "8.0",
        "40",
        "1555",
        "400",
        "9.7",
        "19.5",
        "19.5",
        "156",
        "312",
        "78",
        "312",
        "39",
        "624",
        "1248",
        "19.5",
    )
    assert tuple(a100.split()[3:]) == figures
    (t4,) = (line for line in lines if line.startswith("Tesla T4"))
    assert {"~320", "~0.254", "65"} <= set(t4.split())
    assert "dense" in lines[-1]


def test_a_narrow_terminal_gets_fewer_columns_and_whole_numbers(hpcml: Hpcml) -> None:
    done = hpcml("recipes", "--gpus", COLUMNS="80")

    assert "\u2026" not in done.stdout
    headings = done.stdout.splitlines()[0].split()
    assert {"GPU", "fp32", "tf32", "fp16", "bf16"} <= set(headings)
    assert "fp16_vec" not in headings


def test_programs_get_every_field(hpcml: Hpcml) -> None:
    (v100,) = json.loads(hpcml("recipes", "--gpus", "Tesla V100-SXM2-32GB", "--json").stdout)
    rows = list(csv.DictReader(io.StringIO(hpcml("recipes", "--gpus", "v100", "--csv").stdout)))
    markdown = hpcml("recipes", "--gpus", "v100", "--md").stdout

    assert v100["peak_tflops"]["fp16"] == 125
    assert v100["basis"]["fp16"] == "data sheet"
    assert v100["memory_gb"] == [16, 32]
    assert v100["source"]
    assert [row["fp16_tflops"] for row in rows] == ["125.0", "112.0", "130.0"]
    assert rows[0]["tf32_tflops"] == ""
    assert "| Tesla V100 SXM2 | 7.0 | 16/32 |" in markdown


def test_an_unknown_name_is_refused(hpcml: Hpcml) -> None:
    done = hpcml("recipes", "--gpus", "a100", "h1000")

    assert done.returncode == 2
    assert "no GPU of the table is called 'h1000'" in said_in_one_line(done)
