"""``schedule.until=verdict``: seeds in rounds until planned looks decide, and looks that nobody planned."""

from __future__ import annotations

import json
from itertools import count

from tests.cli.command_line import Hpcml, said_in_one_line
from tests.cli.kills import run_killed
from tests.effort import times

METRIC = r'workload.metrics=[{pattern: "acc (?P<val_accuracy>\S+)"}]'
WORDS = ("seed=range(8)", "objective.margin=0.01", "schedule.until=verdict", METRIC)
PROGRAM = ("--", "sh", "arm.sh", "--arm", "a,b", "--seed", "{seed}")
# b is above a by 0.0045 in even seeds, below it in odd ones: four seeds do not show that they are equal, five do.
SCRIPT = """
awk -v arm=$2 -v seed=$4 'BEGIN { print "acc", 0.9 + seed / 1000 + (arm == "b" ? (seed % 2 ? -0.0045 : 0.0045) : 0) }'
"""
STRIDE = times(45, 3)  # changes between two kills


def planned(hpcml: Hpcml, *flags: str) -> tuple[str, ...]:
    (hpcml.cwd / "arm.sh").write_text(SCRIPT)
    return ("run", "-m", *flags, "experiment=e", *WORDS, *PROGRAM)


def test_seeds_come_in_rounds_until_the_verdict_is_there(hpcml: Hpcml) -> None:
    done = hpcml(*planned(hpcml))

    assert done.returncode == 0, done.stderr
    assert "looks at 4, 5, 7, 8 seeds, at levels 0.012, 0.013, 0.026, 0.031" in done.stderr
    assert "e: look 1 of 4 with 4 seeds: b inconclusive, goes on" in done.stdout
    assert "e: look 2 of 4 with 5 seeds: b equivalent, shown" in done.stdout
    assert len(hpcml.runs()) == 10

    compared = json.loads(hpcml("compare", "--experiment", "e", "--json").stdout)["cells"][0]["rows"][1]
    assert (compared["verdict"], compared["exploratory"]) == ("equivalent", None)
    look = compared["look"]
    assert (look["number"], look["of"], look["n"], look["stop"]) == (2, 4, 5, "shown")
    assert abs(look["level"] - 0.0126) < 1e-4
    told = " ".join(hpcml("compare", "--experiment", "e").stdout.split())
    assert "look 2 of 4 at 5 seeds, level 0.013: shown" in told

    again = hpcml(*planned(hpcml))
    assert again.returncode == 0
    assert "e is decided: b equivalent, shown at look 2" in again.stderr
    changed = hpcml("run", "-m", "experiment=e", *WORDS, "objective.margin=0.02", *PROGRAM)
    assert changed.returncode == 2
    assert "planned with objective.margin=0.01, not 0.02" in changed.stderr.splitlines()[-1]
    assert len(hpcml.runs()) == 10

    afterwards = hpcml("compare", "--experiment", "e", "--margin", "0.02", "--json")
    row = json.loads(afterwards.stdout)["cells"][0]["rows"][1]
    assert row["exploratory"] == "the looks of experiment e were planned for margin 0.01, not 0.02"


def test_whenever_it_is_killed_no_seed_runs_twice_and_none_too_many(hpcml: Hpcml) -> None:
    words = planned(hpcml, "--detach")
    for command, runs in ((words, 8), (("sync",), 10), (("sync",), 10)):
        kills = 0
        for limit in count(STRIDE // 2, STRIDE):
            done = run_killed(hpcml, limit, *command)
            assert done.returncode in (0, -9), done.stderr
            if done.returncode == 0:
                break
            kills += 1
        assert kills or command == ("sync",)
        assert hpcml("sync").returncode == 0
        assert hpcml("wait").returncode == 0
        assert len(hpcml.runs()) == runs, command
    assert {run["state"] for run in hpcml.runs()} == {"COMPLETED"}
    assert len({(run["seed"], run["spec_hash"]) for run in hpcml.runs()}) == 10


def test_bad_plans_are_refused_in_one_line_before_anything_is_written(hpcml: Hpcml) -> None:
    (hpcml.cwd / "arm.sh").write_text(SCRIPT)
    for words, told in (
        (("seed=range(3)", "objective.margin=0.01"), "seed: schedule.until=verdict has 3 to add"),
        (("seed=range(8)",), "needs objective.margin"),
        (("seed=range(8)", "objective.margin=0.01", "schedule.repeats=2"), "schedule.repeats=2"),
        (("seed=range(8)", "objective.margin=0.01", "schedule.claim=equal"), "schedule.claim=equal: choose"),
        (("seed=range(8)", "objective.margin=0.01", "schedule.reference=c"), "reference c is none of 1, 2"),
        (("seed=range(8)", "objective.margin=0.01", "training.steps=1,2"), "say which is compared"),
        (("seed=range(8)", "objective.margin=0.01", "training.batch_size=1"), "has one arm"),
    ):
        arms = () if any(word.startswith("training.") for word in words[2:]) else ("training.batch_size=1,2",)
        more = ("training.batch_size=1,2",) if words[-1] == "training.steps=1,2" else ()
        done = hpcml("run", "-m", *words, *arms, *more, "schedule.until=verdict", "workload.command='sh arm.sh {seed}'")
        assert done.returncode == 2, (words, done.stderr)
        assert told in said_in_one_line(done), (words, done.stderr)
    assert not hpcml.home.exists()


def test_a_second_look_at_grown_data_is_called_exploratory(hpcml: Hpcml) -> None:
    (hpcml.cwd / "arm.sh").write_text(SCRIPT)

    def row() -> dict[str, object]:
        done = hpcml("compare", "--experiment", "e", "--by", "arm", "--json")
        found: dict[str, object] = json.loads(done.stdout)["cells"][0]["rows"][1]
        return found

    plain = ("run", "-m", "experiment=e", "objective.margin=0.01", METRIC)
    assert hpcml(*plain, "seed=range(3)", *PROGRAM).returncode == 0
    assert [row()["exploratory"] for _ in range(2)] == [None, None]  # the same data are no second look

    assert hpcml(*plain, "seed=3", *PROGRAM).returncode == 0

    assert "looked at before with n = 3" in str(row()["exploratory"])
    told = " ".join(hpcml("compare", "--experiment", "e", "--by", "arm").stdout.split())
    assert "exploratory" in told
