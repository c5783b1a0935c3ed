"""LaTeX is read back by a small reader of our own, which knows only the commands that may stand there."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rendered import comparison_latex
from report_values import comparison

from hpcml.analysis.compare.result import Discrepancy, Occurrence
from hpcml.report.document import Column, Document, Listing, Section
from hpcml.report.render.latex import as_latex_report, escaped
from hpcml.report.text import safe
from tests.parts import require
from tests.report.publication_values import cost, load

HOSTILE = "\\input{/etc/passwd} 100% a_b & #1 $x$ ~ ^ {} -- '' ]] [x] \\\\ `\"<>|*"
_TOKENS = (
    (r"\\textbackslash\{\}", "\\"),
    (r"\\textasciicircum\{\}", "^"),
    (r"\\textasciitilde\{\}", "~"),
    (r"\\textless\{\}", "<"),
    (r"\\textgreater\{\}", ">"),
    (r"\\textbar\{\}", "|"),
    (r"\\dots\{\}", "…"),
    (r"\\textendash\{\}", "\u2013"),
    (r"\\textemdash\{\}", "\u2014"),
    (r"\{\\ttfamily\\char34\}", '"'),
    (r"\{\\ttfamily\\char96\}", "`"),
    (r"\$\\pm\$", "±"),
    (r"\$\\times\$", "\u00d7"),
    (r"\$\\cdot\$", "·"),
    (r"\$-\$", "\u2212"),
    (r"\$\\geq\$", "≥"),
    (r"\$\\leq\$", "≤"),
    (r"\$\^\\circ\$", "°"),
    (r"\\,", "\u202f"),
    (r"~", "\u00a0"),
)


def read_back(text: str) -> str:
    """Return what *text* shows; anything but plain characters and known commands fails."""
    shown, at = [], 0
    while at < len(text):
        for pattern, character in _TOKENS:
            if match := re.compile(pattern).match(text, at):
                shown.append(character)
                break
        else:
            match = re.compile(r"\{\\ttfamily U\+([0-9A-F]{4,6})\}|\\([{}$&#%_])|\{([-'*\[\]])\}").match(text, at)
            if match:
                code, special, alone = match.groups()
                shown.append(chr(int(code, 16)) if code else special or alone)
            else:
                match = re.compile(r"[A-Za-z0-9 .,:;!?()/+=@À-ÿ]").match(text, at)
                assert match, f"{text[at : at + 20]!r} is no plain text"
                shown.append(match[0])
        at = match.end()
    return "".join(shown)


@given(st.text(max_size=60))
@settings(deadline=None)
def test_any_text_is_shown_and_nothing_of_it_is_a_command(text: str) -> None:
    assert read_back(escaped(text)).replace("\u2212", "-") == safe(text).replace("\u2212", "-")


def test_hostile_words_are_shown_letter_by_letter() -> None:
    assert read_back(escaped(HOSTILE)) == HOSTILE
    assert "--" not in escaped("--")


@pytest.mark.parametrize("field", ["level", "where", "metric", "note"])
def test_hostile_names_stay_in_their_cells(field: str) -> None:
    plain = comparison()
    (cell,) = plain.cells
    changed = {
        "level": replace(cell, rows=(replace(cell.rows[0], level=HOSTILE), *cell.rows[1:])),
        "where": replace(cell, where={**cell.where, "model": HOSTILE}),
        "note": replace(
            cell,
            notes=(
                Discrepancy(
                    key="hostname", kind="fact", occurrences=(Occurrence(value=HOSTILE, n_runs=1, levels=("fp32",)),)
                ),
            ),
        ),
    }
    hostile = replace(plain, metric=HOSTILE) if field == "metric" else replace(plain, cells=(changed[field],))

    text, usual = comparison_latex(hostile), comparison_latex(plain)

    assert escaped(HOSTILE) in text.replace(r"\allowbreak{}", "")
    assert "\\input" not in text
    assert commands_of(text) - set(_KNOWN) == commands_of(usual) - set(_KNOWN)
    assert [columns_of(line) for line in rows_of(text)] == [columns_of(line) for line in rows_of(usual)]


_KNOWN = (
    *("textbackslash", "textasciicircum", "textasciitilde", "textless", "textgreater", "textbar", "char", "ttfamily"),
    *("allowbreak", "raggedright", "linewidth"),  # of a long name
)


def commands_of(text: str) -> set[str]:
    return set(re.findall(r"\\([A-Za-z]+)", text))


def rows_of(text: str) -> list[str]:
    return [
        line for line in text.splitlines() if line.endswith((r" \\", r" \tabularnewline")) and "caption" not in line
    ]


def columns_of(line: str) -> int:
    return len(re.findall(r"(?<!\\)&", line)) + 1


def test_a_cell_is_one_table_with_caption_label_notes_and_units() -> None:
    text = comparison_latex(comparison())

    assert text.count(r"\begin{longtable}") == text.count(r"\end{longtable}") == 1
    assert r"\caption{14 runs by precision" in text
    assert r"\label{tab:hpcml-1}" in text
    assert text.index(r"\end{longtable}") < text.index("margin 0.005 in val")
    header, _, *rows = rows_of(text)  # the heading of the first page, and that of those that follow
    assert "step ms" in header
    assert len(rows) == 3
    assert {columns_of(line) for line in (header, *rows)} == {11}
    assert text.count("{") == text.count("}")
    assert rows[1].startswith(r"  amp\_bf16 & amp\_bf16 & 5 & 0.9098 $\pm$ 0.0024 & $-$0.0010 {[}$-$0.0018")


def test_what_rows_cost_and_how_hard_they_worked_is_a_second_table() -> None:
    plain = comparison()
    (cell,) = plain.cells
    worked = replace(cell, rows=tuple(replace(row, cost=cost(None), load=load(0.4)) for row in cell.rows))

    text = comparison_latex(replace(plain, cells=(worked,)))

    assert text.count(r"\begin{longtable}") == 2
    second = rows_of(text[text.rindex(r"\begin{longtable}") :])
    assert {columns_of(line) for line in second} == {1 + len(cell.rows)}
    assert any(line.startswith("  energy, kJ & ") for line in second)


def table(rows: int, columns: int, *, of: str = "0.9102 [0.9, 0.92]", name: str = "arm") -> Listing[int]:
    named: Column[int] = Column("", name, lambda at: f"{name}_{at}")
    others: list[Column[int]] = [Column("", f"quantity {at}", lambda _: of) for at in range(1, columns)]
    return Listing(caption="what was found", columns=[named, *others], rows=range(rows))


def report_of(*tables: Listing[int]) -> Document:
    return Document(title="t", introduction="i", sections=[Section(heading="h", parts=list(tables))])


def test_a_report_is_typeset_without_a_word_beyond_the_paper(tmp_path: Path) -> None:
    require("LaTeX", None if shutil.which("pdflatex") else "no pdflatex on PATH (texlive-latex-recommended)")
    running = " ".join(["one more word of a long answer, with /a/path/that/has/no/blank/in/it"] * 6)
    name = "cosine_warmup_restart_schedule_variant"
    tables = (
        *(table(3, 7, name="cosineWarmRestarts" * 8), table(50, 4, name="cosineWarmRestarts" * 8)),
        *(table(90, 3), table(3, 22), table(90, 12), table(30, 7, name=name), table(20, 4, of=running)),
        table(3, 9, of="x", name=HOSTILE),
    )
    comparisons = [comparison_latex(comparison()), as_latex_report(report_of(*tables))]
    body = "\n".join(comparisons)
    (tmp_path / "paper.tex").write_text(
        rf"\documentclass{{article}}\usepackage{{booktabs,longtable}}\begin{{document}}{body}\end{{document}}"
    )

    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-2000:]
