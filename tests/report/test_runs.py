from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any, Literal

import pytest
from report_values import EVIL, NOW, event, run, summary
from rich.console import Console

from hpcml.model.records import RunRecord, StoredEvent
from hpcml.model.state import State
from hpcml.report.render.data import as_csv, as_json
from hpcml.report.render.markdown import as_markdown
from hpcml.report.render.terminal import as_renderable, as_text
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


def test_states_are_coloured_where_there_are_colours() -> None:
    for is_terminal in (True, False):
        system: Literal["standard"] | None = "standard" if is_terminal else None
        console = Console(file=io.StringIO(), width=100, force_terminal=is_terminal, color_system=system)
        console.print(as_renderable(runs_document([run(state=State.FAILED)], now=NOW), console=console))
        assert isinstance(console.file, io.StringIO)
        assert ("\x1b[31mFAILED" in console.file.getvalue()) == is_terminal


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


def test_ids_are_written_whole_where_the_short_ones_would_not_tell_runs_apart() -> None:
    lines = table(run(), run(uid="20261122-080000-abcdef"), width=140)

    assert lines[1].startswith("20261121-080000-abcdef")


def test_a_metric_that_ended_non_finite_is_said_so_and_one_never_recorded_is_empty() -> None:
    assert "not finite" in table(run(), metric="grad_norm")[1]
    assert "not finite" not in table(run(), metric="val_loss")[1]


def test_unknown_times_are_empty() -> None:
    line = table(run(submitted_at=None, t_start=None, wall_s=None))[1]

    assert line.endswith("0.9123")
    assert table(run(submitted_at="yesterday", t_start=None))[1].endswith("1m03s")


def test_an_empty_list_is_a_table_without_lines() -> None:
    assert table() == []
    assert json.loads(runs_json([])) == []
    assert runs_csv([]).count("\n") == 1


def test_names_from_users_stay_in_their_line_and_style_nothing() -> None:
    evil = run(name=EVIL, experiment=EVIL, reason=EVIL, tags=(EVIL,), facts={EVIL: EVIL}, params={EVIL: EVIL})

    outputs = ["\n".join(table(evil, width=200)), details(evil), runs_markdown([evil], now=NOW), runs_csv([evil])]

    for output in outputs:
        assert not set(output) & {"\x1b", "\r", "\u202e"}
        assert "[bold]" in output
    assert len(table(evil, width=250)) == 2
    assert len(list(csv.reader(io.StringIO(outputs[3])))) == 2


def test_markdown_has_a_row_for_each_run() -> None:
    lines = runs_markdown([run()], now=NOW).splitlines()

    assert lines[2].startswith("| abcdef | study | digits_cnn | tf32 | 3 | COMPLETED |")


def test_json_of_runs_has_the_fields_of_a_record() -> None:
    (found,) = json.loads(runs_json([run()]))

    assert (found["uid"], found["state"], found["seed"]) == ("20261121-080000-abcdef", "COMPLETED", 3)
    assert found["metrics"]["grad_norm"]["last"] is None
    assert found["params"]["model.name"] == "digits_cnn"


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


def test_details_have_the_value_of_another_metric_where_the_objective_was_not_reported() -> None:
    other = run(metrics={name: summary(name, 0.25) for name in ("epoch", "test_loss")})

    assert "result      test_loss 0.2500" in details(other)
    assert "result" not in details(run(metrics={}))


def test_settings_are_shown_where_what_was_asked_was_not_recorded() -> None:
    assert "\nsettings\n" in details(run(), asked=Asked(overrides=None), is_all=False)


def test_an_unproven_or_emulated_precision_says_so_in_the_details() -> None:
    text = details(run(precision_effective=None, numerics="emulated"))

    assert "effective  not proven" in text
    assert "emulated  (its times say nothing about this precision)" in text


def test_unproven_numerics_say_whose_word_is_missing() -> None:
    text = details(run(precision_effective=None, numerics="unproven"))

    assert "unproven  (the program did not report how it computed: its times say nothing about this precision)" in (
        " ".join(text.split()).replace("unproven (", "unproven  (")
    )


def test_details_as_json_hold_the_events() -> None:
    found = json.loads(as_json(run_document(shown_run(run()))))

    assert found["uid"] == "20261121-080000-abcdef"
    assert found["events"][0]["details"] == {"matmul": "tf32", "error": "nan"}


