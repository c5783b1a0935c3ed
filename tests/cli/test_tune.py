"""``hpcml tune`` as it is typed: a search on this machine, its ends, its mistakes, and whether its winner is lucky."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

import pytest

from tests.cli.command_line import Hpcml, said_in_one_line

TRAIN = """
import argparse, random, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--kind", default="a")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--pause", type=float, default=0)
parser.add_argument("--bad-pause", type=float)
parser.add_argument("--steps", type=int, default=1)
parser.add_argument("--quiet", action="store_true")
parser.add_argument("--fail-above", type=float, default=9e9)
asked = parser.parse_args()
noise = random.Random(asked.seed + round(asked.x * 1e6)).gauss(0, 0.01)
value = (asked.x - 3) ** 2 + (asked.kind == "b") + noise
pause = asked.bad_pause if asked.bad_pause and value > 9 else asked.pause
for step in range(1, asked.steps + 1):
    if not asked.quiet:
        print(f"step {step} val_loss={value + 1 / step}", flush=True)
    time.sleep(pause / asked.steps)
sys.exit(asked.x > asked.fail_above)
"""
SPACE = ("--x", "0.0..10.0", "--kind", "{a,b}")


@pytest.fixture
def study(hpcml: Hpcml) -> Hpcml:
    """A user with a program to be tuned."""
    (hpcml.cwd / "train.py").write_text(TRAIN)
    return hpcml


def words(*options: str, program: tuple[str, ...] = SPACE, name: str = "s", runs: int = 6) -> list[str]:
    """Return the words of a search of so many points by the printed val_loss."""
    settings = [f"experiment={name}", "telemetry.enabled=false"]
    metric = ["--metric", "val_loss", "--runs", str(runs)]
    return ["tune", *metric, *options, *settings, "--", sys.executable, "train.py", *program]


def answer(hpcml: Hpcml, name: str = "s") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(hpcml("tune", "--again", name, "--json").stdout)
    return found


def test_a_search_of_a_program_of_ones_own_to_the_confirmed_winner(study: Hpcml) -> None:
    done = study(*words("--sampler-seed", "3"))

    assert done.returncode == 0, done.stderr
    assert "study s: 6 of 6 points, 0 under way, best val_loss" in done.stdout
    assert "The best is the winner among 6" in done.stdout
    runs = study.runs()
    assert [run["state"] for run in runs] == ["COMPLETED"] * 6
    points = answer(study)["points"]
    assert [point["uid"] for point in points] == [run["uid"] for run in runs]
    assert len({(point["point"]["x"], point["point"]["kind"]) for point in points}) == 6
    for run, point in zip(runs, points, strict=True):
        assert run["params"]["workload.args.x"] == str(point["point"]["x"])
        assert run["metrics"]["val_loss"]["last"] == point["value"]

    report = study("report", "--experiment", "s", "--md").stdout
    assert "## Search" in report
    assert "Importance" in report or "importance" in report

    unknown = study("tune", "--confirm", "1", "s")
    assert said_in_one_line(unknown).startswith("hpcml: what the program takes for x by itself is not known")
    confirmed = study("tune", "--confirm", "1", "s", "x=9", "kind=b", "--seeds", "3")
    assert confirmed.returncode == 0, confirmed.stderr
    again = [run for run in study.runs() if run["experiment"] == "s-confirm"]
    assert sorted(run["seed"] for run in again) == [1, 1, 2, 2, 3, 3]
    assert "hpcml compare --experiment s-confirm --by x,kind --reference '9 x b'" in confirmed.stdout
    best = min(points, key=lambda point: point["value"])["point"]
    assert any(line.startswith(f"{best['x']:g} x {best['kind']} ") for line in confirmed.stdout.splitlines())
    twice = study("tune", "--confirm", "1", "s", "x=9", "kind=b", "--seeds", "3")
    assert len([run for run in study.runs() if run["experiment"] == "s-confirm"]) == 6, twice.stdout


def test_a_recipe_is_tuned_by_its_settings_and_confirmed_against_its_own_defaults(hpcml: Hpcml) -> None:
    settings = ("model=mnist_mlp", "training.steps=20", "telemetry.enabled=false")
    space = ("training.learning_rate=log(1e-3..1e-1)", "training.batch_size={16,32}")

    done = hpcml("tune", "--runs", "2", "experiment=r", *settings, *space)

    assert done.returncode == 0, done.stderr
    assert "best val_accuracy" in done.stdout
    confirmed = hpcml("tune", "--confirm", "1", "r", "--seeds", "3")
    assert confirmed.returncode == 0, confirmed.stderr
    rates = {run["params"]["training.learning_rate"] for run in hpcml.runs() if run["experiment"] == "r-confirm"}
    assert len(rates) == 2


def test_ctrl_c_leaves_all_going_and_another_look_goes_on(study: Hpcml) -> None:
    process = study.start(*words("--in-flight", "2", program=(*SPACE, "--pause", "1")))
    deadline = time.monotonic() + 120
    while not list(study.home.glob("runs/s/*/run.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]

    assert process.returncode == 130, said
    assert "hpcml tune --again s submits what is missing" in said
    while (known := answer(study))["under_way"] and time.monotonic() < deadline:
        assert known["under_way"] <= 2
        time.sleep(0.2)
    assert len(known["points"]) == 6
    assert all(point["value"] is not None for point in known["points"])


def test_a_study_that_is_stopped_elsewhere_ends_the_command_in_the_foreground(study: Hpcml) -> None:
    process = study.start(*words("--in-flight", "1", program=(*SPACE, "--pause", "2")))
    deadline = time.monotonic() + 120
    while not list(study.home.glob("runs/s/*/run.json")) and time.monotonic() < deadline:
        time.sleep(0.1)

    assert study("tune", "--stop", "s").returncode == 0
    said = process.communicate(timeout=120)[1]

    assert (process.returncode, "study s was stopped" in said) == (1, True), said
    assert len(study.runs()) < 6


def test_sync_goes_on_with_a_study_until_it_is_stopped(study: Hpcml) -> None:
    study(*words("--once", "--in-flight", "2"))
    study("wait")

    done = study("sync")
    study("wait")

    assert "study s: 4 of 6 points, 2 under way" in done.stdout
    assert study("tune", "--stop", "s").returncode == 0
    study("sync")
    assert len(study.runs()) == 4
    stopped = study("tune", "--again", "s")
    assert (stopped.returncode, "was stopped" in stopped.stderr) == (1, True)
    study(*words())
    assert len(study.runs()) == 6


def test_looks_may_be_jobs_each_behind_the_oldest_run(study: Hpcml) -> None:
    begun = study(*words("--chain", "resources.cpus_per_task=1 resources.walltime=5m", "--in-flight", "2"))

    assert begun.returncode == 0, begun.stderr
    deadline = time.monotonic() + 240
    while any(run["state"] in ("PENDING", "RUNNING") for run in study.runs()) and time.monotonic() < deadline:
        time.sleep(0.5)
    ends = [(run["experiment"], run["state"]) for run in study.runs()]
    assert ends.count(("s", "COMPLETED")) == 6
    assert set(ends) == {("s", "COMPLETED"), ("s-looks", "COMPLETED")}


def test_more_points_are_asked_for_by_the_same_words(study: Hpcml) -> None:
    study(*words(runs=2))
    study(*words(runs=3))
    other = study(*words(program=("--x", "0.0..5.0")))

    assert len(study.runs()) == 3
    assert other.returncode == 2
    assert said_in_one_line(other).startswith("hpcml: experiment=s is a study with another command line")


def test_an_experiment_with_runs_is_no_study(study: Hpcml) -> None:
    study("run", "experiment=s", "telemetry.enabled=false", "--", sys.executable, "train.py", "--x", "1")

    done = study(*words())

    assert done.returncode == 2
    assert said_in_one_line(done).startswith("hpcml: experiment=s has runs already")
    assert not list(study.home.glob("studies/*"))


def test_a_metric_that_nobody_reports_stops_the_search_after_three(study: Hpcml) -> None:
    done = study(*words("--in-flight", "1", program=(*SPACE, "--quiet")))

    assert done.returncode == 1
    assert len(study.runs()) == 3
    assert "none of the 3 runs that ended has a number for val_loss" in done.stderr


def test_runs_that_fail_stop_the_search_after_three_and_some_do_not(study: Hpcml) -> None:
    all_of_them = study(*words("--in-flight", "1", program=(*SPACE, "--fail-above", "-1")))
    some = study(*words("--in-flight", "1", program=(*SPACE, "--fail-above", "5"), name="t"))

    assert (all_of_them.returncode, "all 3 runs that ended failed" in all_of_them.stderr) == (1, True)
    assert some.returncode == 0, some.stderr
    outcomes = {point["outcome"]: point["value"] for point in answer(study, "t")["points"]}
    assert outcomes["failed"] is None
    assert outcomes["told"] is not None


def test_a_run_that_falls_behind_is_cancelled_and_told_as_pruned(study: Hpcml) -> None:
    program = ("--x", "{3,3.1,2.9,3.2,2.8,9,8}", "--steps", "8", "--bad-pause", "120")

    done = study(*words("--sampler", "grid", "--prune", "median", "--in-flight", "2", program=program, runs=7))

    assert done.returncode == 0, done.stderr
    ends = [(point["point"]["x"], point["outcome"], point["state"]) for point in answer(study)["points"]]
    assert ends == [
        *((x, "told", "COMPLETED") for x in ("3", "3.1", "2.9", "3.2", "2.8")),
        *((x, "pruned", "CANCELLED") for x in ("9", "8")),
    ]


def test_a_budget_holds_back_what_could_exceed_it(study: Hpcml) -> None:
    refused = study(*words("--budget", "1nodeh"))
    assert said_in_one_line(refused).startswith(
        "hpcml: schedule.budget=1nodeh of experiment s is reckoned by walltimes"
    )
    assert not list(study.home.glob("studies/*"))

    first = study(*words("--budget", "1nodeh", "--once", "--in-flight", "4", "resources.walltime=30m"))
    assert first.returncode == 0, first.stderr
    assert len(study.runs()) == 2
    study("wait")
    too_many = study(
        *("run", "-m", "experiment=s", "schedule.budget=1nodeh", "resources.walltime=30m", "seed=0,1,2"),
        *("--", sys.executable, "train.py", "--x", "1"),
    )
    assert too_many.returncode == 2
    assert "node-hours are left behind 1 more, and 3 runs are asked for" in too_many.stderr


def test_the_budget_of_a_home_holds_for_every_sweep(study: Hpcml) -> None:
    (study.cwd / "hpcml.yaml").write_text("budget: 1nodeh\n")

    done = study("run", "-m", "seed=0,1,2", "resources.walltime=30m", "--", sys.executable, "train.py", "--x", "1")

    assert done.returncode == 2
    assert "the budget of this home (hpcml.yaml): 0 of 1 node-hours are left behind 2 more" in done.stderr
    assert study.runs() == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--metric", "loss", "--", "python", "train.py", "--x", "1..0"], "--x 1..0: the range is upside down"),
        (["--metric", "loss", "--", "python", "train.py", "--x", "log(0..1)"], "there is no logarithm of 0"),
        (["--metric", "loss", "--", "python", "train.py", "--x", "1"], "nothing is searched"),
        (["--", "python", "train.py", "--x", "0..1"], "say what is searched for: --metric NAME"),
        (["--metric", "depth", "--", "python", "train.py", "--x", "0..1"], "which way depth is better"),
        (["--metric", "loss", "--until", "noon", "--", "python", "train.py", "--x", "0..1"], "--until noon"),
        (["--again", "nobody"], "no study is called 'nobody'"),
        (["--again", "nobody", "seed=1"], "a study has its command line"),
        (["--confirm", "1"], "say which study"),
        (["precision={fp32,half}"], "half"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(study: Hpcml, options: list[str], why: str) -> None:
    done = study("tune", *options)

    assert done.returncode == 2, (done.stdout, done.stderr)
    assert why in done.stderr.splitlines()[-1]
    assert not list(study.home.glob("studies/*"))
    assert not list(study.home.glob("runs/*/*"))
