"""What people say of runs, and what is about to be removed, as they are shown."""

from __future__ import annotations

from datetime import UTC

from hpcml.model.records import Note, RunRecord
from hpcml.report.render.terminal import as_text
from hpcml.report.runs import tags_line
from hpcml.report.show import Asked, ShownRun, run_document
from hpcml.report.store import code_line, run_line
from tests.report.report_values import run

HOSTILE = "a\x1b[2Jb\nc\u202e"


def details(record: RunRecord) -> list[str]:
    shown = ShownRun(run=record, asked=Asked(overrides=None))
    return [line.strip() for line in as_text(run_document(shown, zone=UTC), width=120).splitlines()]


def test_notes_are_shown_with_time_and_author_in_one_line_each() -> None:
    notes = [
        Note(at=1_780_000_000.0, author="ada", text="seed of figure 3"),
        Note(at=1_780_000_001.0, author=HOSTILE, text=HOSTILE),
    ]

    lines = details(run(notes=notes))

    first, second = lines[lines.index("notes") + 2 :][:2]
    assert first.split() == ["2026-05-28", "20:26:40+00:00", "ada", "seed", "of", "figure", "3"]
    assert second.count(r"a\x1b[2Jb\nc\u202e") == 2
    assert "notes" not in details(run())


def test_names_do_not_move_the_cursor_of_whoever_is_asked() -> None:
    record = run(name=HOSTILE, tags=(HOSTILE,))

    lines = [run_line(record, 3 << 20, is_gone=False), tags_line(record), code_line(HOSTILE, 5)]
    lines += [run_line(record, None, is_gone=is_gone) for is_gone in (True, False)]

    assert all(line.isprintable() for line in lines)
    assert lines[0].endswith("3.0 MiB")
    assert lines[3].endswith("its directory is gone")
    assert lines[4].endswith(f"its files stay in {record.path}")
