from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import library, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from hpcml_train.torch.emulation import emulate
from hpcml_train.torch.flops import StepCount, count_step

pytestmark = pytest.mark.torch
SAMPLES, WIDTH, CLASSES = 4, 8, 10


def cross_entropy(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    x, labels = batch
    return F.cross_entropy(model(x), labels)


def total(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x)
    return (y[0] if isinstance(y, tuple) else y).float().sum()


def labelled(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(shape[0], *shape[1:]), torch.zeros(shape[0], dtype=torch.long)


def counted_where_it_is(model: nn.Module, x: torch.Tensor) -> int:
    """Count on the device that *model* is on."""
    with FlopCounterMode(display=False) as counter:
        total(model, x).backward()
    return int(counter.get_total_flops())


def test_a_convolutional_net_costs_what_one_computes_by_hand() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 5, 3, stride=2),
        nn.Flatten(),
        nn.Linear(5 * 3 * 3, CLASSES),
    )
    first = 2 * SAMPLES * 8 * 8 * 6 * (3 * 3 * 3)
    second = 2 * SAMPLES * 3 * 3 * 5 * (6 * 3 * 3)
    last = 2 * SAMPLES * 45 * CLASSES

    count = count_step(model, labelled(SAMPLES, 3, 8, 8), cross_entropy)

    # forward, and as much each for the gradients of weights and inputs; nobody needs those of the images
    assert count == StepCount(2 * first + 3 * second + 3 * last, None)


def test_a_transformer_block_costs_what_one_computes_by_hand() -> None:
    length, heads, inner = 6, 2, 16

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(CLASSES, WIDTH)
            self.norm = nn.LayerNorm(WIDTH)
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            self.out = nn.Linear(WIDTH, WIDTH)
            self.mlp = nn.Sequential(nn.Linear(WIDTH, inner), nn.GELU(), nn.Linear(inner, WIDTH))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embedding(tokens)
            q, k, v = self.qkv(self.norm(x)).view(SAMPLES, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(SAMPLES, length, WIDTH))
            return x + self.mlp(x)

    tokens = SAMPLES * length
    linear = 2 * tokens * (WIDTH * 3 * WIDTH + WIDTH * WIDTH + 2 * WIDTH * inner)
    attention = 2 * 2 * SAMPLES * length * length * WIDTH  # in full, though half of it is masked

    count = count_step(Block(), torch.zeros(SAMPLES, length, dtype=torch.long), total)

    assert count == StepCount(3 * (linear + attention), None)


def test_fused_attention_is_seen_though_the_cpu_hides_it() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x * self.w, x * self.w, x * self.w)

    model, x = Attention(), torch.randn(1, 2, 16, 8)

    assert counted_where_it_is(model, x) == 0
    assert count_step(model, x, total).flops == 3 * (2 * 2 * 2 * 16 * 16 * 8)


def test_an_lstm_is_seen_though_the_cpu_hides_it() -> None:
    model, x = nn.LSTM(WIDTH, 16), torch.randn(5, 2, WIDTH)
    forward = 2 * 5 * 2 * 4 * 16 * (WIDTH + 16)

    assert counted_where_it_is(model, x) == 0
    count = count_step(model, x, total)
    assert count.doubt is None
    # nobody needs the gradients of the inputs, nor those of the first hidden state
    assert count.flops == 3 * forward - 2 * 5 * 2 * 4 * 16 * WIDTH - 2 * 2 * 4 * 16 * 16


def test_a_model_in_evaluation_mode_is_counted_as_it_trains_and_stays_as_it_is() -> None:
    model, x = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.1, batch_first=True), torch.randn(2, 5, WIDTH)
    trained = count_step(model, x, total)
    model.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(x)
    seen_by_torch = counter.get_total_flops()
    state = torch.get_rng_state()

    assert seen_by_torch == 0  # the encoder's fast path
    assert count_step(model, x, total) == trained
    assert trained.flops
    assert not model.training
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_counts_once(*, reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self, *, on: bool) -> None:
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)
            self.rest = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))
            self.on = on

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            return checkpoint(self.rest, x, use_reentrant=reentrant) if self.on else self.rest(x)

    x = torch.randn(SAMPLES, WIDTH)

    plain = count_step(Checkpointed(on=False), x, total)

    assert counted_where_it_is(Checkpointed(on=True), x) > counted_where_it_is(Checkpointed(on=False), x)
    assert count_step(Checkpointed(on=True), x, total) == plain


def test_autocast_and_sixteen_bits_change_nothing() -> None:
    batch = labelled(SAMPLES, WIDTH)
    model = nn.Linear(WIDTH, CLASSES)
    plain = count_step(model, batch, cross_entropy)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert count_step(model, batch, cross_entropy) == plain
    half = count_step(model.bfloat16(), (batch[0].bfloat16(), batch[1]), cross_entropy)
    assert half == plain


def test_frozen_layers_have_no_gradients_to_count() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES))
    model[0].requires_grad_(requires_grad=False)

    count = count_step(model, labelled(SAMPLES, WIDTH), cross_entropy)

    assert count.flops == 2 * SAMPLES * WIDTH * (WIDTH + 2 * CLASSES)


def test_a_custom_operation_is_named_since_it_counts_nothing() -> None:
    ours = library.Library("hpcml_test_work", "FRAGMENT")
    ours.define("times(Tensor x, Tensor w) -> Tensor")
    ours.impl("times", lambda x, w: x.new_empty(x.shape[0], w.shape[1]), "Meta")

    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.custom = Times()
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.custom(x))

    class Times(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH, WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.hpcml_test_work.times(x, self.weight.detach())

    count = count_step(Custom(), labelled(SAMPLES, WIDTH), cross_entropy)

    assert count.flops == 2 * 2 * SAMPLES * WIDTH * CLASSES
    assert count.doubt == "operations that torch's counter does not know: hpcml_test_work.times"


def test_a_model_that_needs_its_numbers_has_no_count_and_says_why() -> None:
    class Curious(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (2.0 if float(x.sum()) > 0 else 1.0)

    count = count_step(Curious(WIDTH, CLASSES), labelled(SAMPLES, WIDTH), cross_entropy)

    assert count.flops is None
    assert count.doubt is not None
    assert count.doubt.startswith("not counted: the model cannot run on the meta device: RuntimeError: ")
    assert "\n" not in count.doubt


def test_tensors_kept_as_plain_attributes_go_along() -> None:
    class Shifted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, CLASSES)
            self.shift = torch.ones(WIDTH)  # neither parameter nor buffer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + self.shift)

    assert count_step(Shifted(), labelled(SAMPLES, WIDTH), cross_entropy).flops == 2 * 2 * SAMPLES * WIDTH * CLASSES


def test_counting_inside_an_emulation_is_refused() -> None:
    with emulate("tf32", must_see=False), pytest.raises(RuntimeError, match="inside an emulation"):
        count_step(nn.Linear(WIDTH, CLASSES), labelled(SAMPLES, WIDTH), cross_entropy)
