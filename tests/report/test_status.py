"""Where runs stand, as people and programs see it."""

from __future__ import annotations

import json

from report_values import EVIL, NOW, run

from hpcml.model.records import Known, RunRecord, StoredEvent
from hpcml.model.state import State
from hpcml.report.render.data import as_json
from hpcml.report.render.terminal import as_text
from hpcml.report.show import attempts_of
from hpcml.report.status import (
    Standing,
    end_line,
    retry_lines,
    standing_document,
)

OPEN = {"scheduler": "slurm", "job_id": "4711", "wall_s": None, "attempt": 0}


def waiting(**changes: object) -> RunRecord:
    return run(state=State.PENDING, **{**OPEN, **changes})


def row(record: RunRecord, word: Known | None = None, *, ago_s: float = 0.0) -> Standing:
    return Standing(record=record, known=word, said_at=None if word is None else NOW - ago_s)


def lines(*rows: Standing) -> list[str]:
    return as_text(standing_document(rows, now=NOW), width=300).splitlines()


def test_a_waiting_run_shows_what_its_scheduler_said_and_how_long_ago() -> None:
    word = Known(state=State.PENDING, raw="PENDING", reason="Priority", expected_start="2026-11-21T23:10:00")

    heading, line = lines(row(waiting(array_index=3), word, ago_s=35))

    assert heading.split("  ")[0] == "run"
    assert "slurm 4711_3" in line
    assert "PENDING, 35s ago" in line
    assert line.endswith("Priority, expected to start 2026-11-21T23:10:00")


def test_an_end_that_nobody_has_explained_is_marked() -> None:
    line = lines(row(run(**OPEN, state=State.CANCELLED, is_settled=False, reason="SIGTERM received")))[1]

    assert "CANCELLED?" in line
    assert "SIGTERM received: its scheduler has not said why" in line


def test_a_job_that_has_begun_without_a_word_of_its_agent_says_so() -> None:
    assert "its agent has not written yet" in lines(row(waiting(), Known(state=State.RUNNING, raw="RUNNING")))[1]
    of_a_pack = row(waiting(is_shared=True), Known(state=State.RUNNING, raw="RUNNING"))
    assert "its job has begun, its turn in it has not come" in lines(of_a_pack)[1]


def test_json_has_all_keys_whatever_was_said() -> None:
    word = Known(state=State.RUNNING, raw="R", reason=None)

    silent, said = json.loads(as_json(standing_document([row(waiting()), row(waiting(attempt=1), word)], now=NOW)))

    assert list(silent) == list(said)
    assert silent["scheduler_state"] is None
    assert (said["scheduler_state"], said["attempt"]) == ("R", 1)
    assert said["scheduler_said_at"].startswith("20")


def test_a_line_is_one_line_whatever_a_run_is_called() -> None:
    said = end_line(run(name=EVIL, reason=EVIL, state=State.FAILED))

    assert "\n" not in said
    assert not set(said) & {"\x1b", "\r", "\u202e"}


def test_what_is_not_retried_says_no() -> None:
    tried, left = retry_lines(
        [(run(), "preemption", "again as it was", True), (run(), "program", "see its log", False)]
    )

    assert tried.endswith("preemption  again as it was")
    assert left.endswith("program     no: see its log")
    assert retry_lines([]) == []


def told(attempt: int, t_s: float, name: str, writer: str = "agent", **details: object) -> StoredEvent:
    return StoredEvent(t_s=t_s, writer=writer, attempt=attempt, name=name, details=details)


def test_attempts_are_put_together_from_what_everybody_said() -> None:
    first, second = attempts_of(
        [
            told(0, 0.0, "submitted", "launch", job_id="11", scheduler="slurm"),
            told(0, 5.0, "attempt_started", hostname="n1", job_id="11"),
            told(0, 5.1, "attempt_started", "agent1", hostname="n2", job_id="11"),
            told(0, 9.0, "checkpoint", "rank0", step=100),
            told(0, 20.0, "attempt_ended", "agent1", state="COMPLETED"),
            told(0, 21.0, "attempt_ended", state="TIMEOUT", reason="left at a checkpoint"),
            told(1, 21.5, "submitted", why="left at a checkpoint", by="agent"),
            told(1, 40.0, "attempt_started", hostname="n3", job_id="12"),
        ]
    )

    assert (first.state, first.why, first.hosts, first.job) == (
        State.TIMEOUT, "left at a checkpoint", ("n1", "n2"), "11",
    )  # fmt: skip
    assert (first.began_s, first.ended_s, first.checkpoints, first.queued) == (5.0, 21.0, (100,), None)
    assert (second.state, second.queued, second.job, second.ended_s) == (
        State.RUNNING, "left at a checkpoint", "12", None,
    )  # fmt: skip
