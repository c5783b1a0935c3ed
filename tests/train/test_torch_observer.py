from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils.checkpoint import checkpoint

from hpcml_train.precision.observed import Window, name_observed, read_window
from hpcml_train.torch import layers, observer, switches, traces
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.observer import Observer
from hpcml_train.torch.step_kinds import Kinds

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch_as_found")]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products wait for each other longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Told:
    """A run that keeps what is reported to it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, /, **details: object) -> None:
        json.dumps(details)  # a journal can hold it
        self.events.append((name, details))

    @property
    def windows(self) -> list[Window]:
        found = [read_window(details) for name, details in self.events if name == "precision_observed"]
        assert all(window is not None for window in found)
        return [window for window in found if window is not None]

    @property
    def details(self) -> list[dict[str, Any]]:
        return [details for name, details in self.events if name == "precision_observed"]

    @property
    def off(self) -> list[object]:
        return [details["off"] for name, details in self.events if name == "precision_observer" and "off" in details]

    def word(self, asked: str) -> str:
        return name_observed(self.windows, asked, "float32")


def test_at_the_end_is_told_how_many_steps_there_were() -> None:
    with watching() as told:
        train(lambda model: model(data()).square().mean(), steps=7)

    assert told.events[-1] == ("precision_observer_closed", {"framework": "torch", "steps": 7})
    assert told.windows[0].step == 2


def test_of_a_single_step_is_told_that_it_was_one() -> None:
    with watching() as told:
        train(lambda model: model(data()).square().mean(), steps=1)

    assert told.events[-1] == ("precision_observer_closed", {"framework": "torch", "steps": 1})
    assert told.windows == []


class Net(nn.Module):
    """Two layers, of which `run` may compute one otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x).relu())


@contextlib.contextmanager
def watching(*, probe: tuple[dict[str, str], str] | None = None, **options: Any) -> Iterator[Told]:
    """Observe what the block trains; *probe* is what was measured before, and on which device."""
    told = Told()
    seeing = Observer(told, how="client", **options)
    seeing.install(is_hooked=True)
    if probe is not None:
        seeing.know_probe(*probe)
    try:
        yield told
    finally:
        seeing.close()


def data(dtype: Any = torch.float32) -> Any:
    return torch.randn(32, 64, generator=torch.Generator().manual_seed(1)).to(dtype)


def train(loss: Callable[[nn.Module], Any], model: nn.Module | None = None, *, steps: int = 3) -> nn.Module:
    """Train *model* on *loss* in a plain loop, which knows nothing of hpcml."""
    torch.manual_seed(0)
    model = model or Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
    return model


