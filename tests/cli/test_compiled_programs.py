"""What torch.compile made of one run's graph is no other run's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpcml.runs.layout import RunDir
from tests.cli.command_line import Hpcml

pytestmark = pytest.mark.torch
PROGRAM = """
import torch
from torch._dynamo.utils import counters

@torch.compile
def f(x):
    return (x @ x).relu().sum()

f(torch.randn(16, 16, requires_grad=True)).backward()
print("compiled", sum(counters["frames"].values()), counters["stats"]["unique_graphs"])
print(counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"])
"""


def test_a_run_reuses_what_another_has_compiled_where_it_is_told_to_alone(hpcml: Hpcml, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (hpcml.cwd / "train.py").write_text(PROGRAM)
    kept = f"workload.env.TORCHINDUCTOR_CACHE_DIR={tmp_path}/kept"
    told = [f"workload.env.TORCHINDUCTOR_{name}_CACHE=1" for name in ("FX_GRAPH", "AUTOGRAD")]

    said = []
    for words in (told, [], told):
        done = hpcml("run", *words, kept, "--", sys.executable, "train.py")
        assert done.returncode == 0, done.stderr
        run = max(hpcml.runs(), key=lambda run: run["uid"])
        said.append(RunDir(Path(run["path"])).stdout(0, 0).read_text().split())

    assert [one[:3] for one in said] == [["compiled", "2", "1"]] * 3
    assert [int(one[3]) > 0 for one in said] == [False, False, True]
