"""`hpcml published` as it is used: the list, a table, and a table above one's own runs."""

from __future__ import annotations

import csv
import io
import json

import pytest

from hpcml.model.precision import PrecisionName
from tests.cli.command_line import Hpcml, said_in_one_line
from tests.commands.test_field_studies import record


def test_tables_are_listed_and_shown_without_any_runs(hpcml: Hpcml) -> None:
    listed = hpcml("published")
    shown = hpcml("published", "claims", COLUMNS="120")

    assert (listed.returncode, shown.returncode) == (0, 0), listed.stderr + shown.stderr
    assert "tf32_detection" in listed.stdout
    for text in (listed.stdout, shown.stdout):
        assert "not measured by hpcml" in text
    assert "TF32 over FP32, both of an A100" in shown.stdout
    assert "source: LAPENNA" in shown.stdout


def test_programs_get_the_digits_as_printed(hpcml: Hpcml) -> None:
    lines = list(csv.DictReader(io.StringIO(hpcml("published", "tf32_class", "--csv").stdout)))
    tables = json.loads(hpcml("published", "tf32", "--json").stdout)["tables"]

    assert lines[5] == {
        "family": "ResNext",
        "network": "RNX101",
        "FP32 (%)": "79.10",
        "TF32 (%)": "79.30",
        "TF32 - FP32 (%)": "+0.20",
    }
    assert [len(each["rows"]) for each in tables] == [24, 17, 14]


def test_own_runs_stand_below_and_never_in_a_table_of_others(hpcml: Hpcml) -> None:
    for seed in range(3):
        for name, shift in ((PrecisionName.fp32, 0.0), (PrecisionName.tf32, 0.001)):
            record(hpcml.home, "mine", name, seed, 0.9 + 0.001 * seed + shift)

    text = hpcml("published", "tf32_language", "--experiment", "mine", COLUMNS="140")
    both = json.loads(hpcml("published", "tf32_language", "--experiment", "mine", "--json").stdout)
    compared = json.loads(hpcml("compare", "--experiment", "mine", "--json").stdout)

    assert text.returncode == 0, text.stderr
    theirs, _, own = text.stdout.partition("Your runs")
    assert "Vaswani Large" in theirs
    assert "val_accuracy" not in theirs
    assert "val_accuracy" in own
    assert "Vaswani" not in own
    assert both["own"] == compared


def test_runs_of_one_precision_are_sent_to_the_command_that_compares_them(hpcml: Hpcml) -> None:
    for seed in range(2):
        record(hpcml.home, "mine", PrecisionName.fp32, seed, 0.9)

    done = hpcml("published", "tf32_language", "--experiment", "mine")

    assert done.returncode == 2
    said = said_in_one_line(done)
    assert said.startswith(
        "hpcml: runs stand beside tables by their precision alone, hpcml compare has --by: all 2 runs"
    )


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["magma"], "no published table is called 'magma'"),
        (["dies", "--experiment", "mine"], "dies: no runs can stand beside it"),
        (["--experiment", "mine"], "the list of tables: no runs can stand beside it"),
        (["tf32", "--csv"], "--csv has the columns of one table, and 3 were chosen"),
    ],
)
def test_what_cannot_be_shown_is_one_line(hpcml: Hpcml, words: list[str], answer: str) -> None:
    done = hpcml("published", *words)

    assert done.returncode == 2
    assert answer in said_in_one_line(done)
