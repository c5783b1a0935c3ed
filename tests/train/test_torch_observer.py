from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from hpcml_client.observed import Window, name_observed, read_window
from hpcml_train.torch import observer
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.observed_float32 import Float32
from hpcml_train.torch.observer import Observer
from hpcml_train.torch.window import Row, active_mode
from hpcml_train.torch.window import Window as StepWindow

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
    assert {row["layer"] for row in rows if row["phase"] == "forward"} == {"body", "head"}
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
        ("evaluation" if reentrant else "forward", "body", "bf16"): 2
        * one_product,  # torch computes it without a graph
        ("forward", "head", "fp32"): 2 * one_product,
        ("backward", None, "bf16"): 2 * 2 * one_product,
        ("backward", None, "fp32"): 2 * 2 * one_product,
        # computed again, whole, or until the exception, which comes before the product
        **({("backward", "body", "bf16"): 2 * one_product} if reentrant else {}),
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
    assert [flops(told, layer, "forward") for layer in ("conv", "up", "lstm", "All")] == [conv, up, lstm, attention]
    assert flops(told, None, "backward") == conv + 2 * up + 2 * lstm + 2.5 * attention


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
    assert {row["layer"] for row in told.details[0]["rows"] if row["phase"] == "forward"} == {"LSTM"}


def test_a_forward_pass_in_another_thread_is_unknown() -> None:
    def loss(model: Any) -> Any:
        found = []
        thread = threading.Thread(target=lambda: found.append(half(model)))
        thread.start()
        thread.join()
        return found[0]

    with watching() as told:
        train(loss)

    assert told.word("amp_bf16") == "unknown"


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

    assert told.word("fp32") == "mixed(50 % bf16, 50 % fp32: body, head)"


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
    monkeypatch.setattr(StepWindow, "rows", lambda _: Path("/nowhere/at/all").mkdir())
    with watching() as told:
        seen = train(whole, steps=5)

    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), seen.parameters(), strict=True))
    assert not told.windows
    assert len(told.off) == 1
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("hpcml_client: the precision is not observed any more: FileNotFoundError")


def test_a_profile_of_the_program_is_whole() -> None:
    with watching() as told, torch.profiler.profile() as profile:
        train(whole)

    assert told.windows == []  # each operation would stand twice in the profile of that step
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


def test_compiled_code_is_not_observed_and_says_so() -> None:
    model = Net()
    compiled = torch.compile(model, backend="aot_eager")
    with watching() as told:
        train(lambda _: half(compiled), model)

    assert told.word("amp_bf16") == "not observed: compiled"
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def test_rows_beyond_the_largest_are_summed_up_once() -> None:
    window = StepWindow(Float32())
    window.flops = {Row("fp32", "forward", f"layer{number}"): 10.0 for number in range(70)}
    window.flops[Row("fp32", "forward", None)] = 1.0

    rows = window.rows()

    assert sum(row["flops"] for row in rows) == 701
    assert [row["flops"] for row in rows if row["layer"] is None] == [61]


def test_a_program_inside_of_a_dispatch_mode_of_its_own_keeps_it() -> None:
    with watching() as told, FlopCounterMode(display=False) as counter:
        train(whole)

    assert told.windows == []
    assert counter.get_total_flops() == 3 * 5 * 2 * 32 * 64 * 64


def test_a_mode_that_a_program_enters_in_a_window_and_keeps_ends_the_observing() -> None:
    counter = FlopCounterMode(display=False)
    with watching() as told:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(4):
            if step == 1:
                counter.__enter__()
            whole(model).backward()
            optimizer.step()
        counter.__exit__(None, None, None)
        optimizer.step()
        assert active_mode() is None

    assert told.off == ["the program's own dispatch mode lies above the observer's"]
    assert told.windows == []
    assert counter.get_total_flops() == 3 * 5 * 2 * 32 * 64 * 64


def test_weights_of_a_subclass_are_seen_by_what_they_are_computed_of() -> None:
    with watching() as told:
        model = Net()
        model.body.weight = nn.Parameter(InHalf(model.body.weight.detach()))
        optimizer = torch.optim.SGD([model.head.weight], lr=0.01)
        for _ in range(3):
            whole(model).backward()
            optimizer.step()

    assert {(row["layer"], row["format"]) for row in told.details[0]["rows"] if row["phase"] == "forward"} == {
        ("body", "bf16"), ("head", "fp32"),
    }  # fmt: skip


class Launched:
    """A stand-in for Triton's ``JITFunction``: its `run` returns the kernel that was launched."""

    def __init__(self, name: str, ttir: str) -> None:
        self.__name__ = name
        self.kernel = types.SimpleNamespace(asm={"ttir": ttir})

    def run(self, *args: object, grid: object) -> object:
        assert (args, grid) == ((1, 2), (8, 8))
        return self.kernel


def test_a_kernel_of_triton_that_multiplies_is_unknown_and_any_other_is_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Launched.run
    module = types.ModuleType("triton.runtime.jit")
    module.JITFunction = Launched  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", module)
    scale, attention, odd = Launched("scale", "tt.load"), Launched("attention", "%1 = tt.dot %0"), Launched("odd", "")
    odd.kernel = types.SimpleNamespace()

    def loss(model: Any) -> Any:
        for function in (scale, odd, attention):
            assert function.run(1, 2, grid=(8, 8)) is function.kernel
        return whole(model)

    with watching() as told:
        train(loss)

    assert told.windows[0].unknown == ("attention: a kernel of Triton that multiplies",)
    assert told.word("fp32") == "unknown"
    assert Launched.run is run


class InHalf(torch.Tensor):
    """A float32 tensor whose products are computed in BF16, as those of quantisation libraries are in 8 bits."""

    @staticmethod
    def __new__(cls: Any, inner: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def half(x: Any) -> Any:
            return x.inner.bfloat16() if isinstance(x, InHalf) else x.bfloat16() if isinstance(x, torch.Tensor) else x

        result = func(*map(half, args), **(kwargs or {}))
        if func in (torch.ops.aten.t.default, torch.ops.aten.detach.default):
            return InHalf(result.float())
        return result.float() if isinstance(result, torch.Tensor) else result
