"""What older torch does otherwise: switches that it has not."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from hpcml_train.torch import switches

pytestmark = pytest.mark.torch


def test_a_switch_that_this_torch_has_not_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Part:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"Unknown attribute {name}")  # as torch 2.1's torch.backends.cuda.matmul

    monkeypatch.setattr(switches, "_find", lambda _: Part())

    assert not switches._is_there("cuda.matmul.allow_fp16_accumulation")
