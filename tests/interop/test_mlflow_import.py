from __future__ import annotations

import json
import math
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hpcml.interop.mlflow_import import typed
from tests.cli.command_line import Hpcml, said_in_one_line
from tests.interop.exchanging import EVIL, OPEN, PLAIN, real
from tests.store.building import Journal, make_run_dir

pytestmark = pytest.mark.filterwarnings("default")  # MLflow's own
START = 1_700_000_000_000
ODD_NAME = "Vision / über & <b>"
IN_EITHER = pytest.mark.parametrize("store", ["mlruns", "mlflow.db"], indirect=True)


def address_of(path: Path) -> str:
    return f"sqlite:///{path}" if path.suffix == ".db" else path.as_uri()


class Mlflow:
    """A file store, or a database, that MLflow itself writes and reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.client = real("mlflow.tracking").MlflowClient(tracking_uri=address_of(path))
        self._entities = real("mlflow.entities")

    def run(self, experiment: str, number: int, *, status: str | None = "FINISHED", steps: int = 4, **more: str) -> str:
        found = self.client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found else self.client.create_experiment(experiment)
        tags = {"mlflow.user": "grace", "team": "vision", "mlflow.source.git.commit": "c0ffee"}
        begun_ms = START + number * 1000
        run = self.client.create_run(experiment_id, start_time=begun_ms, run_name=f"try {number}", tags=tags)
        run_id = str(run.info.run_id)
        params = {"lr": "0.1", "seed": str(number), "optimizer/name": "adam", "precision": "tf32", **more}
        self.client.log_batch(run_id, params=[self._entities.Param(*pair) for pair in params.items()])
        self.log(run_id, begun_ms, range(steps))
        if status:
            self.client.set_terminated(run_id, status, end_time=begun_ms + 60_000)
        return run_id

    def log(self, run_id: str, begun_ms: int, steps: range) -> None:
        for step in steps:
            self.client.log_metric(run_id, "val/accuracy", step / 10, timestamp=begun_ms + step * 100, step=step)
            self.client.log_metric(run_id, "loss", 1 / (step + 1), timestamp=begun_ms + step * 100, step=step)


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mlflow:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)  # where MLflow puts the files of runs that it has in a database
    return Mlflow(tmp_path / getattr(request, "param", "mlruns"))


def imported(hpcml: Hpcml, store: Mlflow, *words: str) -> str:
    done = hpcml("import", str(store.path), *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def known(hpcml: Hpcml) -> dict[str, dict[str, Any]]:
    """Return the imported runs by MLflow's id."""
    return {run["facts"]["mlflow_run_id"]: run for run in hpcml.runs() if "mlflow_run_id" in run["facts"]}


def curves(hpcml: Hpcml, uid: str) -> dict[str, Any]:
    (run,) = json.loads(hpcml("export", "--to", "json", uid).stdout)["runs"]
    found: dict[str, Any] = run["curves"]
    return found


def test_of_an_imported_run_it_is_not_said_that_it_has_not_started(hpcml: Hpcml, store: Mlflow) -> None:
    run_id = store.run("vision", 0, status="FAILED")
    imported(hpcml, store)

    done = hpcml("logs", known(hpcml)[run_id]["uid"])

    assert done.returncode == 2
    assert said_in_one_line(done).endswith("no output of rank 0: it was imported, and what it printed was not")


