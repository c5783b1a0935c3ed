"""The strategy horovod: two processes train as one does and as DDP does, with a double of Horovod or with a real one.

HPCML_TEST_HOROVOD_PYTHON=/path/python is one that has Horovod; without it the double has to do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from image_runs import _free_port, config_of, finish, read_rank0, start_ranks

from tests.cli.command_line import Hpcml, said_in_one_line

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[2]
DOUBLE = Path(__file__).with_name("doubles")
PROGRAM = Path(__file__).with_name("horovod_ranks.py")
REAL = "HPCML_TEST_HOROVOD_PYTHON"


@pytest.fixture(scope="module", params=["double", "real"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    python, paths = sys.executable, [str(ROOT), str(DOUBLE)]
    if request.param == "real":
        python, paths = os.environ.get(REAL, ""), [str(ROOT)]
        if not python:
            pytest.skip(f"{REAL} names no Python that has Horovod")
    root = tmp_path_factory.mktemp("horovod")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "SLURM_"))}
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "OMP_NUM_THREADS": "1"}
    finish(
        [
            subprocess.Popen(
                [python, str(PROGRAM), str(root)],
                env={**kept, **shared, "RANK": str(rank), "PYTHONPATH": os.pathsep.join(paths)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
    )
    return root


@pytest.mark.parametrize("case", ["plain", "accumulated", "nhwc"])
def test_two_processes_with_horovod_train_as_one_with_the_same_batch(trained: Path, case: str) -> None:
    alone, together = read_rank0(trained / f"{case}_alone"), read_rank0(trained / f"{case}_horovod")

    assert together.series("loss") == pytest.approx(alone.series("loss"), rel=1e-12)
    weights, expected = together.metrics[-1].values, alone.metrics[-1].values
    names = [name for name in expected if name.startswith("weight")]
    assert len(names) == together.events["training"]["parameters"]
    assert [weights[name] for name in names] == pytest.approx([expected[name] for name in names], abs=1e-12)
    assert together.events["work"] == {**alone.events["work"], "devices": 2}


@pytest.mark.parametrize("case", ["plain", "accumulated", "nhwc", "scaled"])
def test_two_processes_with_horovod_train_as_two_with_ddp_do_bit_for_bit(trained: Path, case: str) -> None:
    ddp, together = read_rank0(trained / f"{case}_ddp"), read_rank0(trained / f"{case}_horovod")

    assert together.series("loss") == ddp.series("loss")
    assert together.series("loss_scale") == ddp.series("loss_scale")
    assert together.events["final"] == ddp.events["final"]


@pytest.mark.parametrize("case", ["plain", "scaled"])
def test_a_training_with_horovod_that_was_interrupted_goes_on_bit_for_bit(trained: Path, case: str) -> None:
    whole = read_rank0(trained / f"{case}_horovod")
    after = read_rank0(trained / f"{case}_resumed", attempt=1)

    assert after.events["resumed"]["step"] == 3
    assert after.series("loss") == whole.series("loss")[3:]
    assert after.events["final"] == whole.events["final"]


def test_how_horovod_talks_is_said_and_timed(trained: Path) -> None:
    recorded = read_rank0(trained / "plain_horovod")

    assert recorded.events["strategy"]["backend"] == "gloo"
    assert recorded.events["strategy"]["horovod"]
    assert all(seconds > 0 for seconds in recorded.series("communication_time_s"))
    assert len(recorded.series("communication_time_s")) == len(recorded.metrics)


def test_what_horovod_cannot_is_refused_by_all_ranks(trained: Path) -> None:
    assert json.loads((trained / "refusals.json").read_text()) == {
        "bf16": "precision=bf16 with strategy=horovod: Horovod sends no BF16: use amp_bf16 or strategy=ddp",
        "compiled": "training.compile=true with strategy=horovod is not supported: set it to false",
    }


def test_all_begin_with_the_weights_of_the_first(trained: Path) -> None:
    astray, plain = read_rank0(trained / "astray"), read_rank0(trained / "plain_horovod")

    assert astray.events["final"] == plain.events["final"]


def test_a_python_without_horovod_is_told_so_in_one_line(tmp_path: Path) -> None:
    config = config_of(model__name="mnist_mlp", strategy={"name": "horovod"})
    ranks = start_ranks(tmp_path / "run", config, 2)
    said = [process.communicate(timeout=300)[1] for process in ranks]

    assert [process.returncode for process in ranks] == [2, 2]
    for line in said:
        assert "strategy=horovod needs Horovod for torch in " in line
        assert line.count("\n") == 1


def test_hpcml_starts_the_ranks_of_a_recipe_itself(tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    hpcml = Hpcml({**hpcml_environ, "PYTHONPATH": str(DOUBLE)}, tmp_path)
    words = ["model=mnist_mlp", "training.steps=3", "resources.cpus_per_task=1", "telemetry.enabled=false"]

    done = hpcml(*("run", *words, "strategy=horovod", "strategy.processes_per_node=2"))

    assert done.returncode == 0, done.stderr
    (journal,) = hpcml.home.glob("runs/**/journal")
    assert len(list(journal.glob("*-rank*.jsonl"))) == 2
    assert read_rank0(journal.parent).events["work"]["devices"] == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["precision=bf16"], "Horovod sends no BF16: use precision=amp_bf16"),
        (["training.compile=true"], "training.compile=true with strategy=horovod is not supported"),
        (["training.batch_size=63"], "training.batch_size=63 cannot be shared by 2"),
    ],
)
def test_what_horovod_cannot_is_refused_before_anything_starts(
    tmp_path: Path, hpcml_environ: dict[str, str], words: list[str], reason: str
) -> None:
    hpcml = Hpcml({**hpcml_environ, "PYTHONPATH": str(DOUBLE)}, tmp_path)

    done = hpcml("run", "model=mnist_mlp", "strategy=horovod", "strategy.processes_per_node=2", *words)

    assert done.returncode == 2
    assert reason in said_in_one_line(done)
    assert hpcml.runs() == []
