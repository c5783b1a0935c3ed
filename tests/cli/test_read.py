"""Metrics of runs that have ended, read from what they printed and wrote: as if it had been asked for in time."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import pytest

from tests.cli.command_line import Hpcml, program, said_in_one_line
from tests.cli.test_annotate import shown, without_the_store

TRAINS = """
import sys, time
scale = int(sys.argv[1])
with open("history.dat", "w") as file:
    file.write("epoch,acc,time\\n")
    for epoch in range(1, 5):
        file.write(f"{epoch},{0.5 + epoch / 10 + scale / 100},{time.time()}\\n")
        print(f"[{epoch}] train loss={1 / epoch + scale / 10} | lr 0.1", flush=True)
print("done", file=sys.stderr)
"""
TRAIN = ("--", sys.executable, "train.py", "{scale}")
RULE = 'workload.metrics=[{pattern: "^.(?P<step>\\d+).*loss=(?P<loss>\\S+)"}]'
FILE = "workload.metrics_from=[auto,history.dat]"


@pytest.fixture
def ended(hpcml: Hpcml) -> list[str]:
    """Return the ids of two runs, of which nothing was read while they ran."""
    (hpcml.cwd / "train.py").write_text(TRAINS)
    done = hpcml("run", "-m", "args.scale=1,2", "experiment=late", *TRAIN)
    assert done.returncode == 0, done.stderr
    assert f"hpcml read --submission {hpcml.runs()[0]['submission']} " in done.stderr
    return [run["uid"] for run in hpcml.runs()]


def curve(hpcml: Hpcml, uid: str, metric: str) -> list[tuple[int, float]]:
    done = hpcml("show", uid, "--curve", metric, "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["curves"]
    return [(point["step"], point["value"]) for point in found["points"]]


def test_what_was_printed_is_read_as_it_would_have_been_in_time(hpcml: Hpcml, ended: list[str]) -> None:
    in_time = hpcml("run", "args.scale=1", "experiment=in_time", RULE, *TRAIN)
    done = hpcml("read", "--experiment", "late", RULE)

    assert (in_time.returncode, done.returncode, done.stderr) == (0, 0, "")
    assert done.stdout == "2 of 2 runs: 8 values of loss\n"
    (timely,) = (run["uid"] for run in hpcml.runs() if run["experiment"] == "in_time")
    assert curve(hpcml, ended[0], "loss") == curve(hpcml, timely, "loss") == [(n, 1 / n + 0.1) for n in range(1, 5)]


def test_it_outlives_the_store_and_changes_nothing_of_how_the_run_went(hpcml: Hpcml, ended: list[str]) -> None:
    told = ("state", "attempt", "t_start", "t_end", "wall_s", "tags")
    before = {key: shown(hpcml, ended[0])[key] for key in told}

    assert hpcml("read", ended[0], RULE, FILE).returncode == 0
    found = shown(hpcml, ended[0])
    without_the_store(hpcml)
    assert hpcml("sync").returncode == 0

    assert {key: found[key] for key in told} == before
    assert shown(hpcml, ended[0]) == found
    assert set(found["metrics"]) == {"loss", "acc"}


def test_nobody_knows_when_a_line_was_printed_but_a_file_may_say_when_its_rows_came(
    hpcml: Hpcml, ended: list[str]
) -> None:
    assert hpcml("read", *ended, RULE, FILE).returncode == 0

    def race(metric: str, target: str) -> dict[str, Any]:
        done = hpcml("compare", "--by", "scale", "--metric", metric, "--target", target, "--json")
        assert done.returncode == 0, done.stderr
        row: dict[str, Any] = json.loads(done.stdout)["cells"][0]["rows"][0]
        return row

    by_file, by_print = race("acc", "0.8")["to_target"], race("loss", "0.5")["to_target"]
    assert (by_file["reached"], by_print["reached"]) == (1, 1)
    assert by_file["median_s"] is not None
    assert by_print["median_s"] is None
    said = "loss of 1 of 1 runs was read afterwards"
    assert any(flag["text"].startswith(said) for flag in race("loss", "0.5")["flags"])
    assert not any("read afterwards" in flag for flag in race("acc", "0.8")["flags"])


def test_what_a_run_has_already_stays_until_it_is_taken_back(hpcml: Hpcml, ended: list[str]) -> None:
    wrong = 'workload.metrics=[{pattern: "lr (?P<value>\\S+)", name: loss}]'
    assert hpcml("read", *ended, wrong).stdout == "2 of 2 runs: 8 values of loss\n"

    again = hpcml("read", *ended, RULE)
    assert (again.returncode, again.stdout) == (1, "0 of 2 runs\n")
    assert "loss is there already, and stays" in said_in_one_line(again)
    taken_back = hpcml("read", *ended, "--forget")
    assert [line.split()[0] for line in taken_back.stdout.splitlines()] == ended
    assert hpcml("read", *ended, "--forget").returncode == 1
    assert shown(hpcml, ended[0])["metrics"] == {}

    assert hpcml("read", *ended, RULE).returncode == 0
    assert curve(hpcml, ended[1], "loss")[0] == (1, 1.2)


def test_of_a_name_that_was_printed_and_is_in_a_file_what_was_printed_is_read(hpcml: Hpcml, ended: list[str]) -> None:
    done = hpcml("read", ended[0], RULE.replace("P<loss>", "P<acc>"), FILE)

    assert done.stdout == "1 of 1 runs: 4 values of acc\n"
    assert "acc is read from what it printed, and not from its files, too" in said_in_one_line(done)


def test_the_examples_of_its_help_are_lines_of_a_shell(hpcml: Hpcml) -> None:
    lines = [line.strip() for line in hpcml("read", "--help").stdout.splitlines()]

    assert "hpcml read 222k7wz9 workload.metrics='[{pattern: \"loss (?P<loss>\\S+)\"}]'" in lines


def test_what_cannot_be_read_is_said_once_for_all_runs_and_writes_nothing(hpcml: Hpcml, ended: list[str]) -> None:
    journals = hpcml.home / "runs" / "late" / ended[0] / "journal"
    before = sorted(journals.iterdir())

    unmatched = hpcml("read", *ended, 'workload.metrics=[{pattern: "accuracy (?P<acc>\\S+)"}]')
    read_in_time = hpcml("read", *ended, "workload.metrics_from=auto")
    missing = hpcml("read", *ended, "workload.metrics_from=other.csv")

    assert [done.returncode for done in (unmatched, read_in_time, missing)] == [1, 1, 1]
    assert "2 of 2 runs, as " in said_in_one_line(unmatched)
    assert "no line that it printed matches" in unmatched.stderr
    assert "its workload.metrics_from had auto" in said_in_one_line(read_in_time)
    assert "the program wrote no such file" in said_in_one_line(missing)
    assert sorted(journals.iterdir()) == before


def test_where_no_file_is_left_that_is_said_and_not_that_none_was_written(hpcml: Hpcml) -> None:
    (hpcml.cwd / "bare.py").write_text("open('notes.txt', 'w').write('x')")
    done = hpcml("run", "experiment=bare", "workload.metrics_from=[]", "--", sys.executable, "bare.py")
    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()

    none_found = hpcml("read", "@1", "workload.metrics_from=auto")
    shutil.rmtree(f"{run['path']}/work")
    all_gone = hpcml("read", "@1", "workload.metrics_from=history.dat")

    assert (none_found.returncode, all_gone.returncode) == (1, 1)
    assert "no file of metrics is among what it wrote" in said_in_one_line(none_found)
    assert "of its working directory nothing is left" in said_in_one_line(all_gone)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["@1"], "say which runs, and either what is read or --forget"),
        (["@1", 'workload.metrics=[{pattern: "("}]'], "is no regular expression"),
        (["@1", "workload.metrics=loss"], "workload.metrics[0]='loss' is no table"),
        (["@1", "workload.metrics_from=../other.csv"], "inside the working directory"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(hpcml: Hpcml, ended: list[str], words: list[str], said: str) -> None:
    assert ended

    done = hpcml("read", *words)

    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]


def test_a_run_that_has_not_ended_is_left_alone(hpcml: Hpcml) -> None:
    code = "print('loss=1', flush=True); import time; time.sleep(60)"
    assert hpcml("run", "experiment=on", "--detach", program(code)).returncode == 0

    done = hpcml("read", "--experiment", "on", 'workload.metrics=[{pattern: "loss=(?P<loss>\\S+)"}]')

    assert done.returncode == 1
    assert "it is read once it has ended" in said_in_one_line(done)
    assert hpcml("cancel", "--experiment", "on", "-y").returncode == 0
