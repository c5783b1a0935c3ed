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
    resolved, unknown = float32.resolve(found, Seen(by_layer or {}, {}, on_gpu or {}), {}, allowed)
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

    products, unknown = float32.resolve(found, Seen({}, {}, {}), {}, [])

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

    assert sorted(float32.tf32_allowed(settings)) == allowed


def test_the_drivers_word_is_above_torchs_and_old_gpus_have_no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = {
        "cuda.matmul.fp32_precision": "ieee",
        "cudnn.conv.fp32_precision": "ieee",
        "cudnn.rnn.fp32_precision": "ieee",
    }
    opened = dict.fromkeys(closed, "tf32")

    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert sorted(float32.tf32_allowed(closed)) == ["attention", "conv", "linear", "rnn"]
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert float32.tf32_allowed(opened) == []
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, has in (((7, 0), False), ((7, 5), False), ((8, 0), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda found=capability: found)
        assert bool(float32.tf32_allowed(opened)) is has
