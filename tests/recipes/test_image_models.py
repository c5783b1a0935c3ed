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


def test_groups_and_dilation_leave_the_shapes_as_they_are(models: ModuleType) -> None:
    dilated, grouped = models.mnist_cnn(dilation=2), models.mnist_cnn(groups=2)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (dilated, grouped)]

    # half of the weights of both convolutions are gone: 24*12*36/2 and 32*24*36/2
    assert sizes == [354_002, 354_002 - 5_184 - 13_824]
    assert all(model(torch.zeros(2, 1, 28, 28)).shape == (2, 10) for model in (dilated, grouped))


def test_each_group_is_a_convolution_of_its_own(models: ModuleType) -> None:
    x = torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(0))
    layer = models.SameConv2d(4, 6, 6, stride=2, groups=2)
    halves = [models.SameConv2d(2, 3, 6, stride=2) for _ in range(2)]
    for part, half in enumerate(halves):
        half.load_state_dict({name: of[3 * part : 3 * part + 3] for name, of in layer.state_dict().items()})

    apart = torch.cat([half(x[:, 2 * part : 2 * part + 2]) for part, half in enumerate(halves)], dim=1)

    assert torch.allclose(layer(x), apart, atol=1e-6)


@pytest.mark.parametrize("size", [8, 9])
def test_a_dilated_kernel_is_one_with_zeros_between_its_weights(models: ModuleType, size: int) -> None:
    x = torch.randn(1, 1, size, size, generator=torch.Generator().manual_seed(0))
    layer, spread = models.SameConv2d(1, 1, 3, stride=2, dilation=2), models.SameConv2d(1, 1, 5, stride=2)
    with torch.no_grad():
        spread.weight.zero_()
        spread.weight[..., ::2, ::2] = layer.weight
        spread.bias.copy_(layer.bias)

    assert torch.allclose(layer(x), spread(x), atol=1e-6)
