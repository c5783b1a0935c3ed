from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from hpcml.errors import StoreError
from hpcml.model.precision import PrecisionName
from hpcml.model.record_keys import value_of
from hpcml.model.run import Precision, Workload
from hpcml.model.state import State
from hpcml.model.training import Training
from hpcml.runs.layout import RunDir
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.keys import parts_of, unmet_words
from hpcml.store.loading import load_runs
from hpcml.store.query import (
    curves,
    events,
    find_runs,
    get_run,
    open_runs,
    runs_by_spec,
    runs_meant,
)
from hpcml.store.schema import RUN
from hpcml.store.telemetry import timelines
from hpcml.store.where import parse_condition
from tests.effort import times
from tests.store.building import A_RUN, T0, Journal, curve, make_run_dir


def uid_of(letter: str) -> str:
    return f"20260528-20264{'abcde'.index(letter)}-{letter * 6}"


@pytest.fixture
def five_runs(store: Database, runs: Path) -> Database:
    """Five runs: a, b, c of one experiment; d failed, e never began."""
    changes: dict[str, dict[str, Any]] = {
        "a": {"seed": 1, "name": "baseline", "tags": ["paper"]},
        "b": {"seed": 2, "precision": Precision(name=PrecisionName.fp32), "tags": ["paper", "final"]},
        "c": {"seed": 3, "training": Training(batch_size=128), "name": "twin"},
        "d": {"seed": 4, "experiment": "other", "name": "twin"},
        "e": {"seed": 5, "experiment": "other"},
    }
    for letter, changed in changes.items():
        run_dir = make_run_dir(runs, uid_of(letter), **changed)
        if letter == "e":
            continue
        agent, rank0 = Journal(run_dir, writer="agent"), Journal(run_dir, t0=T0 + 1)
        agent.event("attempt_started")
        agent.event("facts", gpu_model="A100", cores=8)
        for step in range(3):
            rank0.metrics(step, step, val_accuracy=step * "abcd".index(letter) / 10)
        state = "FAILED" if letter == "d" else "COMPLETED"
        agent.event("attempt_ended", 10.0, state=state, exit_code=int(letter == "d"), wall_s=10.0)
    ingest_all(store, runs)
    return store


def found(store: Database, *conditions: str, **how: Any) -> str:  # noqa: ANN401
    return "".join(
        run.uid[-1] for run in find_runs(store, filters=[parse_condition(text) for text in conditions], **how)
    )


FOUND = (
    ([], "abcde"),
    (["precision=tf32"], "acde"),
    (["precision!=tf32"], "b"),
    (["seed>=2", "seed<4"], "bc"),
    (["state=failed"], "d"),
    (["experiment=other"], "de"),
    (["name~^t"], "cd"),
    (["wall_s>1"], "abcd"),
    (["training.batch_size=128"], "c"),
    (["model=digits_cnn"], "abcde"),
    (["model.name~other"], ""),
    (["strategy=single", "layout=nchw", "cluster=local", "data=digits"], "abcde"),
    (["val_accuracy>0.15"], "bcd"),
    (["val_accuracy=none"], "e"),
    (["tag=paper"], "ab"),
    (["tag!=paper"], "cde"),
    (["tags=final"], "b"),
    (["gpu_model=a100"], "abcd"),
    (["gpu_model!=a100"], "e"),
    (["gpu_model=a100 and not (seed=1 or tag=final)", "val_accuracy>0"], "cd"),
    (["state in (failed, pending)"], "de"),
    (["submitted_at=2026-05-28T20:26:40+00:00"], "abcde"),
    (["age>1d and age<520w"], "abcde"),
    (["submitted_at>today"], ""),
    (["t_start<2026-05-28T20:26:41Z"], "abcd"),
    (["val_accuracy.max>0.3"], "cd"),
    (["val_accuracy.mean<0.15 and metrics.val_accuracy.n=3"], "ab"),
    (["metrics.val_accuracy>0.5"], "d"),
    (["params.training.batch_size=128"], "c"),
    (["params.model=digits_cnn and facts.cores=8"], "abcd"),
    (["bad_lines=0"], "abcde"),
    (["note=none"], "abcde"),
    (["tag=none"], "cde"),
    (["tag!=none"], "ab"),
)


@pytest.mark.on_postgres
def test_runs_are_found_by_column_parameter_group_metric_tag_and_fact(five_runs: Database) -> None:
    for conditions, letters in FOUND:
        assert found(five_runs, *conditions) == letters, conditions


