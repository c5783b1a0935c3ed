"""allreduce: every algorithm sums rightly over any number of ranks, and bandwidths are what NCCL's tests call them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from numeric_runs import ROOT, load

from tests.cli.command_line import Hpcml
from tests.cluster.mpi import building

pytestmark = pytest.mark.torch
_ALL_RANKS = """
import os, sys, torch
from torch import distributed
sys.path.insert(0, sys.argv[1])
from algorithms import ALGORITHMS
rank, count = int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=count)
for size in (1, 2, 5, 64):
    for name, sum_up in ALGORITHMS.items():
        mine = torch.arange(size, dtype=torch.float64) * (rank + 1) + rank
        sum_up(mine)
        wanted = sum(torch.arange(size, dtype=torch.float64) * (r + 1) + r for r in range(count))
        assert torch.equal(mine, wanted), (name, size, rank, mine, wanted)
distributed.barrier()
os._exit(0)
"""


@pytest.mark.parametrize("count", [5])
def test_every_algorithm_gives_every_rank_the_sum(tmp_path: Path, count: int) -> None:
    words = [
        sys.executable,
        "-W",
        "error",
        "-c",
        _ALL_RANKS,
        str(ROOT / "recipes" / "allreduce"),
        str(tmp_path / "met"),
    ]
    ranks = [
        subprocess.Popen([*words, str(rank), str(count)], stderr=subprocess.PIPE, text=True, env=dict(os.environ))
        for rank in range(count)
    ]
    try:
        said = [rank.communicate(timeout=300)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * count, said


def test_the_bandwidth_of_the_bus_is_what_every_rank_must_send() -> None:
    as_metrics = load("allreduce").as_metrics

    # NCCL's tests (PERFORMANCE.md): busbw = algbw * 2(n-1)/n; 10^9 bytes in half a second are 2 GB/s
    assert as_metrics(10**9, 2, 0.5) == {"busbw_gbs": 2.0, "algbw_gbs": 2.0, "latency_us": 500_000.0}
    assert as_metrics(10**9, 8, 0.5)["busbw_gbs"] == pytest.approx(3.5)


def test_a_wrong_sum_fails_the_run() -> None:
    import torch  # noqa: PLC0415 - only where it is installed

    training = load("allreduce")
    tensor = torch.empty(100)
    training._fill(tensor, 0)

    with pytest.raises(training.TrainingFailed, match="of 100 sums over 3 ranks are wrong"):
        training._check(tensor, 3)


def test_two_processes_measure_and_are_compared(tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    hpcml = Hpcml(hpcml_environ, tmp_path)
    words = ["model=allreduce", "strategy=ddp", "strategy.processes_per_node=2", "model.options.sizes=[64,4096]"]

    done = hpcml("run", "-m", *words, "model.options.algorithm=ring,tree", "telemetry.enabled=false")

    assert done.returncode == 0, done.stderr
    compared = hpcml("compare", "--by", "model.options.algorithm", "--json")
    assert compared.returncode == 0, compared.stderr
    assert "busbw_gbs" in compared.stdout
    for run in hpcml.runs():
        shown = json.loads(hpcml("show", "--json", run["uid"]).stdout)
        assert set(shown["metrics"]) >= {"busbw_gbs", "algbw_gbs", "latency_us", "share_of_best"}


def test_one_process_and_what_cannot_be_summed_are_refused(tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    hpcml = Hpcml(hpcml_environ, tmp_path)

    alone = hpcml("run", "model=allreduce")
    eight_bits = hpcml("run", "model=allreduce", "strategy=ddp", "strategy.processes_per_node=2", "precision=fp8_e4m3")

    assert (alone.returncode, eight_bits.returncode) == (2, 2)
    assert "strategy=single is not in the recipe allreduce: choose ddp" in alone.stderr
    assert "torch sums no FP8" in eight_bits.stderr


def test_the_same_sums_are_timed_over_mpi(tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    pytest.importorskip("mpi4py")
    if reason := building.missing():
        assert os.environ.get("CI") != "true", reason
        pytest.skip(reason)
    hpcml = Hpcml(hpcml_environ, tmp_path)
    words = ["model=allreduce", "strategy=mpi", "strategy.processes_per_node=2", "resources.cpus_per_task=1"]
    sizes = ["model.options.sizes=[1024,4096]", "model.options.repeats=2", "telemetry.enabled=false"]

    done = hpcml("run", *words, *sizes, *building.settings())

    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    assert run["state"] == "COMPLETED", run["reason"]
    journals = {
        path.name.rpartition("-")[2]: path.read_text() for path in Path(run["path"]).glob("journal/*rank*.jsonl")
    }
    events = "".join(journals.values())
    assert '"backend":"mpi: Open MPI' in events
