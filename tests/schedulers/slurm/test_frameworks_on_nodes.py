"""Programs on torchrun's variables, accelerate, Trainer and Lightning find each other on two nodes of a real Slurm."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.cluster.slurm.account import Account
from tests.effort import is_full
from tests.schedulers.slurm.user import Hpcml

pytestmark = pytest.mark.slurm

PROGRAMS = {
    "torch": """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
ranks = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(ranks)
print("found", dist.get_rank(), dist.get_world_size(), int(ranks))
dist.destroy_process_group()
""",
    "accelerate": """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
ranks = accelerator.reduce(torch.tensor([1.0 + accelerator.process_index]))
print("found", accelerator.process_index, accelerator.num_processes, int(ranks))
accelerator.end_training()
""",
    "lightning": """
import torch, lightning.pytorch as pl
class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        return self.line(batch).square().mean()
    def on_train_end(self):
        ranks = self.trainer.strategy.reduce(torch.tensor(1.0 + self.trainer.global_rank), reduce_op="sum")
        print("found", self.trainer.global_rank, self.trainer.world_size, int(ranks))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
trainer = pl.Trainer(accelerator="cpu", devices=1, num_nodes=2, max_steps=2, logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Line(), torch.utils.data.DataLoader(torch.randn(16, 4), 4))
""",
    "transformers": """
import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
class Line(PreTrainedModel):
    config_class = PretrainedConfig
    def __init__(self, config):
        super().__init__(config)
        self.line = torch.nn.Linear(4, 1)
        self.post_init()
    def forward(self, x, labels):
        y = self.line(x).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(y, labels), "logits": y}
args = TrainingArguments("out", max_steps=2, use_cpu=True, disable_tqdm=True, report_to="none", save_strategy="no")
data = [{"x": torch.ones(4) * i, "labels": torch.tensor(float(i))} for i in range(8)]
trainer = Trainer(Line(PretrainedConfig()), args, train_dataset=data)
trainer.train()
ranks = trainer.accelerator.reduce(torch.tensor([1.0 + args.process_index]))
print("found", args.process_index, args.world_size, int(ranks))
""",
}
USUAL = ("torch",)  # each takes several seconds to import on each node: the full suite tries all


@pytest.fixture
def hpcml(slurm: Account, folder: Path) -> Hpcml:
    return Hpcml(slurm, folder)


@pytest.mark.parametrize("framework", PROGRAMS)
def test_the_processes_of_two_nodes_find_each_other(hpcml: Hpcml, framework: str) -> None:
    if not is_full() and framework not in USUAL:
        pytest.skip("HPCML_TESTS=full tries it")
    spec = importlib.util.find_spec(framework)
    if spec is None or spec.origin is None:
        pytest.skip(f"{framework} is not installed")
    installed = str(Path(spec.origin).parents[1])
    found = hpcml.account.run(
        [str(hpcml.account.python), "-c", "import numpy"], cwd=hpcml.project, environ={"PYTHONPATH": installed}
    )
    if found.returncode:
        pytest.skip(f"the user of the cluster may not import what lies in {installed}: {found.stderr.decode()[-200:]}")
    hpcml.write("train.py", PROGRAMS[framework])
    words = [
        "strategy=ddp",
        "strategy.processes_per_node=1",
        "resources.nodes=2",
        "resources.partition=qgpu",
        "resources.mem=2G",
    ]

    done = hpcml.run(*words, f"workload.env.PYTHONPATH={installed}", "workload.command=python3 train.py")

    assert done.returncode == 0, done.stderr.decode()
    (run,) = hpcml.runs_once_ended()
    assert run["state"] == "COMPLETED", (run, hpcml("logs", run["uid"], "--err").stdout.decode())
    said = [hpcml("logs", run["uid"], "--rank", str(rank)).stdout.decode() for rank in range(2)]
    assert [line for text in said for line in text.splitlines() if line.startswith("found")] == [
        "found 0 2 3",
        "found 1 2 3",
    ]
