"""What older torch does otherwise: traces as 2.0.1 and 2.1.2 wrote them, and switches that they have not.

The traces are of ``Linear(4, 2)`` on a CPU with three samples: a pass without gradients, and one step under autocast to
bfloat16.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hpcml_train.torch import switches, traces

pytestmark = pytest.mark.torch
RECORDED = Path(__file__).with_name("recorded")


@pytest.mark.parametrize("name", ["torch_2_0_amp", "torch_2_1_amp"])
def test_the_traces_of_torch_2_0_and_2_1_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))

    found = traces.read_trace(str(path))

    assert not found.unknown
    assert [(one.format, one.phase, one.layer) for one in found.products] == [
        ("fp32", "evaluation", "head"),
        ("bf16", "forward", "head"),
        ("bf16", "backward", "head"),
    ]
    assert {one.flops for one in found.products} == {2.0 * 3 * 4 * 2}


def test_a_node_of_neither_form_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"schema": "1.0.1", "nodes": [{"name": "aten::mm", "id": 1}]}')

    with pytest.raises(traces.TraceError, match=r"a node has no 'inputs?_shapes'"):
        traces.read_trace(str(path))


def test_a_switch_that_this_torch_has_not_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Part:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"Unknown attribute {name}")  # as torch 2.1's torch.backends.cuda.matmul

    monkeypatch.setattr(switches, "_find", lambda _: Part())

    assert not switches._is_there("cuda.matmul.allow_fp16_accumulation")
