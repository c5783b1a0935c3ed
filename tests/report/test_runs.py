from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any

from report_values import EVIL, NOW, event, run, summary

from hpcml.model.records import RunRecord, StoredEvent
from hpcml.model.state import State
from hpcml.report.render.data import as_csv, as_json
from hpcml.report.render.markdown import as_markdown
from hpcml.report.render.terminal import as_text
from hpcml.report.runs import record_json, runs_document
from hpcml.report.show import Asked, ShownRun, run_document


def table(*runs: RunRecord, width: int = 100, metric: str | None = None) -> list[str]:
    return as_text(runs_document(runs, now=NOW, metric=metric), width=width).splitlines()


def runs_markdown(runs: Sequence[RunRecord], *, now: float = NOW, metric: str | None = None) -> str:
    return as_markdown(runs_document(runs, now=now, metric=metric))


def runs_json(runs: Sequence[RunRecord]) -> str:
    return as_json(runs_document(runs, now=NOW))


def runs_csv(runs: Sequence[RunRecord]) -> str:
    return as_csv(runs_document(runs, now=NOW))


def shown_run(
    record: RunRecord, *, asked: Asked | None = None, events: Sequence[StoredEvent] | None = None
) -> ShownRun:
    return ShownRun(run=record, events=[event()] if events is None else events, asked=asked or Asked(overrides=None))


def details(
    record: RunRecord,
    *,
    width: int = 100,
    asked: Asked | None = None,
    is_all: bool = True,
    events: Sequence[StoredEvent] | None = None,
) -> str:
    shown = shown_run(record, asked=asked, events=events)
    return as_text(run_document(shown, zone=UTC, is_all=is_all), width=width).rstrip("\n")


def test_a_run_is_one_line() -> None:
    lines = table(run(), run(uid="20261121-080001-ghijkl", state=State.FAILED, wall_s=None, precision_effective="fp32"))

    assert lines == [
        "run     experiment  model       precision     seed  state      val_accuracy   wall    age",
        "abcdef  study       digits_cnn  tf32             3  COMPLETED        0.9123  1m03s  2h01m",
        "ghijkl  study       digits_cnn  tf32 -> fp32     3  FAILED           0.9123         2h01m",
    ]


def a_weeks_work() -> list[RunRecord]:
    study = {"experiment": "precision-study"}
    return [
        run(uid="20261121-080000-222k7q9x", precision="fp32", precision_effective="fp32", **study),
        run(uid="20261121-080000-223m2abc", numerics="emulated", **study),
        run(
            uid="20261121-080000-224zz8yh", precision="amp_fp16", precision_effective=None, numerics="unproven", **study
        ),
        run(uid="20261121-080000-2253npre", precision_effective="fp32", name="lr-sweep-with-warm-up-2", **study),
        run(uid="20261121-080000-226x4rrt", state=State.OUT_OF_MEMORY, metrics={}, wall_s=9000.0, seed=12, **study),
    ]


def test_numerics_stand_with_the_precision_unless_they_are_native() -> None:
    known = [
        run(numerics="emulated"),
        run(numerics="unproven", precision_effective=None),
        run(numerics="emulated", precision_effective="fp32"),
    ]

    assert [re.split(" {2,}", line)[3] for line in table(*known, width=160)[1:]] == [
        "tf32 (emulated)",
        "tf32 (unproven)",
        "tf32 -> fp32 (emulated)",
    ]


def test_a_metric_that_ended_non_finite_is_said_so_and_one_never_recorded_is_empty() -> None:
    assert "not finite" in table(run(), metric="grad_norm")[1]
    assert "not finite" not in table(run(), metric="val_loss")[1]


def test_names_from_users_stay_in_their_line_and_style_nothing() -> None:
    evil = run(name=EVIL, experiment=EVIL, reason=EVIL, tags=(EVIL,), facts={EVIL: EVIL}, params={EVIL: EVIL})

    outputs = ["\n".join(table(evil, width=200)), details(evil), runs_markdown([evil], now=NOW), runs_csv([evil])]

    for output in outputs:
        assert not set(output) & {"\x1b", "\r", "\u202e"}
        assert "[bold]" in output
    assert len(table(evil, width=250)) == 2
    assert len(list(csv.reader(io.StringIO(outputs[3])))) == 2


def test_of_runs_without_their_objective_another_metric_is_shown_a_loss_if_there_is_one() -> None:
    bare = run(uid="20261121-080000-000000", metrics={})
    other = run(metrics={name: summary(name, 0.25) for name in ("acc", "epoch", "test_loss")})

    alone, both = (runs_markdown(shown, now=NOW) for shown in ([bare], [bare, other]))

    assert "val_accuracy" not in alone  # a column of nothing
    assert "| val_accuracy |" in runs_markdown([bare], now=NOW, metric="val_accuracy")
    assert "test_loss" in both
    assert "0.2500" in both
    assert "val_accuracy" in runs_markdown([bare, other, run()], now=NOW)


