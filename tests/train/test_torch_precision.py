from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import hpcml_client  # noqa: E402
from hpcml.model.choices import Numerics  # noqa: E402
from hpcml.model.precision import CAPABILITIES, CPU, PrecisionName, decide_numerics  # noqa: E402
from hpcml.runs.journal import Event, read_journal  # noqa: E402
from hpcml_client.formats import name_precision  # noqa: E402
from hpcml_train.torch import switches as torch_switches  # noqa: E402
from hpcml_train.torch.arithmetic import Arithmetic, choose_device  # noqa: E402
from hpcml_train.torch.probe import measure_precision  # noqa: E402
from tests.effort import times  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch_as_found")]
ALL = [name.name for name, row in CAPABILITIES.items() if row.trains]


def _named(details: dict[str, object]) -> str:
    return name_precision(details["products"], details["parameters"])  # type: ignore[arg-type]


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def _train(arithmetic: Arithmetic, steps: int = 20, factor: float = 1.0) -> tuple[torch.nn.Module, list[float]]:
    model = arithmetic.prepare(_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=arithmetic.optimizer_eps())
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(64, 8, generator=generator), torch.randint(0, 3, (64,), generator=generator)
    losses = []
    for _ in range(steps):
        with arithmetic.context():
            loss = torch.nn.functional.cross_entropy(model(arithmetic.cast(x)), y) * factor
        arithmetic.backward_and_step(loss, optimizer)
        losses.append(float(loss.detach()))
    return model, losses


@pytest.mark.parametrize("name", ALL)
def test_the_probe_names_the_precision_that_was_asked_for(name: str) -> None:
    numerics = decide_numerics(PrecisionName[name], Numerics.auto, CPU).name

    details = measure_precision(Arithmetic(name, numerics=numerics))

    assert _named(details) == name
    assert (details["requested"], details["numerics"], details["device"]) == (name, numerics, "cpu")
    assert set(details["products"]) == set(details["errors"]) == {"matmul", "conv"}


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_hybrid"])
def test_the_probe_names_scaled_products_without_convolutions_which_torch_has_not(name: str) -> None:
    details = measure_precision(Arithmetic(name, numerics="native"))  # a CPU multiplies 8-bit numbers too

    assert _named(details) == name
    assert set(details["products"]) == {"matmul"}
    assert details["switches"]["scaled_products.use_fast_accum"] is False
    assert details["flipped"] == {}


LIKE_EACH_OTHER = ["fp32", "tf32x3", "bf16x3", "fp8_e4m3", "fp8_hybrid", "fp8_e5m2"]


@pytest.mark.parametrize("really", LIKE_EACH_OTHER)
def test_an_arithmetic_that_is_like_the_one_that_was_asked_for_is_found_out(really: str) -> None:
    other = Arithmetic(really)

    class Another(Arithmetic):
        def context(self) -> AbstractContextManager[None]:
            return other.context()

    at = LIKE_EACH_OTHER.index(really)
    nearest = sorted(LIKE_EACH_OTHER, key=lambda name: abs(LIKE_EACH_OTHER.index(name) - at))
    for asked in nearest[: times(3, len(nearest))]:  # itself, and those that are taken for it the most easily
        assert _named(measure_precision(Another(asked))) == really


def test_the_probe_leaves_counts_as_they_were() -> None:
    arithmetic = Arithmetic("fp8_hybrid")
    _train(arithmetic, steps=2)
    before = arithmetic.state_dict()

    measure_precision(arithmetic)

    assert arithmetic.state_dict() == before


@pytest.mark.parametrize("name", ALL)
def test_a_program_started_by_hand_decides_as_hpcml_would(name: str) -> None:
    planned = decide_numerics(PrecisionName[name], Numerics.auto, CPU)

    assert Arithmetic(name).numerics == planned.name
    assert (CAPABILITIES[PrecisionName[name]].emulation is not None) == (planned is Numerics.emulated)