def with_arithmetic(asked: str, loss: Callable[[Arithmetic, Any], Any], *, is_backward_inside: bool = True) -> Told:
    """Return what is seen of a training that asks for the precision *asked*."""
    arithmetic = Arithmetic(asked)
    with watching() as told:
        torch.manual_seed(0)
        model = arithmetic.prepare(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            value = loss(arithmetic, model)
            arithmetic.backward(value) if is_backward_inside else value.backward()
            arithmetic.step(optimizer)
    return told


def as_it_should_be(arithmetic: Arithmetic, model: Any) -> Any:
    with arithmetic.context():
        return model(arithmetic.cast(data())).float().square().mean()


@pytest.mark.parametrize(
    "asked",
    ["fp32", "fp64", "tf32", "amp_bf16", "bf16", "amp_fp16", "fp16", "bf16x3", "fp8_e4m3", "fp8_hybrid"],
)
def test_a_program_that_does_as_it_was_asked_has_the_name_of_it(asked: str) -> None:
    told = with_arithmetic(asked, as_it_should_be)

    assert told.word(asked) == asked
    assert not told.off
    rows = told.details[0]["rows"]
    assert {row["layer"] for row in rows} == {"body", "head"}
    assert {row["emulated"] for row in rows} == {Arithmetic(asked).numerics == "emulated"}
    one_product = 2.0 * 32 * 64 * 64
    assert {row["phase"]: sum(r["flops"] for r in rows if r["phase"] == row["phase"]) for row in rows} == {
        "forward": 2 * one_product,
        "backward": 3 * one_product,  # nobody asks for the gradient of the data
    }


@pytest.mark.parametrize(
    ("asked", "word"), [("amp_bf16", "not used(fp32)"), ("tf32", "not used(fp32)"), ("fp32", "fp32")]
)
def test_a_program_that_never_enters_the_context_is_told(asked: str, word: str) -> None:
    def loss(arithmetic: Arithmetic, model: Any) -> Any:
        return model(arithmetic.cast(data())).square().mean()

    assert with_arithmetic(asked, loss, is_backward_inside=False).word(asked) == word


def test_half_of_a_model_is_told_with_its_layers() -> None:
    def loss(arithmetic: Arithmetic, model: Any) -> Any:
        with arithmetic.context():
            hidden = model.body(data())
        return model.head(hidden.float()).square().mean()

    told = with_arithmetic("amp_bf16", loss)

    assert told.word("amp_bf16") == "mixed(60 % fp32, 40 % bf16: Linear)"


@pytest.mark.parametrize("reentrant", [False, True])
def test_products_keep_their_layers_and_phases_where_a_checkpoint_is_computed_again(*, reentrant: bool) -> None:
    """It stops computing again by an exception, within an operation that torch's trace then never has the end of."""

    class Checkpointed(Net):
        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                hidden = checkpoint(self.body, x, use_reentrant=reentrant)
            return self.head(hidden.float())

    def twice(model: Any) -> Any:
        one, other = (model(data().requires_grad_()).square().mean() for _ in range(2))
        one.backward()
        return other

    with watching() as told:
        train(twice, Checkpointed())

    one_product = 2.0 * 32 * 64 * 64
    assert {(row["phase"], row["layer"], row["format"]): row["flops"] for row in told.details[0]["rows"]} == {
        ("forward", "body", "bf16"): 2 * one_product,
        ("forward", "head", "fp32"): 2 * one_product,
        # computed again, whole, or until the exception, which comes before the product
        ("backward", "body", "bf16"): 2 * (3 if reentrant else 2) * one_product,
        ("backward", "head", "fp32"): 2 * 2 * one_product,
    }


def test_a_backward_pass_outside_of_the_emulation_is_told() -> None:
    told = with_arithmetic("tf32", as_it_should_be, is_backward_inside=False)

    assert told.word("tf32") == "mixed(60 % fp32: backward, 40 % tf32: forward)"


def test_an_fp64_model_is_told() -> None:
    def loss(arithmetic: Arithmetic, model: Any) -> Any:
        with arithmetic.context():
            return model.double()(data(torch.float64)).square().mean()

    assert with_arithmetic("amp_bf16", loss).word("amp_bf16").startswith("not used(fp64")


def half(model: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return model(data()).float().square().mean()


def whole(model: Any) -> Any:
    return model(data()).square().mean()


def test_autocast_that_nobody_asked_for_is_told_with_its_state() -> None:
    with watching() as told:
        train(half)

    assert told.word("fp32") == "not used(amp_bf16)"
    assert told.details[0]["autocast"] == {"cpu": "bfloat16"}
    assert told.details[0]["parameters"] == {"float32": 2 * (64 * 64 + 64)}


def test_a_switch_that_is_flipped_is_recorded_and_leaves_it_unknown() -> None:
    mkldnn: Any = torch.backends.mkldnn
    with watching() as told:
        mkldnn.matmul.fp32_precision = "bf16"
        train(whole)

    assert told.details[0]["switches"]["mkldnn.matmul.fp32_precision"] == "bf16"
    assert told.word("fp32") == "unknown"
    assert told.windows[0].unknown == ("float32 with oneDNN's linear switch open",)


def test_with_a_switch_that_was_open_for_the_probe_it_is_what_the_probe_measured() -> None:
    mkldnn: Any = torch.backends.mkldnn
    mkldnn.matmul.fp32_precision = "bf16"
    with watching(probe=({"matmul": "bf16", "conv": "fp32"}, "cpu")) as told:
        train(whole)

    assert {row["format"] for row in told.details[0]["rows"]} == {"bf16"}


def test_a_change_in_the_middle_is_told_with_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "_SHARE", 1e9)  # as if time were no matter
    steps = iter(range(100))
    with watching() as told:
        train(lambda model: half(model) if next(steps) < 4 else whole(model), steps=12)

    assert [window.step for window in told.windows] == [2, 5, 11]
    assert told.word("amp_bf16") == "mixed(67 % fp32: from step 5, 33 % bf16: until step 2)"


def test_steps_that_enter_another_autocast_get_a_window_at_once() -> None:
    loss, steps = _changing(lambda step: step > 20)
    with watching() as told:
        train(loss, steps=steps)

    assert [window.step for window in told.windows][:2] == [2, 22]
    assert told.word("fp32") == "mixed(50 % bf16: from step 22, 50 % fp32: until step 2)"


def test_steps_that_leave_autocast_get_a_window_at_once_and_those_of_known_kinds_none() -> None:
    loss, steps = _changing(lambda step: step <= 20 or step > 30)
    with watching() as told:
        train(loss, steps=steps)

    assert told.word("amp_bf16").startswith("mixed(")
    assert [window.step for window in told.windows] == [2, 22]


def _changing(is_autocast: Callable[[int], bool]) -> tuple[Callable[[nn.Module], Any], int]:
    """Return a loss under an autocast in the steps, from 1 on, that *is_autocast* names, and how many there are."""
    done = [0]

    def loss(model: nn.Module) -> Any:
        done[0] += 1
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_autocast(done[0])):
            return model(data()).float().square().mean()

    return loss, 40