def test_runs_are_found_by_experiment_and_state(five_runs: Database) -> None:
    assert found(five_runs, experiment="default") == "abc"
    assert found(five_runs, states=(State.PENDING, State.FAILED)) == "de"
    assert found(five_runs, experiment="absent") == ""


@pytest.mark.on_postgres
def test_runs_are_sorted_by_any_key_and_limited_afterwards(five_runs: Database) -> None:
    assert found(five_runs, descending=True, limit=2) == "ed"
    assert found(five_runs, limit=2) == "de"  # the newest, in their order
    assert found(five_runs, sort="val_accuracy", descending=True) == "dcbae"
    assert found(five_runs, sort="training.batch_size", limit=4) == "abde"
    assert found(five_runs, sort="seed", descending=True, limit=1) == "e"


@pytest.mark.on_postgres
def test_what_is_found_by_a_key_is_what_the_record_has_under_it(five_runs: Database) -> None:
    now = time.time()
    keys = ["uid", "tag", "note", "model", "training.batch_size", "val_accuracy", "gpu_model", "val_accuracy.mean"]
    keys += ["incomplete", "metrics.val_accuracy", "metrics.val_accuracy.max", "facts.cores", "params.model", "age"]
    records = find_runs(five_runs)

    with five_runs.reading() as connection:
        for key in keys:
            some = load_runs(connection, RUN.c.id.is_not(None), parts_of([key]))
            assert [value_of(run, key, now=now) for run in some] == [value_of(run, key, now=now) for run in records], (
                key
            )


def test_a_flag_of_ones_own_program_is_found_by_the_name_that_it_was_typed_with(store: Database, runs: Path) -> None:
    for letter, lr, model in (("a", "0.1", "x"), ("b", "0.5", "y"), ("c", "1e-2", "y")):
        flags = Workload(command="python train.py --lr {lr} --model {model}", args={"lr": lr, "model": model})
        make_run_dir(runs, uid_of(letter), workload=flags)
    ingest_all(store, runs)

    assert found(store, "lr<0.2") == found(store, "args.lr<0.2") == "ac"
    assert found(store, sort="lr") == "cab"
    assert found(store, "args.model=y") == "bc"
    assert found(store, "model=digits_cnn") == "abc"  # a setting comes first
    with pytest.raises(StoreError, match=r"no run has anything called 'args.rate'"):
        found(store, "args.rate=1")
    with pytest.raises(StoreError, match=r"no run has anything called 'run'; did you mean uid\?"):
        found(store, sort="run")  # as a table's first column is headed


@pytest.mark.parametrize("value", ["20261126034436123", "1" * 400, "1" * 5000], ids=len)
def test_a_flag_with_more_digits_than_a_number_keeps_is_found_by_all_of_them(
    store: Database, runs: Path, value: str
) -> None:
    for letter, typed in (("a", value), ("b", f"{value[:-1]}4")):
        make_run_dir(runs, uid_of(letter), workload=Workload(command="python train.py --id {id}", args={"id": typed}))
    ingest_all(store, runs)

    assert found(store, f"id={value}") == "a"
    assert found(store, f"id!={value}") == "b"
    assert found(store, sort="id") in ("ab", "ba")


def test_a_run_without_a_metric_is_found_by_the_flag_that_is_called_so(store: Database, runs: Path) -> None:
    for letter in "ab":
        flags = Workload(command="python train.py --lr {lr}", args={"lr": "0.1"})
        run_dir = make_run_dir(runs, uid_of(letter), workload=flags)
        if letter == "a":
            Journal(run_dir).metrics(0, 1.0, lr=0.05)
    ingest_all(store, runs)

    assert [value_of(run, "lr", now=0.0) for run in find_runs(store)] == [0.05, 0.1]
    assert (found(store, "lr=0.05"), found(store, "lr=0.1")) == ("a", "b")


def test_incomplete_runs_are_found_and_a_failure_is_no_such(five_runs: Database, runs: Path) -> None:
    for letter, state in (("c", "COMPLETED"), ("d", "FAILED")):
        later = Journal(
            RunDir(runs / ("other" if letter == "d" else "default") / uid_of(letter)), writer="agent", attempt=2
        )
        later.event("attempt_ended", 20.0, state=state, reason="the journal has no end")
    Journal(RunDir(runs / "default" / uid_of("b")), writer="agent", attempt=2).write("{torn\n")
    ingest_all(five_runs, runs)

    assert found(five_runs, "incomplete!=none") == "bc"
    assert found(five_runs, "incomplete~no end") == "c"


