"""Programs without a line of hpcml's, observed by ``precision.observe=always``: real agents, real torch."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from hpcml.model.records import RunRecord
from hpcml.runs.layout import RunDir
from hpcml.store.ingest import ingest_run
from hpcml.store.opening import open_store
from hpcml.store.query import get_run
from tests.agent.node import MakeRun, agent, told

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

NET = """
import torch
torch.set_num_threads(1)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=HALF):
            hidden = self.body(x).relu()
        return self.head(hidden.float())
def train(model, steps=4):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
"""
PLAIN = f"HALF = False{NET}train(Net())\n"
HALF = f"HALF = True{NET}train(Net())\n"
MIXED = "mixed(60 % fp32, 40 % bf16: body)"


def known(run_dir: RunDir, folder: Path) -> RunRecord:
    """Return the run as a store knows it that has read its journals, and read them again."""
    records = []
    for name in ("one", "two"):
        with closing(open_store(f"sqlite:///{folder / name}.db")) as store:
            ingest_run(store, run_dir)
            records.append(get_run(store, run_dir.path.name))
    assert records[0] == records[1]
    return records[0]


def test_half_of_a_model_under_autocast_is_seen(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run(HALF, "precision=fp32", "precision.observe=always")

    done = agent(str(run_dir.path))

    record = known(run_dir, tmp_path)
    assert (done.returncode, run_dir.stderr(0, 0).read_text()) == (0, "")
    assert (record.precision_effective, record.numerics) == (MIXED, "native")
    assert record.facts["precision_evidence"] == "observed"
    assert [hello["how"] for hello in told(run_dir, "precision_observer")] == ["injected"]


def test_a_program_that_leaves_at_once_is_observed(make_run: MakeRun, tmp_path: Path) -> None:
    leaves = f"{HALF}import os\nif os.fork() == 0:\n    os._exit(0)\nos.wait()\nos._exit(0)\n"
    run_dir = make_run(leaves, "precision=fp32", "precision.observe=always")

    done = agent(str(run_dir.path))

    assert (done.returncode, run_dir.stderr(0, 0).read_text()) == (0, "")
    assert known(run_dir, tmp_path).precision_effective == MIXED


def test_nobody_looks_unless_asked(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run(HALF, "precision=fp32")

    agent(str(run_dir.path))

    assert not told(run_dir, "precision_observer")
    assert known(run_dir, tmp_path).precision_effective is None


def test_a_python_that_takes_nothing_from_its_environment_is_not_observed(make_run: MakeRun, tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-c", PLAIN]
    run_dir = make_run(PLAIN, "precision=fp32", "precision.observe=always", argv=argv)

    assert agent(str(run_dir.path)).returncode == 0

    assert known(run_dir, tmp_path).precision_effective == "not observed"


def test_a_program_that_takes_no_step_is_unknown(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run("import torch; torch.eye(3) @ torch.eye(3)", "precision=fp32", "precision.observe=always")

    assert agent(str(run_dir.path)).returncode == 0

    assert known(run_dir, tmp_path).precision_effective == "unknown"


def test_a_program_that_asks_for_its_precision_is_observed_once(make_run: MakeRun, tmp_path: Path) -> None:
    asks = "import hpcml_client\nrun = hpcml_client.connect()\nrun.apply_precision('torch')\n"
    run_dir = make_run(f"{asks}{HALF}run.close()\n", "precision=amp_bf16", "precision.observe=always")

    assert agent(str(run_dir.path)).returncode == 0

    record = known(run_dir, tmp_path)
    assert record.precision_effective == MIXED
    assert record.facts["precision_probed"] == "amp_bf16"
    assert {window["window"] for window in told(run_dir, "precision_observed")} == {0}
    assert len(told(run_dir, "precision_observed")) == 1


def test_asking_for_the_precision_is_enough_and_never_is_never(make_run: MakeRun, tmp_path: Path) -> None:
    asks = "import hpcml_client\nrun = hpcml_client.connect()\nrun.apply_precision('torch')\n"
    code = f"{asks}{PLAIN}run.close()\n"
    (never := tmp_path / "never").mkdir()
    first = make_run(code, "precision=amp_bf16", uid="20261121-083015-222aaaaa")
    second = make_run(code, "precision=amp_bf16", "precision.observe=never", uid="20261121-083015-222bbbbb")

    assert [agent(str(run_dir.path)).returncode for run_dir in (first, second)] == [0, 0]

    assert known(first, tmp_path).precision_effective == "not used(fp32)"
    probed = known(second, never)
    assert (probed.precision_effective, probed.facts["precision_evidence"]) == ("amp_bf16", "probed")


def test_a_sitecustomize_that_was_there_before_is_run_too(make_run: MakeRun, tmp_path: Path) -> None:
    (there := tmp_path / "there").mkdir()
    (there / "sitecustomize.py").write_text("import sys; sys.was_here = True\n")
    run_dir = make_run(f"import sys; assert sys.was_here\n{PLAIN}", "precision=fp32", "precision.observe=always")

    assert agent(str(run_dir.path), PYTHONPATH=str(there)).returncode == 0

    assert known(run_dir, tmp_path).precision_effective == "fp32"


def test_processes_that_the_program_starts_itself_are_observed(make_run: MakeRun, tmp_path: Path) -> None:
    script = tmp_path / "ddp.py"
    script.write_text(
        f"HALF = True{NET}"
        """
def work(rank, meeting):
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    train(torch.nn.parallel.DistributedDataParallel(Net()))
    dist.destroy_process_group()

if __name__ == "__main__":
    import sys
    torch.multiprocessing.spawn(work, (sys.argv[1],), nprocs=2)
"""
    )
    argv = [sys.executable, str(script), str(tmp_path / "meeting")]
    run_dir = make_run("", "precision=fp32", "precision.observe=always", argv=argv)

    assert agent(str(run_dir.path)).returncode == 0

    assert len(told(run_dir, "precision_observed")) == 2
    record = known(run_dir, tmp_path)
    assert record.precision_effective == MIXED
    assert record.incomplete is None


def test_a_step_that_is_compiled_whole_is_unknown_and_brings_no_word_of_the_compiler(
    make_run: MakeRun, tmp_path: Path
) -> None:
    compiled = f"""HALF = False{NET}
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

@torch.compile(backend="eager")
def step():
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()

for _ in range(12):
    step()
"""
    run_dir = make_run(compiled, "precision=fp32", "precision.observe=always")

    done = agent(str(run_dir.path))

    assert done.returncode == 0
    assert "does not know" not in run_dir.stderr(0, 0).read_text()  # of functions that it cannot compile
    assert known(run_dir, tmp_path).precision_effective == "unknown"