@IN_EITHER
def test_params_metrics_tags_times_and_status_are_what_mlflow_reads(hpcml: Hpcml, store: Mlflow) -> None:
    ids = {
        status: store.run("vision", seed, status=status) for seed, status in enumerate(("FINISHED", "FAILED", "KILLED"))
    }
    ids["RUNNING"] = store.run("vision", 3, status=None)

    assert imported(hpcml, store) == "4 runs imported, 0 with news, 0 unchanged; 32 points"

    runs = known(hpcml)
    states = {status: runs[run_id]["state"] for status, run_id in ids.items()}
    assert states == {"FINISHED": "COMPLETED", "FAILED": "FAILED", "KILLED": "CANCELLED", "RUNNING": "LOST"}
    run = runs[ids["FINISHED"]]
    assert (run["experiment"], run["name"], run["seed"], run["precision"]) == ("vision", "try 0", 0, "tf32")
    assert (run["scheduler"], run["numerics"], run["precision_effective"]) == ("imported", "unproven", None)
    assert (run["params"]["lr"], run["params"]["optimizer/name"]) == (0.1, "adam")
    assert (run["t_start"], run["t_end"], run["wall_s"]) == (START / 1000, START / 1000 + 60, 60.0)
    assert (run["tags"], run["git_commit"]) == (["team=vision"], "c0ffee")
    for metric in ("loss", "val/accuracy"):
        theirs = store.client.get_metric_history(ids["FINISHED"], metric)
        ours = curves(hpcml, run["uid"])[metric]
        assert ours["step"] == [at.step for at in theirs]
        assert ours["value"] == [at.value for at in theirs]
        assert ours["t_s"] == [(at.timestamp - START) / 1000 for at in theirs]


def test_imported_runs_are_found_compared_and_never_tried_again(hpcml: Hpcml, store: Mlflow) -> None:
    for seed in range(3):
        for precision in ("fp32", "amp"):
            store.run("vision", seed, precision=precision)
    store.run("vision", 9, status="FAILED")
    imported(hpcml, store)

    found = json.loads(hpcml("runs", "--json", "--where", "lr=0.1", "--where", "precision=amp").stdout)
    assert [run["seed"] for run in found] == [0, 1, 2]
    words = ("compare", "--by", "precision", "--experiment", "vision", "--metric", "val/accuracy", "--json")
    compared = hpcml(*words, "--state", "completed")
    assert compared.returncode == 0, compared.stderr
    (cell,) = json.loads(compared.stdout)["cells"]
    assert {row["level"]: row["n_ok"] for row in cell["rows"]} == {"fp32": 3, "amp_fp16": 3}
    (failed,) = (run for run in known(hpcml).values() if run["state"] == "FAILED")
    assert "was imported" in said_in_one_line(hpcml("retry", "-y", failed["uid"]))
    assert hpcml("retry", "-y", "--experiment", "vision").returncode == 0  # and it stands in the way of no other


@IN_EITHER
def test_importing_again_adds_what_came_since_and_nothing_twice(hpcml: Hpcml, store: Mlflow) -> None:
    ended, going = store.run("vision", 1), store.run("vision", 2, status=None)
    imported(hpcml, store)
    before = hpcml("export", "--to", "json").stdout

    assert imported(hpcml, store) == "0 runs imported, 0 with news, 2 unchanged; 0 points"
    assert hpcml("export", "--to", "json").stdout == before
    store.log(going, START + 2000, range(4, 7))
    store.client.log_param(going, "epochs", 5)
    store.client.set_tag(going, "final", "true")
    store.client.set_terminated(going, "FINISHED", end_time=START + 90_000)
    assert imported(hpcml, store) == "0 runs imported, 1 with news, 1 unchanged; 6 points"

    run = known(hpcml)[going]
    assert (run["state"], run["wall_s"], run["params"]["epochs"]) == ("COMPLETED", 88.0, 5)
    assert run["tags"] == ["final", "team=vision"]
    assert curves(hpcml, run["uid"])["loss"]["step"] == list(range(7))
    assert known(hpcml)[ended]["state"] == "COMPLETED"
    assert imported(hpcml, store) == "0 runs imported, 0 with news, 2 unchanged; 0 points"


def test_without_its_database_hpcml_says_the_same(hpcml: Hpcml, store: Mlflow) -> None:
    store.run("vision", 1, status=None)
    imported(hpcml, store)
    before = hpcml("export", "--to", "json").stdout

    for path in hpcml.home.glob("store.db*"):
        path.unlink()
    assert hpcml("sync").returncode == 0

    assert hpcml("export", "--to", "json").stdout == before


def test_a_dry_run_writes_nothing(hpcml: Hpcml, store: Mlflow) -> None:
    store.run("vision", 1)

    said = imported(hpcml, store, "--dry-run")

    assert said == "nothing was written; it would be: 1 runs imported, 0 with news, 0 unchanged; 8 points"
    assert not known(hpcml)


