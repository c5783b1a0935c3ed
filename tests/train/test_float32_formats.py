"""What float32 on a GPU is called: by switches, and by what a probe measured under the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hpcml_train.torch import float32
from hpcml_train.torch.float32 import Leave, Probed
from hpcml_train.torch.traces import FLOAT32_ELSEWHERE, FLOAT32_ON_GPU, Found, Product

pytestmark = [pytest.mark.torch]

CONV, LINEAR, RNN, ATTENTION = "conv", "linear", "rnn", "attention"


def product(kind: str, layer: str | None = None, phase: str = "forward", form: str = FLOAT32_ON_GPU) -> Product:
    return Product(form, phase, layer, 10.0, kind=kind)


def leave(*, on_gpu: Sequence[str] = (), on_cpu: Sequence[str] = ()) -> Leave:
    found = Leave(None)
    found.on_gpu, found.on_cpu = {*on_gpu}, {*on_cpu}
    return found


def formats(*products: Product, allowed: Sequence[str] = (), measured: dict[str, str] | None = None) -> list[str]:
    """Return what *products* are called where TF32 is *allowed*, in a probe of what it *measured*, too."""
    found = Found(list(products), {}, 1)
    resolved, unknown = float32.resolve(found, leave(on_gpu=allowed), Probed(on_gpu=measured or {}))
    assert not unknown
    return [one.format for one in resolved]


@pytest.mark.parametrize("kind", [CONV, LINEAR, RNN, ATTENTION])
def test_where_tf32_is_switched_off_it_is_fp32_whatever_was_probed(kind: str) -> None:
    products = product(kind), product(kind, phase="backward")

    assert formats(*products) == formats(*products, measured={kind: "tf32"}) == ["fp32", "fp32"]


def test_where_tf32_is_allowed_it_is_what_the_probe_measured_of_its_kind() -> None:
    """As PyTorch is by default: cuDNN may use TF32, cuBLAS may not; LSTM is cuDNN's."""
    found = formats(
        product(LINEAR, "head"),
        product(RNN, "rnn"),
        product(CONV, "conv", "backward"),
        allowed=[CONV, RNN],
        measured={CONV: "tf32", RNN: "fp32"},
    )

    assert found == ["fp32", "fp32", "tf32"]


def test_what_no_probe_measured_under_the_same_switches_is_only_said_to_be_allowed() -> None:
    assert formats(product(LINEAR), product(ATTENTION), allowed=[LINEAR, ATTENTION]) == ["tf32 allowed"] * 2


def test_of_a_probe_counts_what_had_leave_when_it_measured() -> None:
    products = {"matmul": "fp32", "conv": "tf32"}

    assert float32.probed(products, "cuda", leave(on_gpu=[CONV, RNN])) == Probed(on_gpu={CONV: "tf32", RNN: "tf32"})
    assert float32.probed({"matmul": "bf16"}, "cpu", leave(on_cpu=[LINEAR, ATTENTION, CONV])) == Probed(
        on_cpu={LINEAR: "bf16"}
    )
    assert float32.probed(products, "cpu", leave(on_gpu=[CONV])) == Probed()
    assert float32.probed(products, "cuda", leave(on_gpu=[RNN])) == Probed()  # the convolution had none


def test_other_devices_and_factors_of_several_types_stay_unknown() -> None:
    found = Found([product(LINEAR, form=FLOAT32_ELSEWHERE), product(LINEAR, form=f"bf16x{FLOAT32_ON_GPU}")], {}, 2)

    products, unknown = float32.resolve(found, leave(), Probed())

    assert not products
    assert unknown == {FLOAT32_ELSEWHERE: 10.0, f"bf16x{FLOAT32_ON_GPU}": 10.0}


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
    monkeypatch.setattr(float32, "_has_tf32", lambda: True)

    assert sorted(float32.tf32_allowed(settings, None)) == allowed


def test_the_drivers_word_is_above_torchs_and_old_gpus_have_no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = {
        "cuda.matmul.fp32_precision": "ieee",
        "cudnn.conv.fp32_precision": "ieee",
        "cudnn.rnn.fp32_precision": "ieee",
    }
    opened = dict.fromkeys(closed, "tf32")

    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert sorted(float32.tf32_allowed(closed, None)) == ["attention", "conv", "linear", "rnn"]
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert float32.tf32_allowed(opened, "0") == []
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
        assert bool(float32.tf32_allowed(opened, None)) is has


def test_what_a_program_tells_the_driver_when_it_runs_may_be_read_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = dict.fromkeys(("cuda.matmul.fp32_precision", "cudnn.conv.fp32_precision"), "tf32")

    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert sorted(float32.tf32_allowed(opened, None)) == ["attention", "conv", "linear", "rnn"]
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    assert sorted(float32.tf32_allowed(opened, "0")) == ["attention", "conv", "linear", "rnn"]
    assert sorted(float32.tf32_allowed({"cuda.matmul.fp32_precision": "ieee"}, "1")) == [
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

    assert float32.tf32_allowed({}, None)


def test_leave_that_is_given_for_a_part_of_a_step_is_remembered(
    monkeypatch: pytest.MonkeyPatch, torch_as_found: None
) -> None:
    del torch_as_found
    monkeypatch.setattr(float32, "_has_tf32", lambda: True)
    part = "fp32_precision" if hasattr(torch.backends, "fp32_precision") else "allow_tf32"
    matmul: Any = torch.backends.cuda.matmul
    closed, opened = ("ieee", "tf32") if part == "fp32_precision" else (False, True)
    setattr(matmul, part, closed)
    seen = float32.Leave(None)
    before = {*seen.on_gpu}

    setattr(matmul, part, opened)
    seen.look()
    setattr(matmul, part, closed)
    seen.look()

    assert seen.on_gpu - before == {LINEAR, ATTENTION}


def test_each_kind_of_layer_has_its_own_switch_on_a_cpu() -> None:
    closed = dict.fromkeys((f"mkldnn.{part}.fp32_precision" for part in ("matmul", "conv", "rnn")), "ieee")

    assert float32.open_on_cpu(closed) == float32.open_on_cpu({}) == []  # older torch has none
    assert float32.open_on_cpu({**closed, "mkldnn.rnn.fp32_precision": "bf16"}) == [RNN]
    assert sorted(float32.open_on_cpu(None)) == [ATTENTION, CONV, LINEAR, RNN]  # nobody can read them


def test_on_a_cpu_with_an_open_switch_it_is_what_the_probe_measured_and_else_unknown() -> None:
    found = Found([product(LINEAR, form="fp32"), product(CONV, form="fp32")], {}, 1)

    resolved, unknown = float32.resolve(found, leave(on_cpu=[LINEAR, CONV]), Probed(on_cpu={LINEAR: "bf16"}))

    assert [(one.kind, one.format) for one in resolved] == [(LINEAR, "bf16")]
    assert unknown == {"float32 with oneDNN's conv switch open": 10.0}
