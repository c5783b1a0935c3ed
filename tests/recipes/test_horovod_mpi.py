"""Horovod in ranks that a real mpirun has started: torch and Keras recipes train as one process and as DDP do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("mpi4py")
from tests.cli.command_line import Hpcml, said_in_one_line
from tests.cluster.mpi import building

DOUBLE = Path(__file__).with_name("doubles")
TWO = ("strategy=horovod", "strategy.processes_per_node=2", "resources.cpus_per_task=1", "workload.launcher=mpirun")
SMALL = ("model=mnist_mlp", "precision=fp64", "training.steps=4", "training.batch_size=32", "telemetry.enabled=false")


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    if reason := building.missing():
        assert os.environ.get("CI") != "true", reason
        pytest.skip(reason)
    paths = os.pathsep.join(filter(None, [str(DOUBLE), os.environ.get("PYTHONPATH")]))
    return Hpcml({**hpcml_environ, "PYTHONPATH": paths}, tmp_path)


def losses(run: dict[str, object]) -> list[float]:
    """Return the loss of each step, as the first rank has it."""
    found: dict[int, float] = {}
    for path in Path(str(run["path"])).glob("journal/*rank0*.jsonl"):
        for line in path.read_text().splitlines():
            said = json.loads(line)
            if said.get("k") == "m" and "loss" in said.get("v", {}):
                found[said["i"]] = said["v"]["loss"]
    return [found[step] for step in sorted(found)]


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_ranks_of_an_mpi_job_train_as_one_process_does(hpcml: Hpcml, framework: str) -> None:
    pytest.importorskip(framework)
    words = [*SMALL, f"model.framework={framework}"]

    alone = hpcml("run", *words, "strategy=single", "resources.cpus_per_task=1")
    done = hpcml("run", *words, *TWO, *building.settings())

    assert (alone.returncode, done.returncode) == (0, 0), (alone.stderr, done.stderr)
    runs = sorted(hpcml.runs(), key=lambda run: run["uid"])
    assert [run["state"] for run in runs] == ["COMPLETED", "COMPLETED"], [run["reason"] for run in runs]
    single, shared = map(losses, runs)
    assert len(shared) == 4
    assert shared == pytest.approx(single, rel=1e-12)


def test_an_lstm_in_keras_trains_over_mpi_as_one_process_does(hpcml: Hpcml) -> None:
    pytest.importorskip("tensorflow")
    words = [
        *SMALL,
        "model=lstm",
        "model.options.width=16",
        "model.options.context=6",
        "model.framework=tensorflow",
    ]

    alone = hpcml("run", *words, "strategy=single", "resources.cpus_per_task=1")
    done = hpcml("run", *words, *TWO, *building.settings())

    assert (alone.returncode, done.returncode) == (0, 0), (alone.stderr, done.stderr)
    single, shared = map(losses, sorted(hpcml.runs(), key=lambda run: run["uid"]))
    assert len(shared) == 4
    assert shared == pytest.approx(single, rel=1e-10)


def test_what_only_mpi_can_do_is_refused_without_it(hpcml: Hpcml) -> None:
    by_agents = [word for word in TWO if "launcher" not in word]

    keras = hpcml("run", *SMALL, "model.framework=tensorflow", *by_agents)
    hierarchical = hpcml("run", *SMALL, *by_agents, "strategy.horovod.hierarchical=true")

    assert "in TensorFlow is started by MPI: set workload.launcher=mpirun" in said_in_one_line(keras)
    assert "is a part of Horovod's MPI operations" in said_in_one_line(hierarchical)