@IN_EITHER
def test_only_one_experiment_is_imported_and_settings_get_our_names(hpcml: Hpcml, store: Mlflow) -> None:
    store.run("vision", 1, batch="64", dtype="bf16")
    store.run("speech", 2)

    imported(hpcml, store, "--experiment", "vision", "--map", "batch=training.batch_size", "--map", "lr=rate")

    (run,) = known(hpcml).values()
    assert (run["params"]["training.batch_size"], run["params"]["rate"], run["params"]["dtype"]) == (64, 0.1, "bf16")
    done = hpcml("import", str(store.path), "--experiment", "visoin")
    assert (done.returncode, "it has Default, speech, vision" in said_in_one_line(done)) == (2, True)
    assert "write it as THEIRS=OURS" in said_in_one_line(hpcml("import", str(store.path), "--map", "lr"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-0.5", -0.5),
        ("1e-3", 0.001),
        ("0.", 0.0),
        ("12E2", 1200.0),
        ("007", "007"),
        ("00.5", "00.5"),
        ("0012e3", "0012e3"),
        ("12345678901234567890", "12345678901234567890"),
        ("٣", "٣"),
    ],
)
def test_a_parameter_is_a_number_only_where_no_digit_of_it_gets_lost(text: str, value: object) -> None:
    assert (typed(text), type(typed(text))) == (value, type(value))


def test_odd_words_are_kept_and_what_has_no_place_is_said(hpcml: Hpcml, store: Mlflow) -> None:
    run_id = store.run(ODD_NAME, 1, name="theirs", seed="many", model="resnet", note=EVIL)
    store.client.set_tag(run_id, "long", "x" * 4000)
    store.client.set_tag(run_id, "a", "x" * 150)
    for value in (0.5, math.nan, math.inf):
        store.client.log_metric(run_id, "stepless", value)
    for value in (1.0, 2.0):
        store.client.log_metric(run_id, "again", value, step=3)

    done = hpcml("import", str(store.path))

    assert done.returncode == 0, done.stderr
    (run,) = known(hpcml).values()
    assert run["seed"] == 0
    assert run["tags"] == [f"a={'x' * 150}", "team=vision"]
    assert (run["params"]["params.seed"], run["params"]["params.name"]) == ("many", "theirs")
    assert (run["params"]["model.name"], run["params"]["note"], run["name"]) == ("resnet", EVIL, "try 1")
    kept = json.loads(hpcml("export", "--to", "json", run["uid"]).stdout)["runs"][0]
    assert kept["curves"]["stepless"] == {
        "step": [0, 1, 2],
        "t_s": kept["curves"]["stepless"]["t_s"],
        "value": [0.5, "nan", "inf"],
    }
    assert kept["curves"]["again"]["value"] == [2.0]
    (told,) = (event["details"] for event in kept["events"] if event["name"] == "imported")
    assert (told["experiment"], told["tags"]["long"], told["params"]["seed"]) == (ODD_NAME, "x" * 4000, "many")
    for words in (
        "is called",
        "parameter seed is kept as params.seed",
        "parameter name is kept as params.name",
        "no seed was logged",
        "metric stepless was logged without steps",
        "metric again has steps more than once",
        "tag long is too long",
    ):
        assert words in done.stderr


def test_what_is_damaged_is_left_out_and_said(hpcml: Hpcml, store: Mlflow) -> None:
    good, torn = store.run("vision", 1), store.run("hearing", 2)
    store.run("speech", 3)
    folders = {path.name: path for path in store.path.glob("*/*") if path.is_dir()}
    (folders[torn] / "meta.yaml").write_text("run_id: [")
    (broken,) = (path for path in store.path.glob("*/*/metrics/loss") if path.parents[1].name not in (good, torn))
    broken.write_text("1700 nonsense 7\n")

    done = hpcml("import", str(store.path))

    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if "left out: " in line]
    assert {line.partition("experiment ")[2].partition(":")[0] for line in lines} == {"hearing", "speech"}
    assert set(known(hpcml)) == {good}