@pytest.mark.parametrize("rounding", ["rna", "rne", "rz"])
def test_tf32_is_recognised_in_every_rounding(rounding: str) -> None:
    details = measure_precision(Arithmetic("tf32", rounding=rounding))

    assert _named(details) == "tf32"
    assert details["rounding"] == rounding


def test_a_tf32_run_that_is_really_fp32_is_found_out() -> None:
    details = measure_precision(Arithmetic("tf32", numerics="native"))  # no CPU has the units

    assert details["requested"] == "tf32"
    assert _named(details) == "fp32"


def test_an_autocast_that_skips_convolutions_is_found_out() -> None:
    class Leaky(Arithmetic):
        def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
            if isinstance(model, torch.nn.Conv2d):
                model.register_forward_pre_hook(lambda *_: torch.set_autocast_enabled("cpu", False))  # noqa: FBT003
            return super().prepare(model)

    details = measure_precision(Leaky("amp_bf16"))

    assert _named(details) == "mixed(conv=fp32, matmul=bf16, parameters=float32)"


def test_the_probe_leaves_random_numbers_and_counts_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    arithmetic = Arithmetic("tf32")

    measure_precision(arithmetic)

    assert torch.equal(torch.get_rng_state(), before)
    assert arithmetic.products == {}


def test_fp32_switches_tf32_off_everywhere_and_tf32_on_for_gpus_alone() -> None:
    assert set(Arithmetic("fp32").switches.values()) <= {"ieee", "highest", False}
    if not torch_switches.has_fp32_precision():
        pytest.skip("this torch has the old switches")
    switches = Arithmetic("tf32", numerics="native").switches
    assert {name for name, value in switches.items() if value == "tf32"} == {
        "cuda.matmul.fp32_precision",
        "cudnn.conv.fp32_precision",
        "cudnn.rnn.fp32_precision",
    }


def test_evaluation_is_fp32_whatever_the_run_trains_in() -> None:
    arithmetic = Arithmetic("tf32", numerics="native")
    model = arithmetic.prepare(_model())

    with arithmetic.evaluation(model):
        assert "tf32" not in torch_switches.read_switches().values()

    if torch_switches.has_fp32_precision():
        assert torch_switches.read_switches()["cudnn.conv.fp32_precision"] == "tf32"


@pytest.mark.parametrize(("name", "dtype"), [("fp64", "float64"), ("bf16", "float32"), ("amp_fp16", "float32")])
def test_evaluation_sees_parameters_of_32_bits_or_more_and_the_same_values(name: str, dtype: str) -> None:
    arithmetic = Arithmetic(name)
    model = arithmetic.prepare(_model()).train()

    with arithmetic.evaluation(model) as examined:
        assert not examined.training
        assert not torch.is_grad_enabled()
        for exact, trained in zip(examined.parameters(), model.parameters(), strict=True):
            assert str(exact.dtype) == f"torch.{dtype}"
            assert torch.equal(exact, trained.to(exact.dtype))

    assert model.training


@pytest.mark.parametrize("name", ALL)
def test_every_precision_trains(name: str) -> None:
    arithmetic = Arithmetic(name)

    _, losses = _train(arithmetic)

    assert losses[-1] < losses[0] * 0.98
    assert bool(arithmetic.products) == (arithmetic.numerics == "emulated")


def test_backward_products_are_emulated_as_well() -> None:
    arithmetic = Arithmetic("tf32")

    _train(arithmetic, steps=1)

    # forward: two layers; backward: two gradients of weights, one of activations
    assert arithmetic.products == {"aten.addmm": 2, "aten.mm": 3}


def test_emulated_tf32_differs_from_fp32_slightly() -> None:
    _, exact = _train(Arithmetic("fp32"))
    _, rounded = _train(Arithmetic("tf32"))

    differences = [abs(a - b) / a for a, b in zip(exact, rounded, strict=True)]
    assert 0 < max(differences) < 5e-3