def test_a_second_training_with_parameters_of_another_type_gets_a_window_at_once() -> None:
    with watching() as told:
        train(lambda model: model(data()).square().mean(), steps=20)
        model = Net().bfloat16()
        train(lambda model: model(data(torch.bfloat16)).float().square().mean(), model, steps=30)

    assert {row["format"] for row in told.details[0]["rows"]} == {"fp32"}
    assert {row["format"] for row in told.details[1]["rows"]} == {"bf16"}
    assert told.word("fp32").startswith("mixed(")


def test_an_evaluation_in_another_precision_asks_for_no_window() -> None:
    def loss(model: nn.Module) -> Any:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=next(steps) > 5):
            model(data())
        return model(data()).square().mean()

    steps = iter(range(100))
    with watching() as told:
        train(loss, steps=20)

    assert [window.step for window in told.windows] == [2]
    assert told.word("fp32") == "fp32"


def test_autocast_is_torchs_own_again_after_an_observer_and_its_class_always() -> None:
    count, of_class = torch.autocast_increment_nesting, torch.autocast.__enter__
    with watching():
        train(lambda model: model(data()).square().mean())
        assert torch.autocast_increment_nesting is not count
        assert torch.autocast.__enter__ is of_class

    assert torch.autocast_increment_nesting is count


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_a_program_whose_autocast_is_in_torchscript_is_compiled_and_computes_the_same() -> None:
    x = torch.arange(16.0).reshape(4, 4) / 7
    with watching():
        train(lambda model: model(data()).square().mean())
        found = torch.jit.script(_Scripted())(x)

    assert torch.equal(found, _Scripted()(x))


class _Scripted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.mm(x, x)


def test_rows_beyond_the_largest_are_summed_up_once() -> None:
    of_layers = [traces.Product("fp32", "forward", f"layer{number}", 10.0) for number in range(70)]

    rows = traces.rows([*of_layers, traces.Product("fp32", "forward", None, 1.0)])

    assert sum(row["flops"] for row in rows) == 701
    assert [row["flops"] for row in rows if row["layer"] is None] == [61]


