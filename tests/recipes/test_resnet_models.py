from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.flop_counter import FlopCounterMode
from vision_runs import load_module

pytestmark = pytest.mark.torch
MODELS = load_module("resnet", "models").MODELS


# parameters: exact, as every implementation of the paper has them; GFLOPS: torchvision's table of its models, which
# counts a multiply-add as one
@pytest.mark.parametrize(
    ("name", "parameters", "gmacs"), [("resnet18", 11_689_512, 1.81), ("resnet50", 25_557_032, 4.09)]
)
def test_the_networks_have_the_published_size(name: str, parameters: int, gmacs: float) -> None:
    with torch.device("meta"):
        model = MODELS[name](1000)
        counter = FlopCounterMode(display=False)
        with counter:
            logits = model(torch.zeros(1, 3, 224, 224))

    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert logits.shape == (1, 1000)
    assert counter.get_total_flops() / 2e9 == pytest.approx(gmacs, abs=0.005)


def test_a_block_adds_its_shortcut() -> None:
    block = load_module("resnet", "models").Block(4, 4, 1).eval()
    with torch.no_grad():
        for parameter in block.body.parameters():
            parameter.zero_()
    x = torch.arange(-8.0, 8.0).reshape(1, 4, 2, 2)

    assert torch.equal(block(x), x.clamp(min=0))
