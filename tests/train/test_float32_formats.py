"""What float32 on a GPU is called: by switches, and by what a probe measured under the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hpcml_train.torch import observed_float32
from hpcml_train.torch.observed_float32 import Float32

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch_as_found")]

CONV, LINEAR, RNN, ATTENTION = "conv", "linear", "rnn", "attention"
KINDS = (CONV, LINEAR, RNN, ATTENTION)


def formats(
    monkeypatch: pytest.MonkeyPatch, device: str, *, allowed: Sequence[str], probed: dict[str, str] | None = None
) -> dict[str, str | None]:
    """Return what products of each kind are called where less than FP32 is *allowed*, for the probe too."""
    monkeypatch.setattr(observed_float32, "tf32_allowed", lambda *_: list(allowed))
    monkeypatch.setattr(observed_float32, "open_on_cpu", lambda _: list(allowed))
    seen = Float32()
    if probed is not None:
        seen.know_probe(probed, device)
    return {kind: seen.format_of(kind, device) for kind in KINDS}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_where_nothing_less_is_allowed_it_is_fp32_whatever_was_probed(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    found = formats(monkeypatch, device, allowed=[], probed={"matmul": "tf32", "conv": "tf32"})

    assert found == dict.fromkeys(KINDS, "fp32")


def test_where_tf32_is_allowed_it_is_what_the_probe_measured_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch is by default: cuDNN may use TF32, cuBLAS may not; LSTM is cuDNN's."""
    found = formats(monkeypatch, "cuda", allowed=[CONV, RNN], probed={"matmul": "fp32", "conv": "tf32"})

    assert found == {CONV: "tf32", RNN: "tf32", LINEAR: "fp32", ATTENTION: "fp32"}


def test_what_no_probe_measured_under_the_same_switches_is_only_said_to_be_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert set(formats(monkeypatch, "cuda", allowed=KINDS).values()) == {"tf32 allowed"}
    of_recurrent_layers = formats(monkeypatch, "cuda", allowed=[RNN], probed={"conv": "tf32"})
    assert of_recurrent_layers[RNN] == "tf32 allowed"  # the probe's convolution had no leave


def test_on_a_cpu_with_an_open_switch_it_is_what_the_probe_measured_and_else_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = formats(monkeypatch, "cpu", allowed=[LINEAR, CONV], probed={"matmul": "bf16"})

    assert found == {LINEAR: "bf16", CONV: None, RNN: "fp32", ATTENTION: "fp32"}


def test_on_other_devices_it_is_unknown() -> None:
    assert Float32().format_of(LINEAR, "xpu") is None


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        (
            {
                "cuda.matmul.fp32_precision": "ieee",
                "cudnn.conv.fp32_precision": "none",
                "cudnn.rnn.fp32_precision": "ieee",
            },
            [],
        ),
        (
            {
                "cuda.matmul.fp32_precision": "none",
                "cudnn.conv.fp32_precision": "tf32",
                "cudnn.rnn.fp32_precision": "tf32",
            },
            ["conv", "rnn"],
        ),
        (
            {
                "cuda.matmul.fp32_precision": "tf32",
                "cudnn.conv.fp32_precision": "ieee",
                "cudnn.rnn.fp32_precision": "ieee",
            },
            ["attention", "linear"],
        ),
        ({"cuda.matmul.allow_tf32": False, "cudnn.allow_tf32": True}, ["conv", "rnn"]),
        ({"cuda.matmul.allow_tf32": True, "cudnn.allow_tf32": False}, ["attention", "linear"]),
        (
            {},
            ["attention", "conv", "linear", "rnn"],
        ),  # a program that has mixed torch's two interfaces: nobody can read them
    ],
)
def test_the_switches_say_what_may_be_tf32(
    settings: dict[str, Any], allowed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    monkeypatch.setattr(observed_float32, "_has_tf32", lambda: True)

    assert sorted(observed_float32.tf32_allowed(settings, None)) == allowed


def test_the_drivers_word_is_above_torchs_and_old_gpus_have_no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = {
        "cuda.matmul.fp32_precision": "ieee",
        "cudnn.conv.fp32_precision": "ieee",
        "cudnn.rnn.fp32_precision": "ieee",
    }
    opened = dict.fromkeys(closed, "tf32")

    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert sorted(observed_float32.tf32_allowed(closed, None)) == ["attention", "conv", "linear", "rnn"]
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert observed_float32.tf32_allowed(opened, "0") == []
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for capabilities, has in (
        ([(7, 0)], False),
        ([(7, 5)], False),
        ([(8, 0)], True),
        ([(9, 0)], True),
        ([(7, 0), (8, 0)], True),  # the layer may be on the other one
    ):
        monkeypatch.setattr(torch.cuda, "device_count", lambda found=capabilities: len(found))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda at, found=capabilities: found[at])
        assert bool(observed_float32.tf32_allowed(opened, None)) is has


def test_what_a_program_tells_the_driver_when_it_runs_may_be_read_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = dict.fromkeys(("cuda.matmul.fp32_precision", "cudnn.conv.fp32_precision"), "tf32")

    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert sorted(observed_float32.tf32_allowed(opened, None)) == ["attention", "conv", "linear", "rnn"]
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    assert sorted(observed_float32.tf32_allowed(opened, "0")) == ["attention", "conv", "linear", "rnn"]
    assert sorted(observed_float32.tf32_allowed({"cuda.matmul.fp32_precision": "ieee"}, "1")) == [
        "attention",
        "conv",
        "linear",
        "rnn",
    ]


def test_a_gpu_that_the_program_does_not_use_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> None:
        raise AssertionError("this takes memory of the GPU")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", ask)

    assert observed_float32.tf32_allowed({}, None)


def test_each_kind_of_layer_has_its_own_switch_on_a_cpu() -> None:
    closed = dict.fromkeys((f"mkldnn.{part}.fp32_precision" for part in ("matmul", "conv", "rnn")), "ieee")

    assert observed_float32.open_on_cpu(closed) == observed_float32.open_on_cpu({}) == []  # older torch has none
    assert observed_float32.open_on_cpu({**closed, "mkldnn.rnn.fp32_precision": "bf16"}) == [RNN]
    assert sorted(observed_float32.open_on_cpu(None)) == [ATTENTION, CONV, LINEAR, RNN]  # nobody can read them