def test_an_unknown_key_is_refused_with_what_is_near(five_runs: Database) -> None:
    with pytest.raises(StoreError, match="'val_acuracy'; did you mean val_accuracy"):
        found(five_runs, "val_acuracy>0")
    with pytest.raises(StoreError, match=r"training\.batch_size"):
        found(five_runs, sort="batch_size")


def test_an_empty_store_finds_nothing_whatever_is_asked(store: Database) -> None:
    assert found(store, "val_accuracy>0.9", sort="loss") == ""


@pytest.mark.parametrize("reference", [uid_of("b"), "20260528-202641", "bbbbbb", "bbbb"])
def test_a_run_is_meant_by_either_end_of_its_uid(five_runs: Database, reference: str) -> None:
    assert get_run(five_runs, reference).uid == uid_of("b")


def test_a_run_is_meant_by_a_name_that_it_alone_has(five_runs: Database) -> None:
    assert get_run(five_runs, "baseline").uid == uid_of("a")


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("2026", "means 5 runs: 20260528-202640-aaaaaa, "),
        ("twin", "means 2 runs: 20260528-202642-cccccc, 20260528-202643-dddddd"),
        ("basline", "no run is called 'basline'; did you mean baseline"),
        ("othr", "no run is called 'othr'; did you mean the experiment other"),
        ("aaaaab", "no run is called 'aaaaab'; did you mean aaaaaa"),
        ("%%%%", "no run is called '%%%%'"),
        ("out.html", "no run is called 'out.html': a file to be written is named by -o out.html"),
        ("other", "no run is called 'other'; it is an experiment: --experiment other"),
        ("val_accuracy", "no run is called 'val_accuracy'; it is a metric: --metric val_accuracy"),
        ("paper", "no run is called 'paper'; it is a tag: --where tag=paper"),
        ("fp32", "no run is called 'fp32'; it is a precision: --where precision=fp32"),
        ("precision", "no run is called 'precision'; it is a setting: --by precision"),
        ("seed", "no run is called 'seed'; it is a setting: --by seed"),
        ("failed", "no run is called 'failed'; it is a state: --state FAILED"),
    ],
)
def test_an_unclear_reference_is_refused_with_candidates(five_runs: Database, reference: str, words: str) -> None:
    with pytest.raises(StoreError) as refusal:
        get_run(five_runs, reference)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_empty_word_means_no_run_and_not_the_one_without_a_name(store: Database, runs: Path) -> None:
    make_run_dir(runs, uid_of("a"), name="")
    ingest_all(store, runs)

    with pytest.raises(StoreError, match="''; of an id give at least 4 characters"):
        get_run(store, "")


@pytest.mark.parametrize("reference", ["", "b", "bbb", "%"])
def test_a_slip_of_the_finger_means_no_run(five_runs: Database, reference: str) -> None:
    with pytest.raises(StoreError, match=f"'{reference}'; of an id give at least 4 characters"):
        get_run(five_runs, reference)


def test_a_flag_of_the_programs_that_was_swept_is_known_by_its_name(store: Database, runs: Path) -> None:
    make_run_dir(runs, uid_of("a"), workload=Workload(command="train --lr {lr}", args={"lr": "0.1"}))
    ingest_all(store, runs)

    with pytest.raises(StoreError, match="no run is called 'lr'; it is a setting: --by lr"):
        get_run(store, "lr")


def test_submissions_are_counted_from_the_last_and_their_runs_are_meant_together(store: Database, runs: Path) -> None:
    for letter, submission in {
        "a": "20260528-202640-late",
        "b": None,
        "c": "20260528-202642-zz",
        "d": "20260528-aa",
    }.items():
        make_run_dir(runs, uid_of(letter), submission=submission)
    make_run_dir(runs, uid_of("e"), submission="20260528-202642-zz")
    ingest_all(store, runs)

    meant = [[run.uid[-1] for run in runs_meant(store, f"@-{number}")] for number in (1, 2, 3)]

    assert meant == [["c", "e"], ["d"], ["a"]]
    assert get_run(store, "@-2").uid == uid_of("d")
    with pytest.raises(StoreError, match=r"@-1 is a submission of 2 runs: .*c, .*e; name one of them"):
        get_run(store, "@-1")
    with pytest.raises(StoreError, match="@-4: there are fewer submissions than that"):
        runs_meant(store, "@-4")


def test_a_name_may_be_as_short_as_one_likes(store: Database, runs: Path) -> None:
    make_run_dir(runs, uid_of("a"), name="m")
    ingest_all(store, runs)

    assert get_run(store, "m").uid == uid_of("a")


