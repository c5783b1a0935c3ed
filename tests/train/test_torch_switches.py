from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from hpcml_client.formats import name_precision  # noqa: E402
from hpcml_train.torch import switches as torch_switches  # noqa: E402
from hpcml_train.torch.arithmetic import Arithmetic  # noqa: E402
from hpcml_train.torch.probe import measure_precision  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch_as_found")]
NEW = pytest.mark.skipif(not torch_switches.has_fp32_precision(), reason="this torch has the old switches")

# Torch 2.13 has both interfaces; without the attribute that tells them apart it is a torch before 2.9 to our code.
HIDDEN = """
import json, torch
if hasattr(torch.backends, "fp32_precision"):
    del type(torch.backends).fp32_precision
from hpcml_train.torch import switches as torch_switches
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.probe import measure_precision
told = {"found": torch_switches.read_switches()}
told["tf32"] = dict(Arithmetic("tf32", numerics="native").switches)
with torch_switches.ieee():
    told["inside"] = torch_switches.read_switches()
told["after"] = torch_switches.read_switches()
told["fp32"] = dict(Arithmetic("fp32").switches)
told["proof"] = measure_precision(Arithmetic("fp32"))
print(json.dumps(told))
"""
MIXED = """
import json, torch
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.probe import measure_precision
arithmetic = Arithmetic("fp32")
torch.backends.cudnn.allow_tf32 = True  # a program of before 2.9, after ours
told = {"flipped": measure_precision(arithmetic)["flipped"]}
try:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cuda.matmul.allow_tf32
except RuntimeError as error:
    told["raised"] = str(error)
Arithmetic("fp32")
told["again"] = measure_precision(Arithmetic("fp32"))["flipped"]
print(json.dumps(told))
"""


def _told(script: str) -> dict[str, dict[str, object]]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found: dict[str, dict[str, object]] = json.loads(done.stdout)
    return found


def test_a_torch_before_2_9_gets_every_switch_by_its_old_interface() -> None:
    told = _told(HIDDEN)

    tf32 = {"float32_matmul_precision", "cuda.matmul.allow_tf32", "cudnn.allow_tf32"}
    assert told["found"]["cudnn.allow_tf32"] is True  # torch's own default, under which FP32 convolutions are TF32
    assert {name: told["tf32"][name] for name in tf32} == {
        "float32_matmul_precision": "high",
        "cuda.matmul.allow_tf32": True,
        "cudnn.allow_tf32": True,
    }
    assert told["after"] == told["tf32"]
    assert told["inside"] == told["fp32"] == told["proof"]["switches"]
    assert {name: told["fp32"][name] for name in tf32} == {
        "float32_matmul_precision": "highest",
        "cuda.matmul.allow_tf32": False,
        "cudnn.allow_tf32": False,
    }
    assert told["proof"]["flipped"] == {}


@NEW
def test_who_mixes_the_interfaces_is_found_out_and_the_next_arithmetic_puts_it_right() -> None:
    told = _told(MIXED)

    assert told["flipped"] == {"cudnn.conv.fp32_precision": "tf32", "cudnn.rnn.fp32_precision": "tf32"}
    assert "mix of the legacy and new APIs" in str(told["raised"])
    assert told["again"] == {}


@NEW
@pytest.mark.parametrize("precision", ["fp64", "fp32", "amp_fp16", "amp_bf16", "bf16", "fp16"])
def test_every_switch_is_stated_for_every_precision(precision: str) -> None:
    for part in ("", "cudnn.", "cuda.matmul.", "cudnn.conv.", "cudnn.rnn.", "mkldnn.conv.", "mkldnn.matmul."):
        torch_switches._write(f"{part}fp32_precision", "tf32")
    torch_switches._write("cuda.matmul.allow_fp16_reduced_precision_reduction", True)  # noqa: FBT003
    torch_switches._write("cuda.matmul.allow_bf16_reduced_precision_reduction", True)  # noqa: FBT003
    torch_switches._write("cuda.matmul.allow_fp16_accumulation", True)  # noqa: FBT003
    torch_switches._write("cuda.allow_fp16_bf16_reduction_math_sdp", True)  # noqa: FBT003

    switches = Arithmetic(precision).switches

    assert set(switches.values()) == {"ieee", False}
    assert len(switches) == 15


@NEW
def test_a_switch_that_somebody_flips_later_is_named() -> None:
    arithmetic = Arithmetic("fp32")
    assert measure_precision(arithmetic)["flipped"] == {}

    torch.backends.cudnn.conv.fp32_precision = "tf32"

    assert measure_precision(arithmetic)["flipped"] == {"cudnn.conv.fp32_precision": "tf32"}


def test_how_kernels_are_chosen_is_recorded_and_left_alone() -> None:
    torch.backends.cudnn.benchmark = True

    found = measure_precision(Arithmetic("fp32"))

    assert found["switches"]["cudnn.benchmark"] is True
    assert found["flipped"] == {}
    assert torch.backends.cudnn.benchmark


def test_an_autocast_that_somebody_leaves_on_is_measured() -> None:
    arithmetic = Arithmetic("fp32")

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = measure_precision(arithmetic)

    assert name_precision(found["products"], found["parameters"]) == "amp_bf16"


def test_a_convolution_in_another_format_makes_it_mixed() -> None:
    convolve = torch.nn.Conv2d._conv_forward

    def rounded(layer: torch.nn.Conv2d, x: torch.Tensor, *rest: torch.Tensor | None) -> torch.Tensor:
        return convolve(layer, x.bfloat16().float(), *rest)

    torch.nn.Conv2d._conv_forward = rounded  # type: ignore[assignment]
    try:
        found = measure_precision(Arithmetic("fp32"))
    finally:
        torch.nn.Conv2d._conv_forward = convolve  # type: ignore[method-assign]

    assert name_precision(found["products"], found["parameters"]) == (
        "mixed(conv=bf16, matmul=fp32, parameters=float32)"
    )


@pytest.mark.gpu
@NEW
def test_a_switch_that_somebody_flips_later_is_measured_on_a_gpu() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("no GPU with TF32")
    arithmetic = Arithmetic("fp32", device=torch.device("cuda", 0))
    torch.backends.cudnn.conv.fp32_precision = "tf32"

    found = measure_precision(arithmetic)

    assert name_precision(found["products"], found["parameters"]) == (
        "mixed(conv=tf32, matmul=fp32, parameters=float32)"
    )
