from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def models() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "recipes" / "image_classification" / "models.py"
    spec = importlib.util.spec_from_file_location("image_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "parameters"), [("mnist_cnn", 354_002), ("mnist_mlp", 12_730)])
def test_the_networks_have_the_published_size(models: ModuleType, name: str, parameters: int) -> None:
    model = models.MODELS[name]()

    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_the_layers_have_the_published_sizes(models: ModuleType) -> None:
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in models.mnist_cnn()]

    assert [size for size in sizes if size] == [120, 10_392, 27_680, 313_800, 2_010]


# tf.nn.conv2d(padding="SAME"): ceil(size / stride) outputs, and an odd zero goes behind
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [
        (28, 3, 1, (1, 1)),
        (28, 6, 2, (2, 2)),
        (28, 6, 1, (2, 3)),
        (7, 6, 2, (2, 3)),
        (28, 3, 2, (0, 1)),
        (8, 1, 2, (0, 0)),
    ],
)
def test_padding_is_that_of_tensorflow(
    models: ModuleType, size: int, kernel: int, stride: int, padding: tuple[int, int]
) -> None:
    layer = models.SameConv2d(1, 1, kernel, stride=stride)

    assert models.same_padding(size, kernel, stride) == padding
    assert layer(torch.zeros(1, 1, size, size)).shape[-1] == -(-size // stride)


def test_asymmetric_padding_puts_the_odd_zero_behind(models: ModuleType) -> None:
    layer = models.SameConv2d(1, 1, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))
    image = torch.tensor([[[[1.0, 1.0], [1.0, 1.0]]]])

    assert layer(image).detach().tolist() == [[[[10.0, 4.0], [3.0, 1.0]]]]
