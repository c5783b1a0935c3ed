"""runs, show, diff and query as a user types them."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from hpcml.model.precision import PrecisionName
from hpcml.model.run import Precision
from tests.cli.command_line import HPCML, Hpcml, said_in_one_line
from tests.store.building import T0, Journal, make_run_dir

UIDS = {letter: f"20260528-202640-{letter * 8}" for letter in "abcd"}


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    """A user with four runs: two of each precision, the last of which waits."""
    user = Hpcml(environ=hpcml_environ, cwd=tmp_path)
    for at, (letter, uid) in enumerate(UIDS.items()):
        precision = Precision(name=PrecisionName.fp32 if letter in "ab" else PrecisionName.tf32)
        run_dir = make_run_dir(user.home / "runs", uid, seed=at, precision=precision, tags=["paper"] * (at % 2))
        if letter == "d":
            Journal(run_dir, writer="launch").event("submitted", scheduler="slurm", job_id="7")
            continue
        agent, rank0 = Journal(run_dir, writer="agent"), Journal(run_dir, t0=T0 + 1)
        agent.event("attempt_started")
        agent.event("facts", gpu_model="A100" if at else "H100")
        for step in range(20):
            rank0.metrics(step, step, val_accuracy=0.9 + at / 100 - math.exp(-step), loss=math.exp(-step))
        agent.event("attempt_ended", 10.0, state="COMPLETED", exit_code=0, wall_s=10.0 + at)
    return user


@pytest.mark.parametrize(
    "command",
    [
        *("runs --best", "show --curve", "compare", "plan", "scaling", "peak", "report"),
        "export --to csv -o there",
    ],
)
def test_who_refuses_a_selection_that_finds_nothing_says_both_in_one_line(hpcml: Hpcml, command: str) -> None:
    done = hpcml(*command.split(), "--experiment", "studdy")

    said = said_in_one_line(done)
    assert done.returncode == 2
    assert said.startswith("hpcml: no run matches: ")
    assert "; no run is of the experiment 'studdy'" in said


def test_a_state_that_does_not_exist_is_answered_with_the_likely_one(hpcml: Hpcml) -> None:
    assert said_in_one_line(hpcml("runs", "--state", "complted")).endswith(
        "'complted' is no state: did you mean COMPLETED?"
    )
    assert "choose PENDING, RUNNING" in said_in_one_line(hpcml("runs", "--state", "xyz"))


def test_where_no_run_can_be_read_it_is_not_said_that_there_are_none(hpcml: Hpcml) -> None:
    for run in hpcml.runs():
        (Path(run["path"]) / "run.json").write_text("{")

    done = hpcml("runs")

    assert done.stderr.splitlines()[-1] == "no run here can be read"


def letters(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return "".join(record["uid"][-1] for record in json.loads(done.stdout))


def test_runs_are_chosen_sorted_limited_and_shown_in_the_columns_asked_for(hpcml: Hpcml) -> None:
    where = "precision=fp32 and val_accuracy>0.9 or state=pending"

    assert letters(hpcml("runs", "--json", "--where", where)) == "bd"
    assert letters(hpcml("runs", "--json", "--where", "precision=fp32", "--where", "tag=paper")) == "b"
    assert letters(hpcml("runs", "--json", "--sort", "loss.max", "--desc", "--limit", "2")) in ("ba", "ab", "cb", "ca")
    columns = ["runs", "--columns", "uid,precision,val_accuracy.max,tag", "--sort", "seed", "--desc", "--limit", "2"]
    as_json = hpcml(*columns, "--json")
    assert [list(record) for record in json.loads(as_json.stdout)] == [
        ["uid", "precision", "val_accuracy.max", "tag"]
    ] * 2
    as_csv = list(csv.DictReader(io.StringIO(hpcml(*columns, "--csv").stdout)))
    assert [(line["precision"], line["val_accuracy.max"], line["tag"]) for line in as_csv] == [
        ("tf32", "", '["paper"]'),
        ("tf32", str(0.92 - math.exp(-19)), "[]"),
    ]
    assert "| tf32 | 0.920000 |" in hpcml(*columns, "--md").stdout
    assert hpcml(*columns).stdout.splitlines()[0].split() == ["uid", "precision", "val_accuracy.max", "tag"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["runs", "--where", "precision=fp32 seed=1"], "at character 16, 'seed=1'"),
        (["runs", "--where", "presicion=fp32"], "did you mean precision"),
        (["runs", "--columns", "uid,val_acuracy"], "did you mean val_accuracy"),
        (["show", "--experiment", "x"], "shows one run"),
        (["diff", "aaaaaaaa", "nobody"], "no run is called 'nobody'"),
        (["query", "SELECT * FROM rusn"], "did you mean runs"),
    ],
)
def test_what_cannot_be_answered_is_said_in_one_line(hpcml: Hpcml, words: list[str], says: str) -> None:
    done = hpcml(*words)

    assert (done.returncode, done.stdout) == (2, "")
    assert says in said_in_one_line(done)


def test_the_best_runs_are_found_with_and_without_groups(hpcml: Hpcml) -> None:
    best = json.loads(hpcml("runs", "--best", "--json").stdout)
    grouped = json.loads(hpcml("runs", "--best", "--by", "precision", "--json").stdout)
    least = hpcml("runs", "--best", "loss", "--goal", "max", "--limit", "1", "--where", "precision=fp32")

    assert [each["uid"][-1] for each in best["ranked"]] == ["c", "b", "a"]
    assert (best["metric"], best["goal"], best["candidates"], best["without"]) == ("val_accuracy", "max", 3, 1)
    assert [(each["group"], each["uid"][-1]) for each in grouped["ranked"]] == [
        ({"precision": "tf32"}, "c"),
        ({"precision": "fp32"}, "b"),
    ]
    assert least.stdout.count("\n") == 2
    narrow = hpcml("runs", "--best", "--by", "precision", COLUMNS="80").stdout
    assert narrow.startswith("in all: ")  # what is the same in all rows is said once
    assert "2 runs with loss; max of the value that a run ended with" in least.stderr
    assert len(list(csv.DictReader(io.StringIO(hpcml("runs", "--best", "--csv").stdout)))) == 3
    assert hpcml("runs", "--best", "--md", "aaaaaaaa", "bbbbbbbb").stdout.count("\n") == 4


def test_curves_are_drawn_here_and_told_to_programs(hpcml: Hpcml) -> None:
    drawn = hpcml("show", "aaaaaaaa", "cccccccc", "--curve", "loss")
    told = json.loads(hpcml("show", "--curve", "--where", "not state=pending", "--json").stdout)
    thin = list(csv.DictReader(io.StringIO(hpcml("show", "aaaa", "--curve", "loss", "--points", "3", "--csv").stdout)))

    assert "█" in drawn.stdout.splitlines()[1]
    assert told["metric"] == "val_accuracy"
    assert [(one["uid"], len(one["points"])) for one in told["curves"]] == [(UIDS[letter], 20) for letter in "abc"]
    assert [(line["step"], line["t_s"]) for line in thin] == [("0", "1.0"), ("9", "10.0"), ("19", "20.0")]
    assert float(thin[0]["loss"]) == 1.0
    assert "█" in hpcml("show", "aaaaaaaa", "--curve", "loss", "--md").stdout


def test_two_runs_are_set_side_by_side(hpcml: Hpcml) -> None:
    differing = json.loads(hpcml("diff", "aaaaaaaa", "cccccccc", "--json").stdout)
    everything = json.loads(hpcml("diff", "aaaaaaaa", "cccccccc", "--all", "--json").stdout)

    assert differing["settings"] == {"precision.name": ["fp32", "tf32"], "seed": [0, 2]}
    assert differing["environment"] == {"gpu_model": ["H100", "A100"]}
    assert differing["outcome"]["wall_s"] == [10.0, 12.0]
    assert "metrics.loss" not in differing["outcome"]
    assert everything["settings"]["model.name"] == ["digits_cnn", "digits_cnn"]
    shown = hpcml("diff", "aaaaaaaa", "cccccccc")
    assert "more are alike" in shown.stdout
    assert hpcml("diff", "aaaaaaaa", "aaaaaaaa").stdout == "the two do not differ\n"
    assert "settings,seed,0,2" in hpcml("diff", "aaaaaaaa", "cccccccc", "--csv").stdout
    assert "| seed | 0 | 2 |" in hpcml("diff", "aaaaaaaa", "cccccccc", "--md").stdout


def test_sql_is_answered_in_every_form_and_from_standard_input(hpcml: Hpcml) -> None:
    sql = "SELECT precision, count(*) AS n FROM runs JOIN metrics USING (uid) WHERE metric = 'loss' GROUP BY precision"

    assert json.loads(hpcml("query", sql, "--json").stdout) == [
        {"precision": "fp32", "n": 2},
        {"precision": "tf32", "n": 1},
    ]
    assert hpcml("query", sql, "--csv").stdout == "precision,n\nfp32,2\ntf32,1\n"
    assert hpcml("query", sql).stdout.splitlines() == ["precision  n", "fp32       2", "tf32       1"]
    assert "| fp32 | 2 |" in hpcml("query", sql, "--md").stdout
    piped = subprocess.run(
        [*HPCML, "query", "-", "--csv"],
        input=sql,
        env=hpcml.environ,
        cwd=hpcml.cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert piped.stdout == "precision,n\nfp32,2\ntf32,1\n"


def test_what_can_be_asked_in_sql_is_listed_and_is_there(hpcml: Hpcml) -> None:
    views = json.loads(hpcml("query", "--json").stdout)
    assert not (hpcml.home / "store.db").exists()  # for that no store is needed
    hpcml("runs")

    with sqlite3.connect(hpcml.home / "store.db") as connection:
        there = {
            name: [column[1] for column in connection.execute(f"PRAGMA table_info({name})")]
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'")
        }

    assert {view["view"]: view["columns"].split(", ") for view in views} == there
    page = (Path(__file__).parents[2] / "docs" / "store.md").read_text(encoding="utf-8")
    for name, columns in there.items():
        documented = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert len(documented) == 1, name
        assert documented[0].split("|")[3].replace("`", "").replace(",", " ").split() == columns


@pytest.mark.parametrize("columns", ["", "0", "1", "2"])
def test_a_terminal_that_tells_no_width_or_next_to_none_gets_its_tables(hpcml: Hpcml, columns: str) -> None:
    for words in (["runs"], ["compare", "--by", "precision", "--allow-mixed"]):
        told = hpcml(*words, COLUMNS=columns)

        assert (told.returncode, told.stdout != "") == (0, True), told.stderr


@pytest.mark.skipif(not os.access("/sys/fs/cgroup/pids", os.W_OK), reason="needs a cgroup of processes to make")
def test_where_no_process_can_be_started_that_is_one_line(hpcml: Hpcml) -> None:
    group = Path("/sys/fs/cgroup/pids") / f"hpcml-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        (group / "pids.max").write_text("1")
        inside = ["bash", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "bash", *HPCML, "run", "--", "true"]
        done = subprocess.run(inside, env=hpcml.environ, cwd=hpcml.cwd, capture_output=True, text=True, check=False)
    finally:
        group.rmdir()

    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    said = "hpcml: no more processes or threads can be started here (ulimit -u, or the limit of a session)"
    assert done.stderr.splitlines()[-1].startswith(said)


def test_a_limit_on_the_length_of_files_is_told_as_one(hpcml: Hpcml) -> None:
    hpcml("runs")

    limited = ["bash", "-c", 'ulimit -f 10; exec "$@"', "bash", *HPCML, "runs"]
    done = subprocess.run(limited, env=hpcml.environ, cwd=hpcml.cwd, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "no file may be longer than 10 KiB here (ulimit -f)" in done.stderr
    assert len(done.stderr.splitlines()) == 1
