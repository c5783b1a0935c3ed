from __future__ import annotations

import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import HPCML, Hpcml, said_in_one_line
from tests.interop.exchanging import EVIL, ODD, OPEN, PLAIN, goes_on, real
from tests.store.building import T0, Journal, make_run_dir

pytestmark = pytest.mark.filterwarnings("default")  # MLflow's own


class Server:
    """An MLflow, as its own client sees it."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.client = real("mlflow.tracking").MlflowClient(tracking_uri=uri)

    def runs(self) -> dict[str, Any]:
        """Return all runs by the uid that they have here; none is there twice."""
        ids = [experiment.experiment_id for experiment in self.client.search_experiments()]
        found = self.client.search_runs(ids, max_results=1000)
        by_uid = {run.data.tags["hpcml.uid"]: run for run in found}
        assert len(by_uid) == len(found)
        return by_uid

    def history(self, run: Any, metric: str) -> list[tuple[int, int, float]]:  # noqa: ANN401
        found = self.client.get_metric_history(run.info.run_id, metric)
        return sorted((at.step, at.timestamp, at.value) for at in found)


@pytest.fixture(autouse=True)
def mlflow_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without any run, which takes MLflow seconds to make."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    Server(f"sqlite:///{path}").client.search_experiments()
    return path


@pytest.fixture
def server(hpcml: Hpcml, tables: Path) -> Server:
    """An MLflow that keeps its runs in a database."""
    path = hpcml.cwd / "mlflow.db"
    shutil.copyfile(tables, path)
    return Server(f"sqlite:///{path}")


@pytest.fixture
def file_store(hpcml: Hpcml) -> Server:
    """An MLflow that keeps its runs in files, where nothing keeps a value from being there twice."""
    return Server((hpcml.cwd / "mlruns").as_uri())


def export(hpcml: Hpcml, server: Server, *words: str) -> str:
    done = hpcml("export", "--to", "mlflow", "-o", server.uri, *words)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_mlflow_has_params_metrics_with_steps_and_times_tags_and_artifacts(hpcml: Hpcml, server: Server) -> None:
    assert "3 runs created in MLflow, 0 updated, 0 unchanged" in export(hpcml, server)

    runs = server.runs()
    assert set(runs) == {PLAIN, ODD, OPEN}
    plain = runs[PLAIN]
    assert server.client.get_experiment(plain.info.experiment_id).name == "default"
    assert (plain.info.run_name, plain.info.status) == ("baseline", "FINISHED")
    assert (plain.info.start_time, plain.info.end_time) == (T0 * 1000, (T0 + 10) * 1000)
    assert plain.data.params["training.steps"] == "300"
    assert (plain.data.params["precision.name"], plain.data.params["model.recipe"]) == ("tf32", "torch_classification")
    tags = plain.data.tags
    assert (tags["hpcml.tag.paper"], tags["hpcml.fact.gpu_model"]) == ("true", "NVIDIA A100")
    assert (tags["hpcml.usage.energy_j"], tags["hpcml.work.model_flops"]) == ("2500.0", "2000000000.0")
    assert (tags["mlflow.user"], tags["mlflow.source.git.commit"]) == ("ada", "c0ffee")
    started_ms = (T0 + 1) * 1000
    assert server.history(plain, "loss") == [(step, started_ms + step * 250, 1 / (step + 1)) for step in range(5)]
    assert plain.data.metrics["val/accuracy"] == 0.4
    artifacts = {file.path for file in server.client.list_artifacts(plain.info.run_id, "hpcml")}
    assert artifacts == {"hpcml/run.json", "hpcml/git.diff", "hpcml/environment.json"}
    assert (hpcml.cwd / "mlartifacts" / "default" / plain.info.run_id / "artifacts" / "hpcml" / "run.json").is_file()
    assert (runs[ODD].info.status, runs[OPEN].info.status) == ("FAILED", "RUNNING")


def test_what_mlflow_does_not_take_as_it_is_is_said(hpcml: Hpcml, server: Server) -> None:
    said = export(hpcml, server, ODD)

    odd = server.runs()[ODD]
    names = set(odd.data.metrics)
    assert "loss_1" in names
    assert len(names) == 5  # loss, loss_1, loss@1, the evil and the long one: none became another
    assert "MLflow calls 'loss@1' 'loss_1-" in said
    (evil,) = (name for name in names if "DROP TABLE" in name)
    values = [value for _, _, value in server.history(odd, evil)]
    assert values[0] == 1.5
    assert math.isnan(values[1])
    assert values[2] > 1e308  # a database of MLflow keeps infinity as its largest number
    assert odd.info.run_name == EVIL
    assert all(len(name) <= 250 for name in names)


def test_exporting_again_changes_nothing_and_adds_what_came_since(hpcml: Hpcml, server: Server) -> None:
    export(hpcml, server)
    before = {uid: (run.data.params, run.data.metrics, run.info.end_time) for uid, run in server.runs().items()}

    assert "0 runs created in MLflow, 0 updated, 3 unchanged; 0 new points" in export(hpcml, server)
    assert repr({uid: (r.data.params, r.data.metrics, r.info.end_time) for uid, r in server.runs().items()}) == repr(
        before
    )
    goes_on(hpcml.home, until=7)
    assert "0 runs created in MLflow, 1 updated, 2 unchanged; 7 new points" in export(hpcml, server)

    gone_on = server.runs()[OPEN]
    assert gone_on.info.status == "FINISHED"
    assert [step for step, _, _ in server.history(gone_on, "loss")] == list(range(8))


def test_a_file_store_has_no_value_twice_either(hpcml: Hpcml, file_store: Server) -> None:
    export(hpcml, file_store)
    goes_on(hpcml.home, until=7)
    assert "0 runs created in MLflow, 1 updated, 2 unchanged; 7 new points" in export(hpcml, file_store)

    runs = file_store.runs()
    assert [step for step, _, _ in file_store.history(runs[OPEN], "loss")] == list(range(8))
    assert runs[PLAIN].data.params["training.steps"] == "300"


def test_a_tag_that_was_taken_away_here_goes_there(hpcml: Hpcml, server: Server) -> None:
    export(hpcml, server, PLAIN)
    manifest = hpcml.home / "runs" / "default" / PLAIN / "run.json"
    manifest.write_text(manifest.read_text().replace('"paper"', '"draft"'))

    export(hpcml, server, PLAIN)

    tags = {name for name in server.runs()[PLAIN].data.tags if name.startswith("hpcml.tag.")}
    assert tags == {"hpcml.tag.draft"}


def test_artifacts_go_along_when_asked_for(hpcml: Hpcml, server: Server) -> None:
    export(hpcml, server, PLAIN)
    export(hpcml, server, PLAIN, "--artifacts")

    run_id = server.runs()[PLAIN].info.run_id
    top = {file.path for file in server.client.list_artifacts(run_id)}
    assert {"model.txt", "logs", "hpcml"} <= top
    assert [file.path for file in server.client.list_artifacts(run_id, "logs")] == ["logs/0-rank0.out"]


def test_a_run_that_was_deleted_in_mlflow_is_not_made_again(hpcml: Hpcml, server: Server) -> None:
    export(hpcml, server, PLAIN)
    server.client.delete_run(server.runs()[PLAIN].info.run_id)
    goes_on(hpcml.home, until=1)

    said = export(hpcml, server)

    assert f"run {PLAIN} was deleted in MLflow: left out" in said
    assert set(server.runs()) == {ODD, OPEN}


def test_an_experiment_that_was_deleted_in_mlflow_is_said(hpcml: Hpcml, server: Server) -> None:
    export(hpcml, server, ODD)
    server.client.delete_experiment(server.runs()[ODD].info.experiment_id)

    done = hpcml("export", "--to", "mlflow", "-o", server.uri, ODD)

    assert done.returncode == 2
    assert "experiment other was deleted in MLflow" in said_in_one_line(done)


def test_kill_9_at_any_point_leaves_no_run_or_point_twice(hpcml: Hpcml, server: Server) -> None:
    for number in range(8):
        run_dir = make_run_dir(hpcml.home / "runs", f"20260529-000000-zzz{number}", seed=number)
        journal = Journal(run_dir, attempt=0)
        for step in range(1500):  # two calls of MLflow's
            journal.metrics(step, step / 100, loss=1 / (step + 1))
    chance = random.Random(7)  # noqa: S311 - of moments
    words = [*HPCML, "export", "--to", "mlflow", "-o", server.uri]
    for _ in range(6):
        exporting = subprocess.Popen(words, env=hpcml.environ, cwd=hpcml.cwd, stderr=subprocess.DEVNULL)
        patience = time.monotonic() + 300
        known = n_runs_in(hpcml.cwd / "mlflow.db")
        while exporting.poll() is None and n_runs_in(hpcml.cwd / "mlflow.db") == known and time.monotonic() < patience:
            time.sleep(0.02)
        time.sleep(chance.random() * 0.3)
        exporting.send_signal(signal.SIGKILL)
        exporting.wait()

    export(hpcml, server)

    runs = server.runs()
    assert len(runs) == 11
    for number in range(8):
        history = server.history(runs[f"20260529-000000-zzz{number}"], "loss")
        assert [step for step, _, _ in history] == list(range(1500))
    assert "0 updated, 11 unchanged" in export(hpcml, server)


def n_runs_in(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT count(*) FROM runs").fetchone()[0])


def test_a_second_export_at_the_same_time_is_refused(hpcml: Hpcml) -> None:
    from hpcml.runs.lock import Lock, try_lock  # noqa: PLC0415

    folder = hpcml.home / "exports"
    folder.mkdir()
    lock = try_lock(folder, "mlflow")
    assert isinstance(lock, Lock)

    done = hpcml("export", "--to", "mlflow", "-o", f"sqlite:///{hpcml.cwd}/mlflow.db")

    lock.release()
    assert done.returncode == 2
    assert f"another export to MLflow is under way (process {os.getpid()} on" in said_in_one_line(done)


def test_where_mlflow_is_must_be_known(hpcml: Hpcml, tmp_path: Path) -> None:
    done = hpcml("export", "--to", "mlflow")
    assert (done.returncode, "say where MLflow is" in said_in_one_line(done)) == (2, True)

    uri = f"sqlite:///{tmp_path}/from_environment.db"
    assert hpcml("export", "--to", "mlflow", PLAIN, MLFLOW_TRACKING_URI=uri).returncode == 0
    assert set(Server(uri).runs()) == {PLAIN}


@pytest.mark.parametrize(
    "uri",
    [
        "http://me:secret@127.0.0.1:9/",
        "sqlite:////dev/null/mlflow.db",
        "oracle://me:secret@host/mlflow",
        "what://is/this",
    ],
)
def test_an_mlflow_that_does_not_answer_is_one_line_without_the_password(hpcml: Hpcml, uri: str) -> None:
    done = hpcml("export", "--to", "mlflow", "-o", uri, PLAIN, MLFLOW_HTTP_REQUEST_MAX_RETRIES="0")

    assert done.returncode == 1
    line = said_in_one_line(done)
    assert line.startswith("hpcml: MLflow at ")
    assert "secret" not in line


def test_a_folder_that_mlflow_does_not_write_to_any_more_is_answered_in_one_line(hpcml: Hpcml) -> None:
    real("mlflow.tracking")

    refused = hpcml("export", "--to", "mlflow", "-o", "mlruns", MLFLOW_ALLOW_FILE_STORE="false")

    if refused.returncode == 0:
        pytest.skip("this MLflow still writes to folders")
    assert said_in_one_line(refused) == (
        "hpcml: this MLflow keeps no runs in a folder unless MLFLOW_ALLOW_FILE_STORE=true is set; "
        f"or write -o sqlite:///{hpcml.cwd}/mlruns/mlflow.db"
    )
    assert refused.returncode == 2
