"""What a program of JAX multiplies is what it is called, whatever it was asked for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from hpcml.runs.journal import Event, read_journal
from hpcml_train.precision.observed import name_observed, read_window
from tests.train.framework_scripts import OBSERVED, run_script

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")

SCRIPT = (
    OBSERVED.format(framework="jax")
    + """
import jax, jax.numpy as jnp
from jax._src.interpreters import mlir
from jax.experimental import pallas
lower = mlir.lower_jaxpr_to_module

def loss(p, x, body=jnp.bfloat16, head=jnp.bfloat16):
    with jax.named_scope("encoder"):
        h = jnp.tanh(x.astype(body) @ p["a"].astype(body))
    def cell(h, _):
        with jax.named_scope("cell"):
            return jnp.tanh(h @ p["w"].astype(body)), None
    h, _ = jax.lax.scan(jax.checkpoint(cell), h, None, length=3)
    with jax.named_scope("head"):
        return (h.astype(head) @ p["o"].astype(head)).astype(jnp.float32).sum()

p = {"a": jnp.ones((4, 8)), "w": jnp.ones((8, 8)), "o": jnp.ones((8, 2))}
f32 = jnp.float32

def step(rows, **more):
    jax.jit(jax.value_and_grad(lambda p, x: loss(p, x, **more)))(p, jnp.ones((rows, 4)))

def loop_of_steps():
    update = jax.jit(lambda p, x: jax.tree_util.tree_map(lambda w, g: w - g, p, jax.grad(loss)(p, x)))
    q = p
    for _ in range(5):
        q = update(q, jnp.ones((21, 4)))

def with_evaluation():
    evaluate = jax.jit(lambda p, x: loss(p, x, f32, f32))
    evaluate(p, jnp.ones((31, 4)))
    step(32)
    evaluate(p, jnp.ones((33, 4)))

def with_a_kernel():
    def double(x):
        return pallas.pallas_call(
            lambda a, o: o.__setitem__(slice(None), a[:] * 2),
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)
    jax.jit(lambda x: double(x) @ x.T)(jnp.ones((8, 8)))

def with_an_algorithm():
    preset = jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3
    f = jax.jit(lambda a: jax.lax.dot(a, a, precision=preset))
    a = jnp.arange(64 * 64, dtype=jnp.float32).reshape(64, 64) / 1000
    exact = jnp.asarray(a) @ a
    told["error_of_the_algorithm"] = float(jnp.abs(f(a) - exact).max() / jnp.abs(exact).max())

def many_layers(p):
    for layer in range(100):
        with jax.named_scope(f"layer{layer}"):
            p = p @ p
    return p.sum()

def convolve():
    def of(w, x):
        return jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")).sum()
    jax.jit(jax.grad(of))(jnp.ones((3, 3, 2, 4)), jnp.ones((2, 8, 8, 2)))

case("jit", loop_of_steps)
case("fp32 head", lambda: step(6, head=f32))
case("ignored", lambda: step(7, body=f32, head=f32))
case("ahead of time", lambda: jax.jit(jax.grad(loss)).lower(p, jnp.ones((8, 4))).compile())
case("pulled back", lambda: jax.vjp(jax.jit(loss), p, jnp.ones((9, 4)))[1](1.0))
jax.clear_caches()
case("evaluation", with_evaluation)
jax.clear_caches()
case("eager", lambda: jax.grad(lambda a: (a @ a).sum())(jnp.ones((13, 13))), "fp32")
jax.clear_caches()
case("nothing", lambda: jnp.ones(3) + 1)
case("kernel", with_a_kernel, "fp32")
jax.clear_caches()
case("algorithm", with_an_algorithm, "bf16x3")
jax.clear_caches()
case("convolution", convolve, "fp32")
jax.clear_caches()
case("in groups", lambda: jax.jit(jax.grad(lambda a, b: jax.lax.ragged_dot(
    a, b, jnp.array([1, 2], jnp.int32)).sum(), (0, 1)))(jnp.ones((3, 4)), jnp.ones((2, 4, 5))), "fp32")
