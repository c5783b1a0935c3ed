import pytest

from hpcml.errors import ConfigError
from hpcml.model.choices import Numerics
from hpcml.model.precision import (
    CAPABILITIES,
    CPU,
    Device,
    PrecisionName,
    capability,
    contradicts,
    decide_numerics,
    environment,
)
from hpcml_client.formats import name_precision

A100 = Device(kind="cuda", name="NVIDIA A100-SXM4-40GB", compute_capability=(8, 0))
V100 = Device(kind="cuda", name="Tesla V100-SXM2-16GB", compute_capability=(7, 0))
UNKNOWN = Device(kind="cuda")


@pytest.mark.parametrize("name", ["fp64", "fp32", "amp_bf16", "bf16"])
def test_a_cpu_does_natively_what_it_has_kernels_for(name: str) -> None:
    assert decide_numerics(PrecisionName[name], Numerics.auto, CPU) is Numerics.native


@pytest.mark.parametrize("name", ["tf32", "amp_fp16", "fp16", "fp8_e4m3", "fp8_e5m2"])
def test_a_cpu_emulates_what_it_has_no_units_for(name: str) -> None:
    assert decide_numerics(PrecisionName[name], Numerics.auto, CPU) is Numerics.emulated


def test_tf32_on_a_cpu_is_refused_where_native_was_asked_for() -> None:
    with pytest.raises(ConfigError, match="precision=tf32 is refused on this CPU"):
        decide_numerics(PrecisionName.tf32, Numerics.native, CPU)


@pytest.mark.parametrize(("name", "device"), [("tf32", V100), ("bf16", V100), ("amp_bf16", V100), ("fp8_e4m3", A100)])
def test_a_gpu_without_the_units_is_refused_and_never_emulated(name: str, device: Device) -> None:
    for wanted in Numerics:
        with pytest.raises(ConfigError):
            decide_numerics(PrecisionName[name], wanted, device)


@pytest.mark.parametrize("name", ["fp64", "fp32", "tf32", "amp_fp16", "amp_bf16", "bf16", "fp16"])
def test_ampere_does_all_precisions_of_the_recipes_natively(name: str) -> None:
    assert decide_numerics(PrecisionName[name], Numerics.auto, A100) is Numerics.native


def test_a_gpu_that_is_not_known_is_left_to_the_probe_on_the_node() -> None:
    assert decide_numerics(PrecisionName.tf32, Numerics.auto, UNKNOWN) is Numerics.native


def test_emulating_what_is_native_is_refused() -> None:
    with pytest.raises(ConfigError, match="fp32 is native"):
        decide_numerics(PrecisionName.fp32, Numerics.emulated, CPU)


@pytest.mark.parametrize("framework", [None, "torch"])
@pytest.mark.parametrize("name", CAPABILITIES)
def test_torch_and_programs_of_ones_own_have_the_rows_of_the_table(name: PrecisionName, framework: str | None) -> None:
    assert capability(name, framework) == CAPABILITIES[name]


@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
@pytest.mark.parametrize("name", ["tf32", "fp8_e4m3", "fp8_e5m2"])
def test_other_frameworks_refuse_on_a_cpu_what_only_torch_emulates(framework: str, name: str) -> None:
    for wanted, reason in (
        (Numerics.auto, f"precision={name} is refused on this CPU: .*and {framework} has no emulation here"),
        (Numerics.native, f"precision={name} is refused on this CPU"),
        (Numerics.emulated, f"precision.numerics=emulated is refused with {framework}"),
    ):
        with pytest.raises(ConfigError, match=reason):
            decide_numerics(PrecisionName[name], wanted, CPU, framework)


@pytest.mark.parametrize(
    ("framework", "names"),
    [
        ("tensorflow", ["fp64", "fp32", "amp_bf16", "bf16"]),
        ("jax", ["fp64", "fp32", "amp_fp16", "amp_bf16", "bf16", "fp16"]),
    ],
)
def test_other_frameworks_are_native_on_a_cpu_where_their_kernels_are_fast(framework: str, names: list[str]) -> None:
    native = [name.name for name in CAPABILITIES if capability(name, framework).on_cpu]

    assert native == names
    for name in names:
        assert decide_numerics(PrecisionName[name], Numerics.auto, CPU, framework) is Numerics.native


