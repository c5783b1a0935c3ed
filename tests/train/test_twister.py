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


@pytest.mark.parametrize("count", [16, 17, 1000, 1003])
def test_normal_numbers_are_those_of_torch_up_to_the_last_digits(count: int) -> None:
    twister, generator = Twister(0), torch.Generator().manual_seed(0)

    assert twister.normal(count).tolist() == pytest.approx(torch.randn(count, generator=generator).tolist(), abs=1e-6)
    assert twister.integers(10, 5).tolist() == torch.randint(10, (5,), generator=generator).tolist()


def test_fewer_than_a_block_of_normal_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="count=15 must be at least 16"):
        Twister(0).normal(15)


def test_another_seed_is_another_order() -> None:
    assert Twister(0).permutation(100).tolist() != Twister(1).permutation(100).tolist()