@pytest.mark.parametrize("store", ["mlflow.db"], indirect=True)
def test_of_a_database_what_is_no_number_is_as_it_was_logged_and_what_is_damaged_is_left_out(
    hpcml: Hpcml, store: Mlflow
) -> None:
    good = store.run("vision", 1)
    for step, value in enumerate((math.nan, math.inf, -math.inf, 1e300)):
        store.client.log_metric(good, "odd", value, timestamp=START + 2000 + step, step=step)
    store.run("vision", 2)
    with closing(sqlite3.connect(store.path)) as database, database:
        database.execute("UPDATE runs SET run_uuid = '../../x' WHERE run_uuid != ?", (good,))
    before = store.path.read_bytes()

    done = hpcml("import", str(store.path))

    assert done.returncode == 1
    assert store.path.read_bytes() == before
    assert done.stderr.count("'../../x' is no id of a run") == 1
    (run,) = known(hpcml).values()
    found = curves(hpcml, run["uid"])
    assert found["loss"]["step"] == [0, 1, 2, 3]
    assert [str(value) for value in found["odd"]["value"]] == ["nan", "inf", "-inf", "1e+300"]


@pytest.mark.parametrize("store", ["mlflow.db"], indirect=True)
def test_values_with_times_that_can_be_none_are_kept_at_the_start(hpcml: Hpcml, store: Mlflow) -> None:
    run_id = store.run("vision", 1)
    for step, at_ms in enumerate((START * 10**6, 0)):
        store.client.log_metric(run_id, "odd", 0.5, timestamp=at_ms, step=step)

    assert imported(hpcml, store) == "1 runs imported, 0 with news, 0 unchanged; 10 points"
    assert imported(hpcml, store) == "0 runs imported, 0 with news, 1 unchanged; 0 points"

    for run in known(hpcml).values():
        odd = curves(hpcml, run["uid"])["odd"]
        assert (odd["step"], odd["t_s"]) == ([0, 1], [0, 0])


@IN_EITHER
def test_deleted_runs_stay_away(hpcml: Hpcml, store: Mlflow) -> None:
    store.client.delete_run(store.run("vision", 1))
    kept = store.run("vision", 2)

    imported(hpcml, store)

    assert set(known(hpcml)) == {kept}


def test_files_of_an_imported_run_are_said_to_lie_beside_its_record(hpcml: Hpcml, store: Mlflow) -> None:
    store.run("vision", 1)
    imported(hpcml, store)
    (run,) = known(hpcml).values()

    told = said_in_one_line(hpcml("show", "--files", run["uid"]))

    assert f"it was imported; its files lie in {run['path']}" in told


@IN_EITHER
def test_artifacts_are_copied_when_asked_for(hpcml: Hpcml, store: Mlflow, tmp_path: Path) -> None:
    run_id = store.run("vision", 1)
    (tmp_path / "weights.bin").write_bytes(b"\0" * 1000)
    store.client.log_artifact(run_id, str(tmp_path / "weights.bin"), "model")
    imported(hpcml, store)
    assert not (Path(known(hpcml)[run_id]["path"]) / "artifacts").exists()

    imported(hpcml, store, "--artifacts")

    run = known(hpcml)[run_id]
    assert (Path(run["path"]) / "artifacts" / "model" / "weights.bin").stat().st_size == 1000
    assert hpcml("show", run["uid"], "--json").stdout.count('"artifacts/model/weights.bin"') == 1
    for words in ((), ("--artifacts",)):
        assert imported(hpcml, store, *words) == "0 runs imported, 0 with news, 1 unchanged; 0 points"