def test_runs_of_a_configuration_are_found_oldest_first_with_their_states(five_runs: Database, runs: Path) -> None:
    make_run_dir(runs, uid_of("e")[:-1] + "f", seed=4, experiment="other", name="again")  # as d, but for its name
    ingest_all(five_runs, runs)
    hashes = {letter: get_run(five_runs, uid_of(letter)).spec_hash for letter in "ad"}

    found = runs_by_spec(five_runs, [*hashes.values(), hashes["a"], "absent"])

    assert found == {
        hashes["a"]: [(uid_of("a"), State.COMPLETED)],
        hashes["d"]: [(uid_of("d"), State.FAILED), (uid_of("e")[:-1] + "f", State.PENDING)],
    }
    assert runs_by_spec(five_runs, []) == {}


@pytest.mark.on_postgres
def test_curves_of_many_runs_come_in_the_order_asked_for(five_runs: Database) -> None:
    asked = [uid_of("d"), uid_of("e"), uid_of("b")]

    many = curves(five_runs, asked, "val_accuracy")

    assert list(many) == asked
    assert [(point.step, point.t_s, point.value) for point in many[uid_of("d")]] == [
        (0, 1, 0),
        (1, 2, 0.3),
        (2, 3, 0.6),
    ]
    assert many[uid_of("e")] == []
    assert many[uid_of("b")] == curve(five_runs, uid_of("b"), "val_accuracy")
    assert curve(five_runs, uid_of("b"), "absent") == []


@pytest.mark.parametrize("is_timed", [True, False])
def test_curves_that_are_read_together_have_each_its_own_steps(store: Database, runs: Path, *, is_timed: bool) -> None:
    reported = {"a": [4, 5, 6], "b": [4, 6], "c": [-2, -1, 0], "d": [4, 5, 6], "e": [0, 10**12]}
    for letter, steps in reported.items():
        run_dir = make_run_dir(runs, uid_of(letter), seed="abcde".index(letter))
        journal = Journal(run_dir)
        for step in steps:
            journal.metrics(step, 1.0, loss=math.nan if step == 6 else step / 8)
        if letter == "d":  # a second writer, which has a step that the first one lacks
            other = Journal(run_dir, writer="rank1")
            for step in (5, 7):
                other.metrics(step, 2.0, loss=9.0)
    ingest_all(store, runs)

    found = curves(store, [uid_of(letter) for letter in reported], "loss", is_timed=is_timed)

    assert {uid[-1]: list(of.steps) for uid, of in found.items()} == {**reported, "d": [4, 5, 6, 7]}
    assert str(list(found[uid_of("b")].values)) == "[0.5, nan]"
    assert list(found[uid_of("c")].values) == [-0.25, -0.125, 0.0]
    assert str(list(found[uid_of("d")].values)) == "[0.5, 0.625, nan, 9.0]"
    assert [len(of.times_s) for of in found.values()] == [len(of.steps) for of in found.values()]
    if is_timed:
        assert [list(found[uid_of(letter)].times_s) for letter in "bd"] == [[1.0, 1.0], [1.0, 1.0, 1.0, 2.0]]


def test_events_are_told_in_order_and_unknown_ones_kept(five_runs: Database, runs: Path) -> None:
    journal = Journal(make_run_dir(runs, uid_of("a")[:-1] + "z"), writer="rank0")
    journal.event("from_the_future", 3.0, nested={"list": [1, None, "ä"]})
    journal.event("note", 2.0, text="earlier")
    ingest_all(five_runs, runs)

    told = events(five_runs, uid_of("a")[:-1] + "z")

    assert [(event.t_s, event.name, event.attempt, event.writer) for event in told] == [
        (2.0, "note", 1, "rank0"),
        (3.0, "from_the_future", 1, "rank0"),
    ]
    assert told[1].details == {"nested": {"list": [1, None, "ä"]}}


@pytest.mark.parametrize("ask", [events, timelines])
def test_what_is_asked_of_an_unknown_run_is_refused(five_runs: Database, ask: Any) -> None:  # noqa: ANN401
    with pytest.raises(StoreError, match="no run has the uid 'absent'"):
        ask(five_runs, "absent")


def test_many_runs_cost_few_queries(store: Database, runs: Path) -> None:
    count = times(250, 1000)
    for number in range(count):
        make_run_dir(runs, f"run-{number:04d}", seed=number)
    ingest_all(store, runs)
    asked: list[str] = []
    event.listen(store.engine, "before_cursor_execute", lambda *how: asked.append(how[2]))
    records = find_runs(store, filters=[parse_condition("model=digits_cnn"), parse_condition(f"seed<{count - 50}")])

    assert len(records) == count - 50
    assert 0 < len(asked) <= 24
    assert [record.seed for record in records] == list(range(count - 50))
    assert len(curves(store, [record.uid for record in records], "loss")) == count - 50