jax.clear_caches()
case("solver", lambda: jnp.linalg.solve(jnp.eye(4), jnp.ones((4, 4))) @ jnp.ones((4, 3)), "fp32")
jax.clear_caches()
case("layers", lambda: jax.jit(many_layers)(jnp.ones((4, 4))), "fp32")
jax.clear_caches()
case("gpu by default", convolve, "fp32", on_gpu=True)
with jax.default_matmul_precision("highest"):
    jax.clear_caches()
    case("gpu highest", convolve, "fp32", on_gpu=True)
with jax.default_matmul_precision("tensorfloat32"):
    jax.clear_caches()
    case("gpu tf32", convolve, "tf32", on_gpu=True)
jax.clear_caches()
exec(compile("double = jax.jit(lambda a: a * 2); double(jnp.ones(23))", "/home/me/gemm/conv/train.py", "exec"))
case("in a folder called gemm", lambda: step(18))
early = jax.jit(lambda a: a @ a)
early(jnp.ones((17, 17)))
case("earlier", lambda: step(18))
told["put_back"] = mlir.lower_jaxpr_to_module is lower

from hpcml_train.jax import observer as module
told["known by its text"] = [bool(module._MULTIPLIES.search(line)) for line in (
    'ROOT %dot.1 = f32[4,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}',
    '(f32[8,8], s8[4]) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", backend_config={}',
    '(f32[8,8], s8[4]) custom-call(%a, %b), custom_call_target="__cublas$gemm"',
    '(f32[8], u8[0]) custom-call(%a, %b), custom_call_target="__cudnn$convForward"',
    'fusion(%a), backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}',
)]
class Open:
    eqns = ()
    jaxpr = property(lambda self: self)
program = Open()
told["own inner one"] = [*module.programs_in((program, [program], 3))].count(program)

# an observer that fails: the program does not notice
counts, module.dot_flops = module.dot_flops, lambda equation: 1 / 0
jax.clear_caches()
case("failing", lambda: step(5))
module.dot_flops = counts
told["put_back_after_a_failure"] = mlir.lower_jaxpr_to_module is lower
del mlir.lower_jaxpr_to_module
case("another version", lambda: None)
mlir.lower_jaxpr_to_module = lower

# by the client, as a program of a run has it
import hpcml_client
jax.clear_caches()
run = hpcml_client.connect()
arithmetic = run.apply_precision("jax")
with arithmetic.context():
    q = arithmetic.prepare(p)
    jax.jit(arithmetic.value_and_grad(lambda p, x: (jnp.tanh(x @ p["a"]) @ p["w"]).sum()))(
        q, arithmetic.loss_scale(), jnp.ones((5, 4)))