def test_what_was_not_read_of_an_attempt_that_does_not_count_is_not_missing() -> None:
    def attempt(number: int, state: str, *, was_read: bool) -> list[StoredEvent]:
        told: dict[str, Any] = {"attempt": number, "writer": "agent", "t_s": 10.0 * number}
        trouble = {"file": "what was printed", "problem": f"no line matched in attempt {number}"}
        started = event(**told, name="attempt_started", details={"hostname": "n1"})
        ended = event(**told, name="attempt_ended", details={"state": state})
        return [started, *([] if was_read else [event(**told, name="metrics_trouble", details=trouble)]), ended]

    cancelled = attempt(0, "CANCELLED", was_read=False)
    again = details(run(), events=[*cancelled, *attempt(1, "COMPLETED", was_read=True)], is_all=False)
    unread = details(run(), events=[*cancelled, *attempt(1, "COMPLETED", was_read=False)], is_all=False)

    assert "no line matched" not in again
    assert "no line matched in attempt 1" in unread
    assert "attempt 0" not in unread
    assert "no line matched in attempt 0" in details(run(), events=cancelled, is_all=False)


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


@pytest.mark.parametrize(
    ("window", "why"),
    [
        (None, "nothing: none of its program's steps was seen"),
        ({"unknown": [{"what": "flash_attn::fwd"}]}, "its program's products, of which a part is unknown"),
        ({}, "its program's products: a probe shows TF32 of less than half of what was allowed it"),
    ],
)
def test_why_an_effective_precision_is_unknown_is_told(window: dict[str, Any] | None, why: str) -> None:
    row = {"phase": "forward", "layer": "1", "format": "tf32 allowed", "flops": 100}
    seen = (
        [event(name="precision_observed", details={"step": 2, "rows": [row], **window})] if window is not None else []
    )

    said = details(run(precision="tf32", precision_effective="unknown"), events=seen, is_all=False)

    assert why in " ".join(said.split())


def test_that_one_step_is_too_few_to_see_a_precision_is_told() -> None:
    closed = event(name="precision_observer_closed", details={"framework": "torch", "steps": 1})

    said = details(run(precision="tf32", precision_effective="unknown"), events=[closed], is_all=False)

    assert "nothing: its program made one step, and what is seen lies between two" in " ".join(said.split())


def test_that_a_killed_program_may_have_made_steps_that_nobody_read_is_told() -> None:
    hello = event(name="precision_observer", details={"framework": "torch", "how": "injected", "version": "2.13.0"})

    said = details(run(precision="tf32", precision_effective="unknown"), events=[hello], is_all=False)

    why = "nothing: its program made no step, or was killed before what was seen of its steps was read"
    assert why in " ".join(said.split())


def test_the_time_for_which_a_run_stood_still_is_told_beside_its_wall_time() -> None:
    end = {"state": "COMPLETED", "wall_s": 63.0}
    started = event(writer="agent", name="attempt_started", details={"node": 0})
    ends = [
        event(writer=writer, name="attempt_ended", details={**end, "stood_still_s": seconds})
        for writer, seconds in (("agent", 20.0), ("agent-node1", 30.0))  # the same pause, seen on two nodes
    ]

    told = " ".join(details(run(), events=[started, *ends]).split())

    assert "stood still 30s of the wall time: suspended, or held up by its node" in told
    assert "stood still" not in details(run(), events=[started])


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


def test_a_run_whose_loss_came_back_or_may_or_that_is_no_loss_has_not_diverged() -> None:
    nan = replace(summary("loss", 0.5), last=None, n_nonfinite=3)
    innocent = [
        run(metrics={"loss": replace(summary("loss", 0.5), n_nonfinite=3)}),
        run(metrics={"loss": nan}, state=State.RUNNING),
        run(metrics={"grad_norm": nan, "loss_scale": nan}),
        run(facts={"printed_loss": ""}),
        *(  # whose own values count
            run(facts={"printed_loss": "train loss nan or infinite"}, metrics={name: summary(name, 0.5)})
            for name in ("train_loss", "train/Loss")
        ),
    ]

    for each in innocent:
        assert "diverged" not in "".join(table(each))
        assert "diverged" not in details(each, is_all=False)
        assert record_json(each)["diverged"] is None


def test_times_are_shown_in_one_form() -> None:
    text = details(run(submitted_at="2026-11-21T09:00:00+01:00"), is_all=False)

    assert re.search(r"submitted +2026-11-21 08:00:00\+00:00\n +started +2026-11-21 \d\d:\d\d:\d\d\+00:00\n", text)


def test_a_narrow_table_says_once_what_is_the_same_in_all_runs_and_which_columns_it_has_no_room_for() -> None:
    lost = {"loss": replace(summary("loss", 0.5), last=None, n_nonfinite=3)}
    runs = [run(uid="20260528-202640-aaaaaa", metrics={}), run(uid="20260528-202640-bbbbbb", metrics=lost)]

    lines = table(*runs, width=40)

    assert " ".join(lines).startswith("in all: experiment study, model digits_cnn, precision tf32, seed 3, state")
    assert lines[-2].split() == ["aaaaaa"]
    assert lines[-1].split() == ["bbbbbb", "not", "finite", "diverged"]
    assert table(*runs, width=12)[-1].startswith("cause")