def test_fp16_with_tensorflow_on_a_cpu_is_refused_for_its_kernels() -> None:
    with pytest.raises(ConfigError, match="TensorFlow's CPU kernels for FP16 are 4 to 43 times slower"):
        decide_numerics(PrecisionName.amp_fp16, Numerics.auto, CPU, "tensorflow")


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax"])
def test_a_gpu_is_the_same_for_every_framework(framework: str) -> None:
    assert decide_numerics(PrecisionName.tf32, Numerics.auto, A100, framework) is Numerics.native
    with pytest.raises(ConfigError, match=r"it needs compute capability 8\.0$"):
        decide_numerics(PrecisionName.tf32, Numerics.auto, V100, framework)


def test_every_arm_states_the_same_variables() -> None:
    assert len({frozenset(environment(name)) for name in CAPABILITIES}) == 1


def test_what_is_left_to_the_program_sets_nothing_and_is_refused_nowhere() -> None:
    assert environment(PrecisionName.own) == {}
    for device in (CPU, A100, V100, UNKNOWN):
        for framework in (None, "torch", "tensorflow", "jax", "numpy"):
            assert capability(PrecisionName.own, framework).on_cpu
            if framework != "numpy" or device.kind == "cpu":
                assert decide_numerics(PrecisionName.own, Numerics.auto, device, framework) is Numerics.native
    with pytest.raises(ConfigError, match=r"precision\.numerics=emulated says nothing without a precision"):
        decide_numerics(PrecisionName.own, Numerics.emulated, CPU)


def test_nothing_contradicts_a_precision_that_was_left_to_the_program() -> None:
    assert contradicts("tf32", "fp32")
    assert not any(contradicts("own", measured) for measured in ("own", "fp32", "mixed(conv=tf32)", None))
    assert not contradicts("tf32", None)


def test_jax_gets_fp32_products_in_every_arm_but_tf32() -> None:
    said = {name: environment(name)["JAX_DEFAULT_MATMUL_PRECISION"] for name in CAPABILITIES}

    assert said.pop(PrecisionName.tf32) == "tensorfloat32"
    assert set(said.values()) == {"float32"}  # "highest" is no word of JAX 0.4.30


@pytest.mark.parametrize("name", [name for name in CAPABILITIES if name is not PrecisionName.tf32])
def test_every_arm_but_tf32_switches_tf32_off_in_nvidias_libraries(name: PrecisionName) -> None:
    assert environment(name)["NVIDIA_TF32_OVERRIDE"] == "0"
    assert environment(name)["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] == "0"


def test_the_tf32_arm_removes_the_override_which_can_only_switch_off() -> None:
    assert environment(PrecisionName.tf32)["NVIDIA_TF32_OVERRIDE"] is None


@pytest.mark.parametrize(
    ("products", "parameters", "name"),
    [
        ({"matmul": "fp32", "conv": "fp32"}, "float32", "fp32"),
        ({"matmul": "tf32", "conv": "tf32"}, "float32", "tf32"),
        ({"matmul": "fp16", "conv": "fp16"}, "float32", "amp_fp16"),
        ({"matmul": "bf16", "conv": "bf16"}, "bfloat16", "bf16"),
        ({"matmul": "fp64"}, "float64", "fp64"),
    ],
)
def test_a_measured_format_names_its_precision(products: dict[str, str], parameters: str, name: str) -> None:
    assert name_precision(products, parameters) == name


def test_an_fp32_run_whose_convolutions_were_tf32_is_called_mixed() -> None:
    """torch's default on Ampere: matmul IEEE, cuDNN convolutions TF32."""
    measured = name_precision({"matmul": "fp32", "conv": "tf32"}, "float32")

    assert measured == "mixed(conv=tf32, matmul=fp32, parameters=float32)"


def test_numpy_on_a_gpu_is_refused_with_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"NumPy computes on the CPU: set resources.gpus_per_node=0"):
        decide_numerics(PrecisionName.fp32, Numerics.auto, Device(kind="cuda", compute_capability=(8, 0)), "numpy")