def test_validation_between_steps_and_work_of_the_optimizer_are_no_part_of_the_arm() -> None:
    class Muon(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            x = torch.randn(256, 256).bfloat16()
            (x @ x).sum()
            return super().step(closure)

    with watching() as told:
        model = Net()
        optimizer = Muon(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            half(model).backward()
            optimizer.step()
            with torch.no_grad():
                whole(model)

    assert told.word("amp_bf16") == "amp_bf16"
    assert {(row["phase"], row["format"]) for row in told.details[0]["rows"]} == {
        ("forward", "bf16"),
        ("backward", "bf16"),
        ("optimizer", "bf16"),
        ("evaluation", "fp32"),
    }


def test_a_long_evaluation_before_a_step_hides_nothing_of_the_step(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(layers, "_MOST_BYTES_EVALUATED", 100_000)
    evaluated = []

    def evaluates(model: nn.Module) -> Any:
        with torch.no_grad():
            for _ in range(200):
                whole(model)
        evaluated.append(model)
        return half(model)

    with watching() as told:
        train(evaluates)

    assert told.word("amp_bf16") == "amp_bf16"
    seen = {row["phase"]: row for row in told.details[0]["rows"]}
    assert {phase: row["format"] for phase, row in seen.items()} == {
        "forward": "bf16",
        "backward": "bf16",
        "evaluation": "fp32",
    }
    assert seen["evaluation"]["flops"] < 100 * seen["forward"]["flops"]  # the rest of it was not traced
    assert told.details[0]["unknown"] == []
    assert "execution_trace" not in capfd.readouterr().err  # torch's own words


def test_the_time_of_a_long_evaluation_is_the_programs_own_and_not_the_observers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers, "_MOST_BYTES_EVALUATED", 0)
    evaluations = iter([0, 20, 0, 0])  # of the second step alone, as where one begins with the first step

    def evaluates(model: nn.Module) -> Any:
        with torch.no_grad():
            for _ in range(next(evaluations)):
                whole(model)
                time.sleep(0.1)
        return half(model)

    with watching() as told:
        train(evaluates, steps=4)

    assert told.details[0]["seconds"] < 1.0


def test_what_is_not_traced_after_an_evaluation_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "_MOST_BYTES_EVALUATED", 0)

    def evaluates(model: nn.Module) -> Any:
        with torch.no_grad():
            whole(model)
        x = data()
        for weight in model.parameters():
            if weight.dim() == 2:
                x = x @ weight  # no module's forward pass
        return x.square().mean()

    with watching() as told:
        train(evaluates)

    assert told.word("fp32") == "unknown"
    assert [one["what"] for one in told.details[0]["unknown"]] == [
        "what was computed after an evaluation, outside of modules"
    ]


def test_convolutions_recurrent_layers_and_attention_have_their_flops() -> None:
    class All(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
            self.lstm = nn.LSTM(16, 32)

        def forward(self, images: Any, words: Any) -> Any:
            y = self.up(self.conv(images)).square().mean()
            q = words.transpose(0, 1)[:, None].expand(2, 4, 5, 16)
            attended = torch.nn.functional.scaled_dot_product_attention(q, q, q)
            return y + self.lstm(words)[0].square().mean() + attended.square().mean()

    def flops(told: Told, layer: str | None, phase: str) -> float:
        return sum(r["flops"] for r in told.details[0]["rows"] if (r["layer"], r["phase"]) == (layer, phase))

    images, words = torch.randn(2, 3, 10, 10), torch.randn(5, 2, 16, requires_grad=True)
    with watching() as told:
        train(lambda model: model(images, words), All())

    conv, up = 2.0 * 2 * 8 * 100 * 27, 2.0 * 2 * 8 * 100 * 4 * 4
    lstm, attention = 2.0 * 5 * 2 * 4 * 32 * (16 + 32), 4.0 * 2 * 4 * 5 * 5 * 16
    assert not told.windows[0].unknown
    assert (flops(told, "conv", "forward"), flops(told, "conv", "backward")) == (conv, conv)
    assert (flops(told, "up", "forward"), flops(told, "up", "backward")) == (up, 2 * up)
    assert (flops(told, "lstm", "forward"), flops(told, "lstm", "backward")) == (lstm, 2 * lstm)
    assert flops(told, "All", "forward") == attention
    assert flops(told, "All", "backward") == 2.5 * attention


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
@pytest.mark.parametrize("onednn", ["used", "switched off"])
def test_a_recurrent_layer_under_autocast_is_what_autocast_makes_of_it(onednn: str) -> None:
    if onednn == "used" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no BF16 on this CPU, and torch's own autocast of an LSTM fails there")

    def loss(model: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(torch.randn(5, 2, 16, requires_grad=True))[0].float().square().mean()

    with torch.backends.mkldnn.flags(enabled=onednn == "used"), watching() as told:
        train(loss, nn.LSTM(16, 32))

    assert told.word("amp_bf16") == "amp_bf16"
    assert {row["layer"] for row in told.details[0]["rows"]} == {"LSTM"}


def test_a_thread_of_the_program_is_seen() -> None:
    def loss(model: Any) -> Any:
        found = []
        thread = threading.Thread(target=lambda: found.append(half(model)))
        thread.start()
        thread.join()
        return found[0]

    with watching() as told:
        train(loss)

    assert told.word("amp_bf16") == "amp_bf16"


def test_an_optimizer_that_computes_all_inside_of_its_step_is_seen() -> None:
    with watching() as told:
        model = Net()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = half(model)
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)

    assert told.word("amp_bf16") == "amp_bf16"
    assert {row["phase"] for row in told.details[0]["rows"]} == {"forward", "backward", "optimizer"}  # its own dot


def test_two_optimizers_in_turns_are_one_step() -> None:
    with watching() as told:
        first, second = Net(), Net()
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (first, second)]
        for _ in range(3):
            for model, optimizer, loss in zip((first, second), optimizers, (whole, half), strict=True):
                loss(model).backward()
                optimizer.step()

    assert told.word("fp32") == "mixed(50 % bf16, 50 % fp32: head, body)"


def test_compiled_code_is_seen_as_it_ran() -> None:
    model = Net()
    compiled = torch.compile(model, backend="aot_eager")
    with watching() as told:
        train(lambda _: half(compiled), model)

    assert told.word("amp_bf16") == "amp_bf16"
    assert told.details[0]["parameters"]["float32"] == 2 * (64 * 64 + 64)
    torch._dynamo.reset()


def test_no_window_begins_in_the_step_in_which_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's range around the step would end in a trace in which it has not begun, and the process would crash."""
    began, ended = [], []
    begin, end = Observer._open_window, Observer._end_window

    def begin_and_note(seeing: Observer) -> None:
        began.append(seeing._steps)
        begin(seeing)

    def end_and_note(seeing: Observer) -> Any:
        ended.append(seeing._steps)
        return end(seeing)

    compilations = iter(range(100))
    monkeypatch.setattr(observer, "_compilations", lambda: min(next(compilations), 5))
    monkeypatch.setattr(Observer, "_open_window", begin_and_note)
    monkeypatch.setattr(Observer, "_end_window", end_and_note)
    with watching() as told:
        train(whole, steps=30)

    assert len(ended) > 3
    assert not set(began) & set(ended)
    assert told.word("fp32") == "fp32"


class FromNumpy(torch.autograd.Function):
    """A product whose forward pass is none of torch's, as a kernel of Triton's or CuPy's is."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x, weight)
        return torch.from_numpy(x.detach().numpy() @ weight.detach().numpy())

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        x, weight = context.saved_tensors
        return gradient @ weight.T, x.T @ gradient


def test_a_forward_pass_that_nobody_saw_is_unknown_though_the_backward_pass_is_known() -> None:
    with watching() as told:
        train(lambda model: FromNumpy.apply(data(), cast("Net", model).body.weight).square().mean())

    assert {row["phase"] for row in told.details[0]["rows"]} == {"backward"}
    assert told.windows[0].unknown == ("the forward pass, by kernels that are none of torch's operations",)
    assert told.word("fp32") == "unknown"


def test_a_decomposition_whose_backward_pass_alone_multiplies_is_known() -> None:
    def loss(model: nn.Module) -> Any:
        weight = cast("Net", model).body.weight
        return torch.linalg.cholesky(torch.eye(64) * 9 + (weight + weight.T)).square().mean()

    with watching() as told:
        train(loss)

    assert {row["phase"] for row in told.details[0]["rows"]} == {"backward"}
    assert told.word("fp32") == "fp32"


def test_gates_of_a_cell_are_no_products() -> None:
    names = (
        "_thnn_fused_lstm_cell_backward",
        "_thnn_differentiable_gru_cell_backward",
        "_use_cudnn_rnn_flatten_weight",
    )
    tensor = {"values": [[1, 0, 0, 4, 4, "cuda:0"]] * 2, "shapes": [[2, 2]] * 2, "types": ["Tensor(float)"] * 2}
    node = {"inputs": tensor, "outputs": {"shapes": [[2, 2]]}}

    assert [traces._leaf_of(f"aten::{name}", node) for name in names] == [None] * 3
    assert traces._leaf_of("aten::_thnn_new_lstm", node) is not None  # sounds like a product, and nobody has looked


@pytest.mark.parametrize("switch", ["cuda.matmul", "cudnn.conv", "cudnn.rnn"])
def test_a_step_after_tf32_was_switched_on_is_of_a_new_kind(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not switches.has_fp32_precision():
        pytest.skip("this torch has the old switches")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    optimizer, kinds, part = torch.optim.SGD(Net().parameters(), lr=0.1), Kinds(), torch.backends
    for name in switch.split("."):
        part = getattr(part, name)
    before = part.fp32_precision
    try:
        part.fp32_precision = "ieee"
        first = kinds.of_step(optimizer)
        assert kinds.of_step(optimizer) == first
        part.fp32_precision = "tf32"
        assert kinds.of_step(optimizer) != first
    finally:
        part.fp32_precision = before


def test_what_another_library_computes_is_unknown_and_named() -> None:
    @torch.library.custom_op("hpcml_tests::gemm", mutates_args=())
    def gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(a.detach().numpy() @ b.detach().numpy())

    def loss(model: Any) -> Any:
        gemm(data(), data().T.contiguous())
        return whole(model)

    with watching() as told:
        train(loss)

    assert told.word("fp32") == "unknown"
    assert told.windows[0].unknown == ("hpcml_tests::gemm",)


def test_a_training_gives_the_same_numbers_observed_or_not() -> None:
    plain = train(half, steps=6)
    with watching() as told:
        seen = train(half, steps=6)

    assert told.windows
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), seen.parameters(), strict=True))


def test_windows_keep_to_their_part_of_the_time() -> None:
    with watching() as told:
        train(whole, steps=60)

    assert told.windows[0].step == 2  # 60 steps take no thousand times as long as one window


def test_the_last_step_is_observed_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "_SHARE", 1e9)
    told = Told()
    seeing = Observer(told, how="client")
    seeing.install(is_hooked=True)
    seeing.expect_last(13)
    train(whole, steps=13)
    seeing.close()

    assert [window.step for window in told.windows] == [2, 5, 11, 13]


def test_a_brief_observer_takes_one_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "_SHARE", 1e9)
    with watching(is_brief=True) as told:
        train(whole, steps=20)

    assert told.windows[0].step == 2


def test_a_program_without_an_optimizer_tells_its_steps() -> None:
    told = Told()
    seeing = Observer(told, how="client")
    seeing.install(is_hooked=True)
    for _ in range(3):
        data() @ data().T
        seeing.end_step()
    seeing.close()

    assert [row["phase"] for row in told.details[0]["rows"]] == ["forward"]
    assert told.word("fp32") == "fp32"


def test_an_error_of_the_observer_costs_the_program_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = train(whole, steps=5)
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: Path("/nowhere/at/all").mkdir())
    with watching() as told:
        seen = train(whole, steps=5)

    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), seen.parameters(), strict=True))
    assert not told.windows
    assert len(told.off) == 1
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("hpcml_client: the precision is not observed any more: FileNotFoundError")


def test_of_an_observer_that_went_off_the_steps_still_count() -> None:
    told = Told()
    seeing = Observer(told, how="client")
    seeing.install(is_hooked=True)

    train(whole, steps=3)
    seeing.give_way("somebody else takes a trace")
    train(whole, steps=4)
    seeing.close()
    seeing.close()

    assert told.off == ["somebody else takes a trace"]
    closed = [details for name, details in told.events if name == "precision_observer_closed"]
    assert closed == [{"framework": "torch", "steps": 7}]


def test_a_trace_of_another_torch_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_SCHEMAS", ("0.9",))
    with watching() as told:
        train(whole)

    assert told.word("fp32") == "unknown"
    assert "schema 1.1.1" in told.windows[0].unknown[0]


def test_nothing_is_said_and_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with watching() as told:
        train(whole)

    assert told.windows
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_a_program_that_takes_an_execution_trace_itself_has_its_own(tmp_path: Path) -> None:
    with watching() as told:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(4):
            if step == 1:  # a window is open
                mine = torch.profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "mine.json"))
                mine.start()
            whole(model).backward()
            optimizer.step()
        mine.stop()
        mine.unregister_callback()

    assert told.off == ["the program takes an execution trace itself"]
    products = traces.read_trace(str(tmp_path / "mine.json")).products
    assert sum(one.phase == "backward" for one in products) == 3 * 3


def test_a_profile_of_the_program_is_whole() -> None:
    with watching() as told, torch.profiler.profile() as profile:
        train(whole)

    assert told.word("fp32") == "fp32"
    assert sum(event.name == "aten::addmm" for event in profile.events()) == 3 * 2


def test_a_child_that_is_forked_in_a_window_goes_its_own_way() -> None:
    def loss(model: Any) -> Any:
        child = os.fork()
        if child == 0:
            os._exit(0 if (torch.zeros(2) + 1).sum() == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        return whole(model)

    with watching() as told:
        train(loss, steps=6)

    assert not told.off
    assert not told.windows or told.word("fp32") == "fp32"  # a window in which something forks is given up


def test_workers_that_load_data_do_not_disturb() -> None:
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(96, 64)),
        batch_size=32,
        num_workers=1,
        multiprocessing_context="fork",
    )
    with watching() as told:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            for (x,) in loader:
                model(x).square().mean().backward()
                optimizer.step()

    assert told.word("fp32") == "fp32"