def test_an_overflow_is_skipped_and_counted() -> None:
    arithmetic = Arithmetic("amp_fp16")

    model, _ = _train(arithmetic, steps=3, factor=1e4)

    scaling = arithmetic.scaling()
    assert scaling["skipped_steps"] >= 1
    assert scaling["loss_scale"] == 65536.0 / 2 ** scaling["skipped_steps"]
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_what_the_arithmetic_has_learnt_goes_along_in_a_checkpoint() -> None:
    arithmetic, again = Arithmetic("amp_fp16"), Arithmetic("amp_fp16")
    _train(arithmetic, steps=3, factor=1e4)

    again.load_state_dict(copy.deepcopy(arithmetic.state_dict()))

    assert again.scaling() == arithmetic.scaling() != Arithmetic("amp_fp16").scaling()
    assert again.products == arithmetic.products
    assert again.state_dict() == arithmetic.state_dict()


def test_the_state_of_another_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="a checkpoint of precision=fp32 is no start for amp_fp16"):
        Arithmetic("amp_fp16").load_state_dict(Arithmetic("fp32").state_dict())
    with pytest.raises(ValueError, match="is no start for"):
        Arithmetic("amp_fp16").load_state_dict(Arithmetic("amp_fp16", loss_scaling=False).state_dict())


@pytest.mark.parametrize("name", [name for name in ALL if name != "amp_fp16"])
def test_only_amp_fp16_scales_its_loss(name: str) -> None:
    assert Arithmetic(name).scaling() == {}
    assert not Arithmetic("amp_fp16", loss_scaling=False).loss_scaling


def test_fp16_parameters_need_a_larger_eps() -> None:
    assert Arithmetic("fp16").optimizer_eps() == 1e-4
    assert Arithmetic("amp_fp16").optimizer_eps() == 1e-8


def test_a_recurrent_model_is_emulated_without_being_told() -> None:
    arithmetic = Arithmetic("tf32")
    model = arithmetic.prepare(torch.nn.LSTM(4, 4))

    with arithmetic.context():
        model(torch.randn(2, 3, 4))

    assert sum(arithmetic.products.values()) > 2


@pytest.mark.parametrize(
    ("name", "numerics", "reason"),
    [
        ("fp4", "auto", "choose one of"),
        ("fp8_e5m2", "native", "multiplies no E5M2 by E5M2"),
        ("fp32", "emulated", "native on every device"),
        ("fp32", "guessed", "choose auto, native or emulated"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(name: str, numerics: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Arithmetic(name, numerics=numerics)


def test_a_planned_gpu_that_is_not_there_is_an_error() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")

    with pytest.raises(RuntimeError, match="sees no GPU"):
        choose_device("cuda", 0)
    assert choose_device(None, 0).type == choose_device("cpu", 3).type == "cpu"


def test_one_call_sets_measures_and_reports(tmp_path: Path) -> None:
    environ = {"HPCML_RUN_DIR": str(tmp_path), "HPCML_PRECISION": "tf32"}
    with hpcml_client.connect(environ) as run:
        arithmetic = run.apply_precision()

    assert isinstance(arithmetic, Arithmetic)
    (path,) = (tmp_path / "journal").iterdir()
    found = {record.name: record.details for record in read_journal(path).records if isinstance(record, Event)}
    assert set(found) == {"framework", "precision", "closed"}
    assert found["framework"]["torch"] == torch.__version__
    assert found["framework"]["device"] == "cpu"
    assert _named(found["precision"]) == "tf32"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["fp64", "fp32", "tf32", "amp_fp16", "amp_bf16", "bf16", "fp16"])
def test_the_probe_agrees_on_a_gpu(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    if name in ("tf32", "amp_bf16", "bf16") and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU has no such units")

    details = measure_precision(Arithmetic(name, device=torch.device("cuda", 0)))

    assert _named(details) == name
