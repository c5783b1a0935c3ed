"""What numbers say of the format: products whose factors were rounded by hand, of every kind of layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from hpcml_train.torch import fingerprint, replays, samples
from hpcml_train.torch.traces import FLOAT32_ON_GPU, Convolution, Matrices, Product

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch_as_found")]

LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(40, 30), (9, 40)),
    "linear of three dimensions": (lambda: nn.Linear(40, 30, bias=False), (3, 5, 40)),
    "conv1d": (lambda: nn.Conv1d(8, 12, 5, stride=2, padding=3, dilation=2), (3, 8, 31)),
    "conv2d": (lambda: nn.Conv2d(6, 14, 3, stride=2, padding=1), (3, 6, 9, 10)),
    "conv2d of one picture": (lambda: nn.Conv2d(6, 14, (1, 5), padding=(0, 2), bias=False), (6, 9, 10)),
    "conv2d in groups": (lambda: nn.Conv2d(32, 16, 3, groups=4, padding=1), (2, 32, 7, 7)),
    "conv3d": (lambda: nn.Conv3d(4, 6, 3, padding=1), (2, 4, 5, 6, 7)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(9, 7, 4, stride=3, padding=1, output_padding=1), (2, 9, 11)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(24, 8, 4, stride=2, padding=1), (2, 24, 5, 6)),
    "transposed 2d in groups": (lambda: nn.ConvTranspose2d(24, 8, 3, groups=2, dilation=2), (2, 24, 5, 6)),
}


def rounded(x: Any, form: str) -> Any:
    """Round the numbers of *x* to *form*, which is a part of float32."""
    if form == "bf16":
        return x.bfloat16().float()
    if form == "tf32":  # ten bits behind the point, as two numbers of FP32 are added and subtracted
        shifted = x * 8193.0  # 2**13 + 1: what is left has 24 - 13 bits (Dekker's splitting)
        return shifted - (shifted - x)
    return x


@pytest.mark.parametrize("form", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("layer", [*LAYERS])
def test_the_numbers_of_a_layer_tell_its_format(layer: str, form: str) -> None:
    make, shape = LAYERS[layer]
    torch.manual_seed(0)
    module, x = make(), torch.randn(shape)
    twin = make()
    twin.load_state_dict(
        {name: one if name == "bias" else rounded(one, form) for name, one in module.state_dict().items()}
    )

    taken = samples.sample(module, (x,), twin(rounded(x, form)))

    assert taken is not None
    assert fingerprint.format_of(taken) == form


@pytest.mark.parametrize("form", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(
    ("make", "options"),
    [(nn.LSTM, {}), (nn.GRU, {}), (nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"}), (nn.LSTM, {"bias": False})],
)
def test_the_first_step_of_a_recurrent_layer_tells_its_format(
    make: Callable[..., Any],
    options: dict[str, Any],
    batch_first: bool,  # noqa: FBT001
    form: str,
) -> None:
    torch.manual_seed(0)
    module = make(40, 24, num_layers=2, dropout=0.5, bidirectional=True, batch_first=batch_first, **options)
    x = torch.randn(7, 7, 40)

    taken = samples.sample(module, (x,), module(x))

    assert isinstance(taken, samples.FirstStep)
    assert fingerprint.format_of(taken) == "fp32"
    first = make(40, 24, batch_first=batch_first, **options)  # the first layer of the one, alone
    own = {
        name: rounded(one, form) if "ih" in name and "weight" in name else one
        for name, one in module.state_dict().items()
    }
    first.load_state_dict({name: own[name] for name in first.state_dict()})
    y = first(rounded(x, form))[0]
    states = (y[:, 0] if batch_first else y[0])[: len(taken.rows)][:, [at * 2 for at in range(12)]].detach()
    assert fingerprint.format_of(taken._replace(states=states)) == form


def test_numbers_that_every_format_has_tell_nothing() -> None:
    module = nn.Linear(40, 30)
    nn.init.ones_(module.weight)
    x = torch.arange(360.0).reshape(9, 40)

    taken = samples.sample(module, (x,), module(x))

    assert taken is not None
    assert fingerprint.format_of(taken) is None


def test_a_black_picture_tells_nothing_and_a_black_corner_leaves_the_rest() -> None:
    torch.manual_seed(0)
    module = nn.Conv2d(3, 8, 3)
    x = torch.randn(2, 3, 12, 12)
    x[:, :, :6, :6] = 0.0

    for pictures, form in ((x, "fp32"), (torch.zeros_like(x), None)):
        taken = samples.sample(module, (pictures,), module(pictures))
        assert taken is not None
        assert fingerprint.format_of(taken) == form


def test_taking_a_sample_draws_no_random_number_and_changes_no_state() -> None:
    torch.manual_seed(0)
    module, x = nn.LSTM(40, 24, num_layers=2, dropout=0.5), torch.randn(7, 7, 40)
    before, numbers = {name: one.clone() for name, one in module.state_dict().items()}, torch.get_rng_state()

    samples.sample(module, (x,), (x,))

    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())


SIZES = [
    Matrices(7, 40, 30),
    Convolution((2, 6, 9, 9), (8, 6, 3, 3), (2, 2), (1, 1), (1, 1), False, (0, 0), 1, True),  # noqa: FBT003
    Convolution((2, 8, 5, 5), (8, 4, 4, 4), (2, 2), (1, 1), (1, 1), True, (1, 1), 2, False),  # noqa: FBT003
    Convolution((2, 8, 31), (12, 8, 5), (1,), (2,), (2,), False, (0,), 1, False),  # noqa: FBT003
]


def test_products_are_computed_again_in_their_sizes_beside_the_program() -> None:
    kinds = {Matrices: "linear", Convolution: "conv"}
    product = Product(FLOAT32_ON_GPU, "forward", None, 1.0)
    products = [product._replace(kind=kinds[type(size)], size=size) for size in SIZES]
    others = [
        products[0]._replace(layer="sampled", size=Matrices(3, 20, 5)),
        products[0]._replace(format="bf16", size=Matrices(4, 20, 5)),
    ]
    numbers = torch.get_rng_state()

    found = replays.formats([*products, *others], ["linear", "conv"], ["sampled"], torch.device("cpu"))

    assert found == dict.fromkeys(SIZES, "fp32")
    assert torch.equal(torch.get_rng_state(), numbers)
    assert set(replays.formats(products, ["linear"], [], torch.device("cpu"))) == {SIZES[0]}


def test_a_convolution_is_not_computed_again_where_cudnn_would_try_all_its_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    product = Product(FLOAT32_ON_GPU, "forward", None, 1.0, kind="conv", size=SIZES[1])

    assert replays.formats([product], ["conv"], [], torch.device("cpu")) == {}
