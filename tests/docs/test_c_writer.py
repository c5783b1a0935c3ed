"""The writer in C that docs/journal.md shows: compiled as the page says, run, and read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from pages import commands_of, files_of, on_path

from hpcml.runs.journal import Metrics, read_journal
from tests.parts import require


def test_the_c_writer_writes_a_journal_that_hpcml_reads(tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    require("a C compiler", None if shutil.which("cc") else "no cc on PATH")
    (tmp_path / "report.c").write_text(files_of("journal.md")["report.c"], encoding="utf-8")
    shown = commands_of("journal.md")["compiled"]

    done = subprocess.run(
        ["bash", "-c", shown.command.replace("cc ", "cc -Wall -Wextra -Werror ")],
        cwd=tmp_path,
        env=on_path(hpcml_environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert all(line in done.stdout for line in shown.lines)
    (written,) = Path(hpcml_environ["HPCML_HOME"]).glob("runs/compiled/*/journal/*-rank0.jsonl")
    chunk = read_journal(written)
    assert chunk.header is not None
    assert (chunk.header.run, chunk.header.attempt) == (written.parent.parent.name, 0)
    assert (chunk.bad_lines, [record.seq for record in chunk.records]) == (0, list(range(10)))
    values = [record.values["loss"] for record in chunk.records if isinstance(record, Metrics)]
    assert values == [1 / step for step in range(1, 11)]