run.close()
print(json.dumps(told))
"""
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def told(run_dir: Path) -> dict[str, Any]:
    return run_script(SCRIPT, "jax", HPCML_RUN_DIR=str(run_dir), HPCML_PRECISION="amp_bf16")


def test_a_program_is_called_what_it_multiplies(told: dict[str, Any]) -> None:
    words = {title: told[title]["word"] for title in ("jit", "ahead of time", "evaluation", "convolution")}
    assert words == {"jit": "amp_bf16", "ahead of time": "amp_bf16", "evaluation": "amp_bf16", "convolution": "fp32"}
    assert told["fp32 head"]["word"] == "mixed(95 % bf16, 5 % fp32: head)"
    assert told["pulled back"]["word"] == "amp_bf16"
    assert told["ignored"]["word"] == "not used(fp32)"
    assert told["eager"]["word"] == "fp32"


def test_a_loop_counts_as_often_as_it_runs_and_layers_have_the_names_of_scopes(told: dict[str, Any]) -> None:
    rows = {(row["phase"], row["layer"]): row["flops"] for row in told["jit"]["rows"]}
    one = 2 * 21 * 8 * 8  # of the cell, which is computed three times, and once more for each backward pass

    assert rows[("forward", "cell")] == 3 * one
    assert rows[("backward", "cell")] == 9 * one
    assert rows[("forward", "encoder")] == 2 * 21 * 4 * 8


def test_groups_of_rows_have_a_product_each_and_a_solver_none(told: dict[str, Any]) -> None:
    assert {row["phase"]: row["flops"] for row in told["in groups"]["rows"]} == {"backward": 2 * (2 * 3 * 4 * 5)}
    assert [(row["phase"], row["flops"]) for row in told["solver"]["rows"]] == [("forward", 2 * 4 * 4 * 3)]


def test_the_largest_rows_have_their_layers_and_the_others_are_one(told: dict[str, Any]) -> None:
    rows = told["layers"]["rows"]

    assert len(rows) == 61
    assert sum(row["flops"] for row in rows) == 100 * 2 * 4**3
    assert [row["flops"] for row in rows if row["layer"] is None] == [40 * 2 * 4**3]


def test_what_does_not_differentiate_is_an_evaluation_where_something_else_does(told: dict[str, Any]) -> None:
    phases = {(row["phase"], row["format"]) for row in told["evaluation"]["rows"]}
    assert phases == {("forward", "bf16"), ("backward", "bf16"), ("evaluation", "fp32")}


def test_what_nobody_can_know_is_unknown_and_named(told: dict[str, Any]) -> None:
    assert told["nothing"]["word"] is None
    for title, what in (
        ("kernel", "pallas_call: a kernel of its own"),
        ("gpu by default", "float32 on a GPU, in a precision that XLA chooses"),
        ("earlier", "jit__lambda was compiled before it was observed"),
    ):
        assert told[title]["word"] == "unknown"
        assert what in [one["what"] for one in told[title]["unknown"]]
    assert (told["gpu highest"]["word"], told["gpu tf32"]["word"]) == ("fp32", "tf32")


def test_what_multiplies_nothing_is_not_told_for_the_name_of_its_folder(told: dict[str, Any]) -> None:
    assert told["in a folder called gemm"]["unknown"] == []


def test_a_compiled_program_with_a_product_is_known_by_its_text(told: dict[str, Any]) -> None:
    assert told["known by its text"] == [True] * 5


def test_a_program_that_is_its_own_inner_one_is_read_once_as_jax_0_11_has_it(told: dict[str, Any]) -> None:
    assert told["own inner one"] == 2


def test_an_algorithm_that_a_cpu_does_not_have_is_what_it_computes(told: dict[str, Any]) -> None:
    assert told["algorithm"]["word"] == "not used(fp32)"
    assert told["error_of_the_algorithm"] < 1e-6  # three products of BF16 would be at 1e-5 or more


def test_an_observer_never_harms_the_program(told: dict[str, Any]) -> None:
    assert told["put_back"] is told["put_back_after_a_failure"] is True
    hello, off = told["failing"]["hello"]
    assert "off" not in hello
    assert off["off"] == "ZeroDivisionError: division by zero"
    assert told["failing"]["word"] == "unknown"
    (hello,) = told["another version"]["hello"]
    assert hello["off"].startswith("jax ")
    assert "does not tell what it compiles" in hello["off"]


def test_a_run_that_asks_for_its_precision_is_observed(told: dict[str, Any], run_dir: Path) -> None:
    assert told
    (path,) = run_dir.rglob("*.jsonl")
    events = [record for record in read_journal(path).records if isinstance(record, Event)]
    windows = [read_window(event.details) for event in events if event.name == "precision_observed"]

    assert [event.details["framework"] for event in events if event.name == "precision_observer"] == ["jax"]
    assert name_observed([one for one in windows if one is not None], "amp_bf16", "float32") == "amp_bf16"
