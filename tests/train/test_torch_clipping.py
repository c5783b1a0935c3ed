"""Clipping, accumulation, several optimizers and schedulers under loss scaling, against torch's own scaler."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

from hpcml_train.torch.arithmetic import Arithmetic  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch_as_found")]

RATE = 1.0
MAX_NORM = 0.003  # of gradients around 0.02: every step is clipped
STEPS = 12
TOO_LARGE = 1e37  # as a factor of a loss: its scaled gradients are infinite in FP32


def _model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def _batches(steps: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(32, 8, generator=generator)
        yield x, x[:, :1] * 2 - x[:, 1:2]


def _loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(x).float(), y) * 0.01  # so that 65536 times it is no overflow


def _weights(*models: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for model in models for parameter in model.parameters()])


def _arithmetic(precision: str = "amp_fp16", *, scaled: bool = True) -> Arithmetic:
    # Native: the products are those of torch's autocast, so that torch's own loop computes the same bits.
    return Arithmetic(precision, numerics="native", loss_scaling=scaled)


def _trained(arithmetic: Arithmetic, clip: Callable[[torch.optim.Optimizer], object] | None = None) -> torch.Tensor:
    model = arithmetic.prepare(_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for x, y in _batches():
        with arithmetic.context():
            loss = _loss(model, x, y)
        arithmetic.backward(loss)
        if clip is None:
            arithmetic.clip(optimizer, MAX_NORM)
        else:
            clip(optimizer)
        arithmetic.step(optimizer)
    return _weights(model)


def test_clipping_under_loss_scaling_is_torchs_own_bit_for_bit() -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    scaler = torch.amp.GradScaler("cpu")
    for x, y in _batches():
        with torch.autocast("cpu", dtype=torch.float16):
            loss = _loss(model, x, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    assert torch.equal(_trained(_arithmetic()), _weights(model))


def test_clipping_has_the_effect_that_it_has_without_loss_scaling() -> None:
    scaled, plain, fp32 = (_trained(each) for each in (_arithmetic(), _arithmetic(scaled=False), _arithmetic("fp32")))
    scale = 65536.0
    wrong = _trained(
        _arithmetic(),
        lambda optimizer: torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], MAX_NORM),
    )

    assert torch.allclose(scaled, plain, atol=1e-4)
    assert torch.allclose(scaled, fp32, atol=1e-3)
    assert torch.allclose(wrong, _weights(_model()), atol=STEPS * MAX_NORM / scale)  # clipped while scaled: no step
    assert not torch.allclose(fp32, _weights(_model()), atol=1e-2)


@pytest.mark.parametrize("precision", ["amp_fp16", "fp32"])
def test_the_norm_that_clip_returns_is_that_of_the_unscaled_gradients(precision: str) -> None:
    arithmetic = _arithmetic(precision)
    model = arithmetic.prepare(_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    (x, y), *_ = _batches(1)
    with arithmetic.context():
        loss = _loss(model, x, y)
    arithmetic.backward(loss)
    arithmetic.unscale(optimizer)
    seen = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()

    norm = arithmetic.clip(optimizer, 1e9)  # unscaled once, whoever asks again

    assert float(norm) == pytest.approx(float(seen))
    assert 0.003 < float(norm) < 0.3


def test_gradients_of_parts_of_a_batch_add_up_before_they_are_clipped() -> None:
    arithmetic, model = _arithmetic(), _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    manual, scaler = _model(), torch.amp.GradScaler("cpu")
    other = torch.optim.SGD(manual.parameters(), lr=RATE)
    for x, y in _batches():
        for part in range(4):
            rows = slice(8 * part, 8 * part + 8)
            with arithmetic.context():
                loss = _loss(model, x[rows], y[rows]) / 4
            arithmetic.backward(loss)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = _loss(manual, x[rows], y[rows]) / 4
            scaler.scale(loss).backward()
        arithmetic.clip(optimizer, MAX_NORM)
        arithmetic.step(optimizer)
        scaler.unscale_(other)
        torch.nn.utils.clip_grad_norm_(manual.parameters(), MAX_NORM)
        scaler.step(other)
        scaler.update()
        other.zero_grad(set_to_none=True)

    assert torch.equal(_weights(model), _weights(manual))


def test_of_two_optimizers_only_the_one_that_overflowed_is_skipped_and_its_scheduler_with_it() -> None:
    arithmetic, models = _arithmetic(), [_model(0), _model(1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=RATE) for model in models]
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5) for optimizer in optimizers]
    before = [_weights(model) for model in models]
    (x, y), *_ = _batches(1)
    told = []
    for factor in (TOO_LARGE, 1.0):
        with arithmetic.context():
            losses = [_loss(models[0], x, y) * factor, _loss(models[1], x, y)]
        for loss in losses:
            arithmetic.backward(loss)
        for optimizer in optimizers:
            arithmetic.clip(optimizer, MAX_NORM)
        done = arithmetic.step(*optimizers, schedulers=schedulers)
        moved = [not torch.equal(_weights(model), start) for model, start in zip(models, before, strict=True)]
        told.append((done, moved, [scheduler.get_last_lr()[0] for scheduler in schedulers]))

    assert told == [(False, [False, True], [1.0, 0.5]), (True, [True, True], [0.5, 0.25])]
    assert arithmetic.scaling()["skipped_steps"] == 1.0
    assert arithmetic.scaling()["loss_scale"] == 32768.0  # one scale, halved once
    assert all(p.grad is None for model in models for p in model.parameters())


def test_overflowed_gradients_are_counted_as_they_were_before_clipping() -> None:
    arithmetic = _arithmetic()
    layer = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=RATE)
    before = layer.weight.detach().clone()
    for value in (float("inf"), float("nan")):
        arithmetic.backward(layer(torch.ones(1, 2)).sum())
        assert layer.weight.grad is not None
        layer.weight.grad[0, 0] = value
        norm = arithmetic.clip(optimizer, MAX_NORM)

        assert not torch.isfinite(norm)
        assert not arithmetic.step(optimizer)
        assert arithmetic.scaling()["overflowed_gradients"] == 1.0
    assert torch.equal(layer.weight.detach(), before)


def test_a_training_goes_on_from_a_saved_state_as_if_it_had_not_stopped() -> None:
    def train(arithmetic: Arithmetic, model: torch.nn.Module, steps: range) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for number, (x, y) in enumerate(_batches()):
            if number in steps:
                with arithmetic.context():
                    loss = _loss(model, x, y) * (TOO_LARGE if number == 2 else 1.0)
                arithmetic.backward(loss)
                arithmetic.clip(optimizer, MAX_NORM)
                arithmetic.step(optimizer)

    whole, broken, resumed = _model(), _model(), _model(5)
    first, second, third = _arithmetic(), _arithmetic(), _arithmetic()
    train(first, whole, range(STEPS))
    train(second, broken, range(5))
    saved = io.BytesIO()
    torch.save({"model": broken.state_dict(), "arithmetic": second.state_dict()}, saved)
    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    resumed.load_state_dict(state["model"])
    third.load_state_dict(state["arithmetic"])
    train(third, resumed, range(5, STEPS))

    assert torch.equal(_weights(resumed), _weights(whole))
    assert third.scaling() == first.scaling()
    assert third.scaling()["loss_scale"] == 32768.0
    assert third.scaling()["skipped_steps"] == 1.0
