from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from hpcml_train.data.twister import Twister

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_one_stream_gives_what_torch_draws_from_it(seed: int) -> None:
    twister, generator = Twister(seed), torch.Generator().manual_seed(seed)

    for count in (0, 1, 2, 1000):
        assert twister.permutation(count).tolist() == torch.randperm(count, generator=generator).tolist()
    assert twister.uniform(1000).tolist() == torch.rand(1000, generator=generator).tolist()
    assert twister.integers(256, 1000).tolist() == torch.randint(256, (1000,), generator=generator).tolist()
    assert twister.permutation(100).tolist() == torch.randperm(100, generator=generator).tolist()


def test_another_seed_is_another_order() -> None:
    assert Twister(0).permutation(100).tolist() != Twister(1).permutation(100).tolist()
