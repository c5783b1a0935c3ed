"""What float32 on a GPU is called: by switches, and by numbers of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hpcml_train.torch import float32
from hpcml_train.torch.float32 import Seen
from hpcml_train.torch.traces import FLOAT32_ELSEWHERE, FLOAT32_ON_GPU, Found, Product

pytestmark = [pytest.mark.torch]

CONV, LINEAR, RNN, ATTENTION = "conv", "linear", "rnn", "attention"


def product(kind: str, layer: str | None = None, phase: str = "forward", form: str = FLOAT32_ON_GPU) -> Product:
    return Product(form, phase, layer, 10.0, kind=kind)


def formats(
    *products: Product,
    allowed: Sequence[str] = (),
    by_layer: dict[str, str | None] | None = None,
    on_gpu: dict[str, list[str]] | None = None,
) -> list[str]:
    """Return what *products* are called."""
    found = Found(list(products), {}, 1)
    resolved, unknown = float32.resolve(found, Seen(by_layer or {}, {}, on_gpu or {}), on_cpu=[], on_gpu=allowed)
    assert not unknown
    return [one.format for one in resolved]


@pytest.mark.parametrize("kind", [CONV, LINEAR, RNN, ATTENTION])
def test_where_tf32_is_switched_off_it_is_fp32_without_any_number(kind: str) -> None:
    assert formats(product(kind), product(kind, phase="backward")) == ["fp32", "fp32"]


def test_what_one_kind_of_layer_shows_says_nothing_of_another() -> None:
    """As PyTorch is by default: cuDNN may use TF32, cuBLAS may not; LSTM is cuDNN's."""
    found = formats(
        product(LINEAR, "head"),
        product(RNN, "rnn"),
        product(CONV, "conv"),
        allowed=[CONV, RNN],
        by_layer={"head": "fp32", "conv": "tf32"},
        on_gpu={LINEAR: ["fp32"], CONV: ["tf32"]},
    )

    assert found == ["fp32", "tf32 allowed", "tf32"]


def test_a_layer_in_fp32_does_not_stand_for_the_others_nor_for_its_own_gradients() -> None:
    found = formats(
        product(CONV, "first"),
        product(CONV, "first", "backward"),
        product(CONV, "second"),
        product(CONV, "second", "backward"),
        product(CONV, "not sampled"),
        product(CONV),
        allowed=[CONV],
        by_layer={"first": "fp32", "second": "tf32"},
        on_gpu={CONV: ["fp32", "tf32"]},
    )

    assert found == ["tf32 allowed", "tf32 allowed", "tf32", "tf32", "tf32 allowed", "tf32 allowed"]


def test_where_all_samples_are_in_tf32_so_is_what_was_not_sampled() -> None:
    told: dict[str, Any] = {"allowed": [LINEAR, ATTENTION], "on_gpu": {LINEAR: ["tf32", "tf32"]}}

    assert formats(product(LINEAR, "functional"), product(LINEAR), **told) == ["tf32", "tf32"]
    # but what was sampled and told nothing, and what has kernels of its own
    assert formats(product(LINEAR, "short"), by_layer={"short": None}, **told) == ["tf32 allowed"]
    assert formats(product(ATTENTION), **told) == ["tf32 allowed"]


def test_numbers_count_more_than_a_switch() -> None:
    told: dict[str, Any] = {"by_layer": {"body": "tf32"}, "on_gpu": {LINEAR: ["fp32", "tf32"]}}

    assert formats(product(LINEAR, "body"), product(LINEAR, "head"), **told) == ["tf32", "tf32 allowed"]


def test_other_devices_and_factors_of_several_types_stay_unknown() -> None:
    found = Found([product(LINEAR, form=FLOAT32_ELSEWHERE), product(LINEAR, form=f"bf16x{FLOAT32_ON_GPU}")], {}, 2)

    products, unknown = float32.resolve(found, Seen({}, {}, {}), on_cpu=[], on_gpu=[])

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
    leave = float32.Leave(None)
    before = {*leave.on_gpu}

    setattr(matmul, part, opened)
    leave.look()
    setattr(matmul, part, closed)
    leave.look()

    assert leave.on_gpu - before == {LINEAR, ATTENTION}


def test_of_a_layer_that_shows_several_formats_nothing_is_said() -> None:
    """It computes in several sizes, or two models of a program have a layer of that name."""
    small, large = (CONV, "cuda:0", 1), (CONV, "cuda:0", 2)

    numbers = float32.seen(
        {small: "fp32", large: "tf32"}, {"both": {small, large}, "one": {large}, "late": {(CONV, "cuda:0", 3)}}
    )

    assert numbers.by_layer == {"both": None, "one": "tf32"}
    assert numbers.on_gpu == {CONV: ["fp32", "tf32"]}


def test_each_kind_of_layer_has_its_own_switch_on_a_cpu() -> None:
    closed = dict.fromkeys((f"mkldnn.{part}.fp32_precision" for part in ("matmul", "conv", "rnn")), "ieee")

    assert float32.open_on_cpu(closed) == float32.open_on_cpu({}) == []  # older torch has none
    assert float32.open_on_cpu({**closed, "mkldnn.rnn.fp32_precision": "bf16"}) == [RNN]
    assert sorted(float32.open_on_cpu(None)) == [ATTENTION, CONV, LINEAR, RNN]  # nobody can read them


def test_on_a_cpu_a_small_layer_in_fp32_does_not_stand_for_a_large_one_in_bf16() -> None:
    """OneDNN leaves small products to others."""
    products = [product(LINEAR, layer, form="fp32") for layer in ("small", "large", None)]
    numbers = Seen({"small": "fp32", "large": "bf16"}, {LINEAR: ["fp32", "bf16"]}, {})

    resolved, unknown = float32.resolve(Found(products, {}, 1), numbers, on_cpu=[LINEAR], on_gpu=[])

    assert [(one.layer, one.format) for one in resolved] == [("small", "fp32"), ("large", "bf16")]
    assert unknown == {"float32 with oneDNN's linear switch open": 10.0}