def test_csv_of_runs_has_a_column_for_every_setting_fact_and_metric_of_any_run() -> None:
    runs = [run(), run(uid="x", params={"training.steps": 9}, facts={"torch": "2.13"}, metrics={})]

    first, second = csv.DictReader(io.StringIO(runs_csv(runs)))

    assert (first["model.name"], first["facts.gpu_model"], first["metrics.val_accuracy"]) == (
        "digits_cnn",
        "A100",
        "0.9123",
    )
    assert first["metrics.grad_norm"] == "nan"
    assert first["git_dirty"] == "true"
    assert (second["training.steps"], second["facts.torch"], second["model.name"]) == ("9", "2.13", "")


def test_details_tell_how_it_ended_and_what_was_measured() -> None:
    text = details(run(state=State.FAILED, reason="loss is nan", exit_code=1, precision_effective="fp32"))

    for words in (
        "20261121-080000-abcdef  digits_cnn",
        "state       FAILED",
        "reason      loss is nan",
        "exit code   1",
        "directory   /scratch/runs/study/20261121-080000-abcdef",
        "git commit  abc1234 + changes",
        "requested  tf32",
        "effective  fp32  (not what was requested)",
        "wall time  1m03s",
        "started    2026-11-21 08:00:30+00:00",
        "gpu_model  A100",
        "1.5s  1/rank0         probe  matmul=tf32, error=nan",
    ):
        assert words in text


def test_details_begin_with_what_was_asked_and_keep_the_rest_for_who_asks() -> None:
    typed = ["precision=tf32", "workload.command='./fit --lr {lr}'", "args.lr=0.1"]
    asked = Asked(overrides=typed, argv=["./fit", "a b"])

    brief, whole = details(run(), asked=asked, is_all=False), details(run(), asked=asked)

    assert [" ".join(line.split()) for line in brief.splitlines()[1:5]] == [
        "asked precision=tf32 args.lr=0.1",
        "command ./fit 'a b'",
        "result val_accuracy 0.9123 at step 100",
        "state COMPLETED",
    ]
    assert brief.splitlines()[-1] == "hpcml show --all abcdef: settings with their defaults, facts, events"
    assert [word for word in ("facts", "settings", "events") if f"\n{word}\n" in brief] == []
    assert [word for word in ("facts", "settings", "events") if f"\n{word}\n" in whole] == [
        "facts",
        "settings",
        "events",
    ]


def test_settings_are_shown_where_what_was_asked_was_not_recorded() -> None:
    assert "\nsettings\n" in details(run(), asked=Asked(overrides=None), is_all=False)


def test_details_as_json_hold_the_events() -> None:
    found = json.loads(as_json(run_document(shown_run(run()))))

    assert found["uid"] == "20261121-080000-abcdef"
    assert found["events"][0]["details"] == {"matmul": "tf32", "error": "nan"}


def test_products_of_an_attempt_that_does_not_count_are_none_of_the_runs() -> None:
    def attempt(number: int, seen: str) -> list[StoredEvent]:
        row = {"phase": "forward", "layer": "1", "format": seen, "storage": "fp32", "flops": 100}
        window = {"step": number + 2, "seconds": 0.1, "rows": [row]}
        told: dict[str, Any] = {"attempt": number, "t_s": 10.0 * number}
        return [
            event(**told, writer="agent", name="attempt_started", details={"hostname": "n1"}),
            event(**told, name="precision_observed", details=window),
            event(**told, writer="agent", name="attempt_ended", details={"state": "COMPLETED" if number else "FAILED"}),
        ]

    said = details(run(), events=[*attempt(0, "tf32"), *attempt(1, "fp32")], is_all=False)

    assert "1 window, to step 3;" in said
    assert "100 % fp32 forward" in said
    assert "tf32 forward" not in said


def test_that_a_probe_tells_what_float32_was_where_tf32_was_allowed_is_said() -> None:
    row = {"phase": "forward", "layer": "1", "format": "tf32", "flops": 100}
    window = {"step": 2, "rows": [row], "evidence": {"tf32_allowed": ["conv"], "as_probed": ["conv"]}}
    measured = run(precision="tf32", precision_effective="tf32", facts={"precision_evidence": "observed"})

    said = " ".join(details(measured, events=[event(name="precision_observed", details=window)], is_all=False).split())

    assert "its program's products; where float32 was allowed to be TF32, a probe under the same switches" in said


def test_a_run_that_diverged_is_said_to_have_in_the_list_and_in_full() -> None:
    lost = run(metrics={"train_loss": replace(summary("train_loss", 0.5), last=None, n_nonfinite=3)})
    printed = run(facts={"printed_loss": "loss nan or infinite"})

    assert "not finite  diverged" in table(lost, metric="train_loss")[1]
    assert "0.9123  diverged" in table(printed)[1]
    assert "diverged" in runs_markdown([lost], now=NOW)
    assert re.search(r"\n  diverged +train_loss nan or infinite at the last\n", details(lost, is_all=False))
    assert re.search(r"\n  diverged +loss nan or infinite at the last, as it was printed\n", details(printed))
    assert record_json(lost)["diverged"] == "train_loss nan or infinite at the last"
    assert [row["diverged"] for row in csv.DictReader(io.StringIO(runs_csv([lost, run()])))] == [
        "train_loss nan or infinite at the last",
        "",
    ]
