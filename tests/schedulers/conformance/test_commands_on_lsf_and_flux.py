"""The `hpcml` command on sites of LSF and Flux, both doubles: from the words a user types to the record of the run."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import Hpcml, program
from tests.cluster.double.double import Double

CONF = Path(__file__).parent / "conf"


@pytest.fixture(params=["lsf", "flux"])
def double(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Double]:
    made = Double(request.param, tmp_path / "double")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def hpcml(double: Double, tmp_path: Path) -> Hpcml:
    cwd, home = tmp_path / "a project", tmp_path / "home"
    cwd.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "XDG_", "SUBMITIT_"))}
    environ = {**kept, "HOME": str(home), "HPCML_HOME": str(home / "hpcml"), "PATH": f"{double.bin}:{kept['PATH']}"}
    return Hpcml(environ={**environ, "HPCML_POLL_INTERVAL_S": "0"}, cwd=cwd)


def submit(hpcml: Hpcml, double: Double, *words: str) -> list[dict[str, Any]]:
    where = ["--config-dir", str(CONF), f"cluster=test{double.dialect}"]
    done = hpcml("run", *where, *words, "--detach", "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def until(hpcml: Hpcml, holds: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 300
    while True:
        asked = hpcml("status")
        assert asked.returncode == 0, asked.stderr
        if holds(runs := hpcml.runs()):
            return runs
        assert time.monotonic() < deadline, [(run["state"], run["attempt"], run["reason"]) for run in runs]
        time.sleep(0.3)


def all_are(state: str) -> Callable[[list[dict[str, Any]]], bool]:
    return lambda runs: {run["state"] for run in runs} == {state}


def test_a_sweep_is_limited_recorded_and_each_run_is_called_as_its_scheduler_does(hpcml: Hpcml, double: Double) -> None:
    diary = hpcml.cwd / "diary"
    diary.mkdir()
    notes = program(
        "import os, pathlib, time\n"
        f"diary = pathlib.Path({str(diary)!r}) / os.environ['HPCML_RUN_ID']\n"
        "diary.write_text(f'{time.time()} ')\ntime.sleep(1)\ndiary.write_text(f'{diary.read_text()}{time.time()}')"
    )

    if double.dialect == "flux":
        where = ["--config-dir", str(CONF), "cluster=testflux"]
        refused = hpcml("run", *where, "-m", "seed=range(3)", "resources.array_parallelism=1", notes)
        assert "Flux cannot be told how many jobs of a sweep may run at once" in refused.stderr
        return
    runs = submit(hpcml, double, "-m", "seed=range(3)", "resources.array_parallelism=1", notes)

    assert hpcml("wait", "--experiment", "default").returncode == 0
    until(hpcml, all_are("COMPLETED"))
    times = sorted(tuple(map(float, path.read_text().split())) for path in diary.iterdir())
    assert all(end <= begin for (_, end), (begin, _) in pairwise(times)), times
    shown = hpcml("top", runs[1]["uid"], "--once").stdout
    assert "101[2]" in shown
    assert double.calls()["bsub"] == 1


def test_an_unlimited_sweep_is_one_call(hpcml: Hpcml, double: Double) -> None:
    submit(hpcml, double, "-m", "seed=range(3)", program("pass"))

    assert hpcml("wait", "--experiment", "default").returncode == 0
    assert [run["state"] for run in hpcml.runs()] == ["COMPLETED"] * 3
    assert double.calls()["flux submit" if double.dialect == "flux" else "bsub"] == 1


def test_a_run_is_watched_cancelled_and_retried(hpcml: Hpcml, double: Double) -> None:
    ends = "import os, time; time.sleep(60 if os.environ['HPCML_ATTEMPT'] == '0' else 0)"
    (run,) = submit(hpcml, double, program(ends))
    until(hpcml, all_are("RUNNING"))

    cancelled = hpcml("cancel", run["uid"], "-y")
    until(hpcml, all_are("CANCELLED"))
    again = hpcml("retry", run["uid"], "--cause", "cancelled", "-y")

    assert cancelled.returncode == 0, cancelled.stderr
    assert again.returncode == 0, again.stderr
    assert hpcml("wait", run["uid"]).returncode == 0
    (run,) = until(hpcml, all_are("COMPLETED"))
    assert run["attempt"] == 1


def test_a_job_killed_by_its_scheduler_is_told_in_its_words(hpcml: Hpcml, double: Double) -> None:
    double.set(closed=True)
    (run,) = submit(hpcml, double, program("pass"))
    words = ["bkill"] if double.dialect == "lsf" else ["flux", "cancel"]
    subprocess.run([double.bin / words[0], *words[1:], run["job_id"]], check=True)

    (run,) = until(hpcml, all_are("CANCELLED"))

    assert f"{double.dialect} says" in run["reason"]


def test_a_submission_that_was_interrupted_is_finished_by_sync(hpcml: Hpcml, double: Double) -> None:
    double.set(hung_after=["submit"], down=["ask"])
    where = ["--config-dir", str(CONF), f"cluster=test{double.dialect}"]
    process = hpcml.start("run", *where, "workload.command=true", "--detach")
    deadline = time.monotonic() + 300
    while double.calls()["flux submit" if double.dialect == "flux" else "bsub"] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.kill()
    process.communicate()
    double.set()

    synced = hpcml("sync")

    assert synced.returncode == 0, synced.stderr
    assert hpcml("wait", "--experiment", "default").returncode == 0
    assert [run["state"] for run in hpcml.runs()] == ["COMPLETED"]
    assert double.calls()["flux submit" if double.dialect == "flux" else "bsub"] == 1


def test_doctor_asks_the_scheduler(hpcml: Hpcml, double: Double) -> None:
    said = hpcml("doctor", "--config-dir", str(CONF), "--cluster", f"test{double.dialect}")

    assert f"{double.dialect} answers" in said.stdout, said.stderr
    assert "cannot be asked" not in said.stdout
    assert said.returncode == 0, said.stdout

    double.set(down=["ask"])
    away = hpcml("doctor", "--config-dir", str(CONF), "--cluster", f"test{double.dialect}")
    assert away.returncode != 0
    assert "cannot be asked" in away.stdout
