"""Whatever people write into names, tags and details comes back as it was, and is never taken for anything else."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hpcml.errors import NoSuchRunError, StoreError
from hpcml.model.state import State
from hpcml.runs.layout import RunDir
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.news import IngestReport
from hpcml.store.query import events, find_runs, get_run
from hpcml.store.sql import ask
from hpcml_client.journal import JournalWriter
from tests.store.building import T0, Journal, contents, curve, make_run_dir
from tests.store.test_ingest import fresh

UID = "20260528-202640-aaaaaa"
WORDS = {
    "long": "".join(chr(ord("a") + (at * at + at // 7) % 26) for at in range(10_000)),
    "sql": "'; DROP TABLE run; -- \" OR 1=1 /* %s ? :x $1",
    "html": "<script>alert(1)</script>&amp;<b>",
    "markup": "[bold]x[/bold] [link=file:///]y[/] `code` | pipe",
    "unicode": "ünï \N{GREEK SMALL LETTER MU} 漢字 \U0001f600 e\u0301 \u202eright to left\u202c \u200b",
    "control": "\x1b[31mred\x07 tab\t line\nbreak\r\x7f",
    "like": r"100% _x_ \ \\ \% [!a]*",
    "blank": "   ",
    "number": "1e999",
}


def odd(word: str) -> str:
    return WORDS[word]


@pytest.mark.parametrize("word", WORDS)
def test_odd_words_in_every_field_come_back_as_they_were(
    store: Database, runs: Path, tmp_path: Path, word: str
) -> None:
    text = odd(word)
    run_dir = make_run_dir(runs, tags=[text, "plain"], name=text)
    raw = json.loads(run_dir.manifest.read_text())
    raw["run"]["experiment"] = text
    raw["run"]["data"] = {"name": text, text: text}
    raw["provenance"]["git_commit"] = text
    run_dir.manifest.write_text(json.dumps(raw))
    with JournalWriter.open(str(run_dir.journals), run=UID, writer="rank0") as journal:
        journal.event("facts", {text: text, "gpu_model": text})
        journal.event(text, {"text": text, text: [text]})
        journal.event("attempt_started", {"job_id": text, "job_name": text, "hostname": text})
        for step in range(3):
            journal.metrics(step, {text: step / 3})
        journal.event("attempt_ended", {"state": "FAILED", "reason": text, "cause": text})

    report = ingest_all(store, runs)

    assert (report.new_points, report.bad_lines, report.problems) == (3, 0, ())
    (run,) = find_runs(store)
    assert (run.name, run.experiment, run.tags, run.git_commit) == (text, text, (text, "plain"), text)
    assert (run.state, run.reason, run.job_id, run.job_name) == (State.FAILED, text, text, text)
    assert (run.facts[text], run.facts["gpu_model"]) == (text, text)
    assert (run.params["data.name"], run.params[f"data.{text}"]) == (text, text)
    assert run.metrics[text].n == 3
    assert [point.value for point in curve(store, UID, text)] == [0.0, 1 / 3, 2 / 3]
    assert [event.details for event in events(store, UID) if event.name == text] == [{"text": text, text: [text]}]
    assert contents(store)["point"] == fresh(tmp_path, runs)["point"]


def test_a_thousand_metrics_of_one_step_are_all_there(store: Database, runs: Path) -> None:
    Journal(make_run_dir(runs)).metrics(0, **{f"layer.{at}.norm": float(at) for at in range(1000)})

    assert ingest_all(store, runs).new_points == 1000
    assert get_run(store, UID).metrics["layer.999.norm"].last == 999.0


def test_a_clock_that_is_set_back_moves_no_value_and_makes_no_negative_duration(store: Database, runs: Path) -> None:
    run_dir = make_run_dir(runs)
    for attempt, t0 in ((0, T0 + 7200.0), (1, T0 - 3600.0)):  # three hours back, between two attempts
        agent = Journal(run_dir, writer="agent", attempt=attempt, t0=t0)
        agent.event("attempt_started")
        rank = Journal(run_dir, attempt=attempt, t0=t0 + 1)
        for step in range(4):
            rank.metrics(4 * attempt + step, 5.0 - step, loss=4.0 * attempt + step)  # and a writer whose time runs back
        rank.event("checkpoint", 6.0, step=4 * attempt + 3)
        agent.event("attempt_ended", 10.0, state="TIMEOUT" if not attempt else "COMPLETED", checkpointed=not attempt,
                    exit_code=0, wall_s=9.0)  # fmt: skip
    report = ingest_all(store, runs)

    run = get_run(store, UID)
    assert report == IngestReport(runs=1, new_points=8)
    assert (run.state, run.attempt, run.wall_s) == (State.COMPLETED, 1, 18.0)
    assert [point.value for point in curve(store, UID, "loss")] == [float(step) for step in range(8)]
    assert run.metrics["loss"].last == 7.0
    assert all(math.isfinite(point.t_s) for point in curve(store, UID, "loss"))


def test_steps_as_large_as_64_bits_hold_are_kept_and_larger_ones_counted(store: Database, runs: Path) -> None:
    journal = Journal(make_run_dir(runs))
    for step in (-(2**63), 0, 2**63 - 1, 2**63):
        journal.metrics(step, loss=1.0)

    assert ingest_all(store, runs).bad_lines == 1
    assert [point.step for point in curve(store, UID, "loss")] == [-(2**63), 0, 2**63 - 1]


@pytest.mark.parametrize("text", ["nul \0 in the middle", "half \ud800 a character"])
def test_what_no_database_can_hold_costs_that_character_alone(store: Database, runs: Path, text: str) -> None:
    run_dir = make_run_dir(runs, tags=["first"])
    raw = json.loads(run_dir.manifest.read_text())
    raw["run"]["tags"], raw["run"]["name"] = [text], text
    run_dir.manifest.write_text(json.dumps(raw))
    journal = Journal(run_dir)
    journal.event("facts", hostname=text)
    journal.metrics(0, **{text: 1.0, "loss": 2.0})
    journal.event(text, text=text)

    report = ingest_all(store, runs)

    assert (report.new_points, report.problems) == (2, ())
    (run,) = find_runs(store)
    assert run.metrics["loss"].last == 2.0
    assert all(len(str(word)) == len(text) for word in (run.name, run.tags[0]))
    assert RunDir(Path(run.path)) == run_dir


@pytest.mark.parametrize("text", ["nul \0 in the middle", "half \ud800 a character", "no UTF-8: \udcff"])
def test_a_question_about_what_no_database_can_hold_is_answered(store: Database, runs: Path, text: str) -> None:
    Journal(make_run_dir(runs)).metrics(0, **{text: 1.0})
    ingest_all(store, runs)

    assert [point.value for point in curve(store, UID, text)] == [1.0]
    with pytest.raises(NoSuchRunError, match="no run is called"):
        get_run(store, text)
    with pytest.raises(StoreError, match="no UTF-8 text"):
        ask(store, f"SELECT '{text}'", limit_s=60)
