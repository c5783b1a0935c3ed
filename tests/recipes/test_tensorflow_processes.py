"""TensorFlow in several processes, on a line whose errors shrink by factors that a formula says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from image_runs import Recorded, read_rank0

from hpcml_client import connect
from tests.cli.command_line import Hpcml, said_in_one_line

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")

STEPS = 6
# all 256 points are in each step, as in test_linear_mse.py
_SQUARES = [((2 * index + 1) / 256 - 1) ** 2 for index in range(256)]
SLOPE_SHRINKS_BY = 1 - 2 * 0.2 * sum(_SQUARES) / len(_SQUARES)
INTERCEPT_SHRINKS_BY = 1 - 2 * 0.2


def _follows_the_formula(recorded: Recorded) -> None:
    slopes = [slope - 2.0 for slope in recorded.series("slope")]
    intercepts = [intercept + 1.0 for intercept in recorded.series("intercept")]
    assert len(slopes) >= STEPS
    # until the errors are those of the last bits
    assert slopes[1:STEPS] == pytest.approx([error * SLOPE_SHRINKS_BY for error in slopes[: STEPS - 1]], rel=1e-9)
    assert intercepts[1:STEPS] == pytest.approx(
        [error * INTERCEPT_SHRINKS_BY for error in intercepts[: STEPS - 1]], rel=1e-9
    )


def test_two_workers_find_each_other_and_the_line(tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    hpcml = Hpcml(hpcml_environ, tmp_path)
    words = ["model=linear_mse", "model.framework=tensorflow", "precision=fp64", "training.batch_size=256"]
    words += [f"training.steps={STEPS}", "training.eval_every=1", "resources.cpus_per_task=1"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    done = hpcml(
        *("run", *words, "strategy=multi_worker_mirrored", "strategy.processes_per_node=2", "telemetry.enabled=false"),
        TMPDIR=str(temporary),
    )

    assert done.returncode == 0, done.stderr
    (journal,) = hpcml.home.glob("runs/**/journal")
    assert len(list(journal.glob("*-rank*.jsonl"))) == 2
    recorded = read_rank0(journal.parent)
    _follows_the_formula(recorded)
    assert recorded.events["work"]["devices"] == 2
    assert [path.name for path in temporary.iterdir() if not path.name.startswith("hpcml")] == []  # AutoGraph's files


# Where the package is there, it is only by MPI that it starts TensorFlow
NO_HOROVOD = "has no horovod" if importlib.util.find_spec("horovod") is None else "in TensorFlow is started by MPI"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["strategy=mirrored"], "strategy=mirrored needs 2 devices or more"),
        (["strategy=multi_worker_mirrored"], "or strategy.processes_per_node where there is no GPU"),
        (["strategy=ddp", "strategy.processes_per_node=2"], "strategy=ddp is nothing of tensorflow"),
        (["strategy=horovod", "strategy.processes_per_node=2"], NO_HOROVOD),
        (["training.compile=true"], "training.compile=true is torch's"),
        (["precision=fp16"], "precision=fp16 is refused on this CPU: TensorFlow's CPU kernels"),
        (["model=mnist_cnn", "precision=bf16"], "beta_2=0.999 is 1 in BF16: choose amp_bf16"),
    ],
)
def test_what_tensorflow_cannot_do_is_refused_before_anything_starts(
    tmp_path: Path, hpcml_environ: dict[str, str], words: list[str], reason: str
) -> None:
    hpcml = Hpcml(hpcml_environ, tmp_path)

    done = hpcml("run", "model=linear_mse", *words, "model.framework=tensorflow")

    assert done.returncode == 2
    assert reason in said_in_one_line(done)
    assert hpcml.runs() == []


def test_horovod_starts_its_own_processes_whose_ranks_are_believed() -> None:
    ours = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}  # of the launcher, which hpcml has started
    horovods = {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1"}

    client = connect({**ours, **horovods})

    assert (client.rank, client.world_size, client.local_rank) == (3, 4, 1)