def test_a_record_is_what_it_was_described_as(five_runs: Database) -> None:
    run = get_run(five_runs, "baseline")

    assert run.params["seed"] == 1
    assert run.params["precision.name"] == "tf32"
    assert run == replace(run, tags=("paper",))
    assert A_RUN.training.steps == run.params["training.steps"]


def test_open_runs_are_those_of_which_more_is_to_come(five_runs: Database, runs: Path) -> None:
    interrupted = Journal(make_run_dir(runs, uid_of("a")[:-1] + "i"), writer="agent")
    interrupted.event("attempt_interrupted", state="CANCELLED", reason="SIGTERM")
    running = Journal(make_run_dir(runs, uid_of("a")[:-1] + "r"), writer="agent")
    running.event("attempt_started")
    ingest_all(five_runs, runs)

    found = {run.uid[-1]: (run.state, run.is_settled) for run in open_runs(five_runs)}

    assert found == {
        "i": (State.CANCELLED, False),
        "r": (State.RUNNING, True),
        "e": (State.PENDING, True),
    }


def test_runs_are_found_by_cause_and_by_being_settled(five_runs: Database) -> None:
    assert found(five_runs, "cause=unknown") == "d"
    assert found(five_runs, "cause=none", "state=pending") == "e"
    assert found(five_runs, "is_settled=false") == ""


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("precision=fp23", "no run has precision=fp23; there are fp32, tf32"),
        ("seed=4 and precision=amp", "no run has precision=amp_fp16; there are fp32, tf32"),
        ("seed=9", "no run has seed=9; there are 1, 2, 3, 4, 5"),
        ("tag=papr", "no run has tag=papr; there are final, paper"),
        ("training.batch_size=12", "no run has training.batch_size=12; there are 128, 64"),
        ("gpu_model=H100", "no run has gpu_model=H100; there is only A100"),
        ("model=cnn", "no run has model=cnn; --model of your program is args.model=cnn"),
        ("cluster=karolina", "no run has cluster=karolina; there is only local"),
    ],
)
def test_a_value_that_no_run_has_is_told_with_those_that_there_are(
    five_runs: Database, runs: Path, condition: str, words: str
) -> None:
    if condition.startswith("model="):
        flags = Workload(command="python train.py --model {model}", args={"model": "cnn"})
        make_run_dir(runs, "20260528-202645-ffffff", workload=flags)
        ingest_all(five_runs, runs)

    assert unmet_words(five_runs, experiment=None, conditions=[parse_condition(condition)]) == [words]


@pytest.mark.parametrize(
    "condition",
    [
        *("precision=fp32 and seed=1", "seed>9", "seed=9 or seed=8", "not seed=9", "seed in (8, 9)", "state=TIMEOUT"),
        *("name=none", "wall_s=none", "energy_j=3", "val_accuracy!=0", "submitted_at=2020-01-01", "age=3"),
    ],
)
def test_a_condition_that_no_single_value_explains_is_told_nothing_of(five_runs: Database, condition: str) -> None:
    assert unmet_words(five_runs, experiment="default", conditions=[parse_condition(condition)]) == []


def test_an_experiment_that_no_run_is_of_is_told_with_its_like(five_runs: Database) -> None:
    for asked, words in {
        "defalt": ["no run is of the experiment 'defalt'; there are default, other"],
        "Other": ["no run is of the experiment 'Other'; there are default, other"],
        "xyz": ["no run is of the experiment 'xyz'; there are default, other"],
        "other": [],
    }.items():
        assert unmet_words(five_runs, experiment=asked, conditions=[]) == words


def test_of_many_values_those_are_told_that_are_alike(store: Database, runs: Path) -> None:
    for number in range(6):
        make_run_dir(runs, f"20260528-20264{number}-aaaaa{number}", experiment=f"study-{number}")
    ingest_all(store, runs)

    (told,) = unmet_words(store, experiment="Study-9", conditions=[])
    assert told.endswith("'Study-9'; did you mean study-5 or study-4?")
    assert unmet_words(store, experiment="Study-1", conditions=[])[0].endswith("'Study-1'; did you mean study-1?")
    assert unmet_words(store, experiment="xyz", conditions=[]) == ["no run is of the experiment 'xyz'"]


def test_nothing_is_told_of_an_empty_store(store: Database) -> None:
    assert unmet_words(store, experiment="typo", conditions=[parse_condition("seed=1")]) == []