def test_what_hpcml_exported_comes_home_as_itself(hpcml: Hpcml, store: Mlflow, tmp_path: Path) -> None:
    assert hpcml("export", "--to", "mlflow", "-o", store.path.as_uri(), PLAIN, OPEN).returncode == 0
    before = {run["uid"]: run for run in hpcml.runs()}

    assert (
        imported(hpcml, store) == "0 runs imported, 0 with news, 0 unchanged, 2 that hpcml exported and has; 0 points"
    )
    shutil.move(hpcml.home, tmp_path / "lost")
    assert imported(hpcml, store).startswith("2 runs imported")

    plain = {run["uid"]: run for run in hpcml.runs()}[PLAIN]
    for key in (
        "experiment",
        "name",
        "seed",
        "precision",
        "state",
        "tags",
        "git_commit",
        "t_start",
        "t_end",
        "metrics",
    ):
        assert plain[key] == before[PLAIN][key], key
    assert plain["params"]["training.steps"] == 300


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("nowhere", "does not exist"),
        ("notes.txt", "is neither MLflow's database, mlflow.db, nor its file store"),
        ("sqlite:///notes.txt", "is neither MLflow's database"),
        ("empty/inside", "is no MLflow file store: no folder in it has a meta.yaml"),
        ("files", "is no MLflow file store: no folder in it has a meta.yaml; its runs are in its database: hpcml"),
        ("other.db", "other.db is no database of MLflow: no such table: experiments"),
        ("cut.db", "cut.db cannot be read: "),
    ],
)
def test_what_is_none_of_mlflows_is_refused_in_one_line(hpcml: Hpcml, source: str, problem: str) -> None:
    (hpcml.cwd / "notes.txt").write_text("")
    (hpcml.cwd / "empty" / "inside").mkdir(parents=True)
    (hpcml.cwd / "files" / "0" / "artifacts").mkdir(parents=True)
    (hpcml.cwd / "mlflow.db").write_text("")
    with closing(sqlite3.connect(hpcml.cwd / "other.db")) as database:
        database.execute("CREATE TABLE runs (id)")
    (hpcml.cwd / "cut.db").write_bytes((hpcml.cwd / "other.db").read_bytes()[:512] + b"\xff" * 3000)

    done = hpcml("import", source)

    assert done.returncode == 2
    assert problem in said_in_one_line(done)


def test_a_server_that_does_not_answer_is_said_in_one_line(hpcml: Hpcml) -> None:
    done = hpcml("import", "http://127.0.0.1:9", MLFLOW_HTTP_REQUEST_MAX_RETRIES="0")

    assert done.returncode == 1
    assert "MLflow at http://127.0.0.1:9: " in said_in_one_line(done)


def test_two_imports_at_once_make_each_run_once(hpcml: Hpcml, store: Mlflow) -> None:
    for seed in range(5):
        store.run("vision", seed)

    imports = [hpcml.start("import", str(store.path)) for _ in range(2)]
    for process in imports:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said

    assert len(known(hpcml)) == 5
    for run in known(hpcml).values():
        assert len(list((Path(run["path"]) / "journal").iterdir())) == 1
    assert not list(hpcml.home.glob("runs/*/.*"))


def test_ends_that_mlflow_has_no_word_for_come_home_as_they_were(hpcml: Hpcml, store: Mlflow, tmp_path: Path) -> None:
    ends = {
        "TIMEOUT": {"reason": "walltime of 10 min was over", "cause": "time_limit", "wall_s": 600.25},
        "FAILED": {"reason": "exit status 3", "cause": "program", "exit_code": 3, "wall_s": 0.0625},
        "COMPLETED": {"exit_code": 0, "wall_s": 0.015625},
    }
    for number, (state, end) in enumerate(ends.items()):
        run_dir = make_run_dir(hpcml.home / "runs", f"20260529-202640-{number}aaaaa", seed=number)
        agent = Journal(run_dir, writer="agent", attempt=0)
        agent.event("attempt_started")
        agent.event("attempt_ended", 700.0, state=state, **end)
    lost = make_run_dir(hpcml.home / "runs", "20260529-202640-9aaaaa", seed=9)
    Journal(lost, writer="agent", attempt=0).event("attempt_started")
    Journal(lost, writer="sync", attempt=0).event("lost", 3.0, reason="its agent is gone", cause="agent_killed")
    uids = [run["uid"] for run in hpcml.runs() if run["uid"].startswith("20260529")]
    assert hpcml("export", "--to", "mlflow", "-o", store.path.as_uri(), *uids).returncode == 0
    before = {run["uid"]: run for run in hpcml.runs() if run["uid"] in uids}
    shutil.move(hpcml.home, tmp_path / "lost")

    imported(hpcml, store)

    after = {run["uid"]: run for run in hpcml.runs()}
    for uid in uids:
        for key in ("name", "state", "cause", "reason", "exit_code", "wall_s"):
            assert after[uid][key] == before[uid][key], (uid, key)
