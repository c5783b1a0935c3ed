"""Functions as recorded runs of this machine, by an executor of submitit's."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from submitit.core import utils

import hpcml
from hpcml.errors import ConfigError
from hpcml.runs.layout import RunDir

FUNCTIONS = """
import os
import sys
import time

import hpcml_client

def train(lr, seed=0, epochs=3, **more):
    print(f"lr {lr}, {epochs} epochs")
    return {"val_accuracy": 1 - lr + seed / 100, "best": [1, 2]}

def reported(lr):
    hpcml_client.connect().metric("loss", lr, step=7)
    return {"loss": 0}

def failed():
    raise ZeroDivisionError("on purpose")

def left():
    sys.exit(3)

def waits():
    time.sleep(600)

def doubled(number):
    return 2 * number
"""
SETTINGS = {"experiment": "notebook", "telemetry.enabled": False}


@pytest.fixture
def functions(tmp_path: Path, hpcml_environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> object:
    """A module of the user's in the current folder, with an empty home."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for name in ("HOME", "HPCML_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, hpcml_environ[name])
    monkeypatch.delenv("HPCML_STORE", raising=False)
    monkeypatch.delitem(sys.modules, "functions", raising=False)
    return __import__("functions")


def test_a_sweep_of_a_function_is_compared_by_its_argument(functions: object) -> None:
    executor = hpcml.Executor(settings=SETTINGS)

    jobs = executor.map_array(functions.train, [0.1, 0.1, 0.5, 0.5], [0, 1, 0, 1])
    results = [job.result() for job in jobs]

    assert [result["val_accuracy"] for result in results] == [0.9, 0.91, 0.5, 0.51]
    assert jobs[2].stdout() == "lr 0.5, 3 epochs\n"
    store = hpcml.open_store()
    records = store.runs_named([job.job_id for job in jobs])
    assert records.values("lr", "epochs", "seed", "val_accuracy") == [
        (0.1, 3, 0, 0.9),
        (0.1, 3, 1, 0.91),
        (0.5, 3, 0, 0.5),
        (0.5, 3, 1, 0.51),
    ]
    assert len({run.submission for run in records}) == 1
    assert str(store.compare(by="lr")).startswith("4 runs by lr")


def test_results_exceptions_and_states_are_submitits(functions: object) -> None:
    executor = hpcml.Executor(settings=SETTINGS)
    with executor.batch():
        failed, left = executor.submit(functions.failed), executor.submit(functions.left)
    left._results_timeout_s = 0

    assert isinstance(failed.exception(), utils.FailedJobError)
    with pytest.raises(utils.FailedJobError, match="ZeroDivisionError: on purpose"):
        failed.result()
    with pytest.raises(utils.UncompletedJobError, match=r"state: FAILED"):
        left.result()
    assert (failed.state, failed.done()) == ("FAILED", True)
    assert failed.submission().function is functions.failed


def test_a_call_is_recorded_by_what_it_was_given_and_what_it_returned(functions: object) -> None:
    executor = hpcml.Executor(settings=SETTINGS)
    kinds = [[1, 2], "it's, {seed}", None, object(), "x" * 100]

    with executor.batch():
        jobs = [executor.submit(functions.train, 0.1, kind=kind) for kind in kinds]
        number = executor.submit(functions.doubled, 21)
        reported = executor.submit(functions.reported, 0.5)
    results = [job.result() for job in [*jobs, number, reported]]

    records = [hpcml.open_store().run(job.job_id) for job in [*jobs, number, reported]]
    kept = [record.params["workload.args.kind"] for record in records[:5]]
    assert kept[:4] == ["[1,2]", "it's, {seed}", "null", "<object object>"]
    assert kept[4].startswith("x" * 80 + "...")
    assert results[5] == 42
    assert records[5].metrics["result"].last == 42
    assert records[6].metrics["loss"].last == 0.5  # the function's own report, not what it returned


def test_a_job_is_done_while_others_go_on(functions: object) -> None:
    executor = hpcml.Executor(settings=SETTINGS)
    with executor.batch():
        quick, slow = executor.submit(functions.doubled, 21), executor.submit(functions.waits)

    assert quick.result() == 42
    assert not slow.done()
    slow.cancel()
    slow.wait()
    assert slow.state == "CANCELLED"


def test_a_seed_that_is_no_number_is_an_argument_as_any(functions: object) -> None:
    job = hpcml.Executor(settings=SETTINGS).submit(functions.train, 0.5, seed=None)

    assert isinstance(job.exception(), utils.FailedJobError)  # it computes with it
    assert hpcml.open_store().run(job.job_id).params["workload.args.seed"] == "null"


def test_equal_calls_are_replicates(functions: object) -> None:
    jobs = hpcml.Executor(settings=SETTINGS).map_array(functions.doubled, [1, 2, 1])

    assert [job.result() for job in jobs] == [2, 4, 2]
    assert len({job.job_id for job in jobs}) == 3


def test_what_update_parameters_takes_is_submitits_and_every_setting(functions: object) -> None:
    executor = hpcml.Executor(settings=SETTINGS)
    executor.update_parameters(name="named", timeout_min=1.5, cpus_per_task=1, **{"schedule.max_requeues": 0})

    job = executor.submit(functions.doubled, 1)
    job.cancel()

    run = hpcml.open_store().run(job.job_id)
    assert run.experiment == "named"
    assert run.params["resources.walltime"] == "90s"
    assert run.params["schedule.max_requeues"] == 0
    assert RunDir(Path(run.path)).call.stat().st_mode & 0o077 == 0


def test_what_cannot_be_submitted_is_said_in_one_line(functions: object) -> None:
    executor = hpcml.Executor(settings=SETTINGS)

    with pytest.raises(ConfigError, match=r"^functions.doubled or an argument of it cannot be pickled: cannot pickle"):
        executor.submit(functions.doubled, threading.Lock())
    with pytest.raises(ConfigError, match=r"^functions.doubled: missing a required argument: 'number'$"):
        executor.submit(functions.doubled)
    with pytest.raises(ConfigError, match=r"cluster/karolin.*karolina"):
        hpcml.Executor(cluster="karolin").submit(functions.doubled, 1)
    assert not hpcml.open_store().runs()


def test_a_function_of_a_script_needs_no_module(functions: object, tmp_path: Path) -> None:
    del functions
    script = tmp_path / "script.py"
    script.write_text(
        "import hpcml\n"
        "def twice(number):\n    return 2 * number\n"
        "print(hpcml.Executor(settings={'telemetry.enabled': False}).submit(twice, 21).result())\n"
    )

    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)

    assert done.stdout == "42\n", done.stderr
