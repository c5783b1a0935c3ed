"""The arithmetic of one JAX training: dtypes, the precision of products and loss scaling behind one idiom.

arithmetic = run.apply_precision("jax")                   # before the first array is made
gradients_of = arithmetic.value_and_grad(loss_of)         # loss_of(parameters, x, y) sees all as it is to be computed

@jax.jit
def step(parameters, scale, x, y):
    loss, gradients, finite, scale = gradients_of(parameters, scale, x, y)
    updated = jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, parameters, gradients)
    return arithmetic.keep(finite, updated, parameters), scale, loss

with arithmetic.context():
    parameters, scale = arithmetic.prepare(parameters), arithmetic.loss_scale()
    parameters, scale, loss = step(parameters, scale, x, y)
run.metrics({"loss": loss, **arithmetic.scaling(scale)})
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hpcml_client.formats import check_native
from hpcml_client.precisions import OWN, PrecisionName
from hpcml_train.errors import NoGpuError

_FP32 = "float32"  # what JAX calls products that are computed in it
_SIXTEEN_BITS = ("float16", "bfloat16")
_INITIAL = 65536.0  # these four are torch.amp.GradScaler's
_GROWTH = 2.0
_BACKOFF = 0.5
_GROWTH_INTERVAL = 2000

Tree = Any  # whatever jax.tree_util takes: parameters and gradients


class LossScale(NamedTuple):
    """The loss scale of the next step, and the counts of steps so far."""

    scale: jax.Array
    good_steps: jax.Array  # since the scale changed
    skipped_steps: jax.Array
    overflowed_gradients: jax.Array  # elements that were not finite, in the last step


class Device:
    """One of JAX's devices, and its kind (cpu or cuda)."""

    def __init__(self, device: jax.Device, kind: str) -> None:
        self.device = device
        self.type = kind  # cpu, cuda


def choose_device(kind: str | None, local_rank: int) -> Device:
    """Return the planned device (*kind* cpu or cuda) of this process; without a plan a GPU if there is one."""
    gpus = _gpus() if kind in (None, "cuda") else []
    if gpus:
        # a scheduler may bind one GPU to each process, which then is number 0 for everyone
        return Device(gpus[local_rank % len(gpus)], "cuda")
    if kind == "cuda":
        raise NoGpuError("JAX", jax.__version__)
    return Device(jax.devices("cpu")[0], "cpu")


class Arithmetic:
    """A precision in JAX. Creating one sets JAX's switches, explicitly for every precision.

    ``own`` asks for none: nothing is set or cast, and values are only placed on the device.
    """

    def __init__(
        self,
        precision: str,
        *,
        numerics: str = "auto",
        device: Device | None = None,
        loss_scaling: bool = True,
    ) -> None:
        self.device = device or Device(jax.devices("cpu")[0], "cpu")
        check_native("jax", precision, numerics, self.device.type)
        self.precision = precision
        self.numerics = "native"
        row = PrecisionName[precision].value
        self.parameter_dtype = None if precision == OWN else row.parameters
        self.compute_dtype = row.autocast or self.parameter_dtype
        self.loss_scaling = loss_scaling and precision == "amp_fp16"
        # JAX's own default computes FP32 products in TF32 on GPUs that have it; "highest" is the same as _FP32, and no
        # word of JAX 0.4.30.
        self.matmul_precision = "tensorfloat32" if precision == "tf32" else _FP32
        if precision != OWN:
            jax.config.update("jax_enable_x64", precision == "fp64")
            jax.config.update("jax_default_matmul_precision", self.matmul_precision)
        self.switches: Mapping[str, object] = read_switches()

    def optimizer_eps(self, default: float = 1e-8) -> float:
        """Return Adam's eps: *default*, but 1e-4 for FP16 parameters.

        There 1e-8 rounds to zero, and steps could be infinite.
        """
        return max(default, 1e-4) if self.parameter_dtype == "float16" else default

    def prepare(self, parameters: Tree) -> Tree:
        """Return *parameters* on the device, floating point ones in the type that they are kept in."""
        return jax.device_put(_cast(parameters, self.parameter_dtype), self.device.device)

    def cast(self, values: Tree) -> Tree:
        """Return *values* with floating point ones in the type that is computed in."""
        return _cast(values, self.compute_dtype)

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """Compute in this precision inside the block, on this device, whatever others have configured."""
        with jax.default_device(self.device.device), self._products(self.matmul_precision):
            yield

    def _products(self, precision: str) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.precision == OWN else jax.default_matmul_precision(precision)

    def loss_scale(self) -> LossScale:
        """Return the first loss scale; 1, and constant, where this precision scales no loss."""
        return _first_scale(scaled=self.loss_scaling)

    def value_and_grad(
        self, loss_of: Callable[..., jax.Array], *, parts: int = 1
    ) -> Callable[..., tuple[jax.Array, Tree, jax.Array, LossScale]]:
        """Return a function of (parameters, scale, *batch) -> loss, gradients, whether they are finite, next scale.

        *loss_of* gets parameters and batch in the type that is computed in; gradients come in that of the parameters.
        It sees the rows of the batch's arrays in so many *parts*, one after the other, whose mean is that of the batch.
        """

        def compute(parameters: Tree, scale: LossScale, *batch: object) -> tuple[jax.Array, Tree, jax.Array, LossScale]:
            def scaled(kept: Tree, part: tuple[object, ...]) -> tuple[jax.Array, jax.Array]:
                loss = loss_of(self.cast(kept), *self.cast(part))
                wide = (loss.astype("float32") if loss.dtype in _SIXTEEN_BITS else loss) / parts
                return wide * scale.scale.astype(wide.dtype), wide

            def differentiate(part: tuple[object, ...]) -> tuple[Tree, jax.Array]:
                found: tuple[Tree, jax.Array] = jax.grad(scaled, has_aux=True)(parameters, part)
                return found

            gradients, loss = differentiate(batch) if parts == 1 else _sum_over(differentiate, batch, parts)
            if not self.loss_scaling:
                return loss, gradients, jnp.asarray(True), scale  # noqa: FBT003 - JAX's truth
            return (loss, *_unscale(gradients, scale))

        return compute

    def keep(self, finite: jax.Array, updated: Tree, before: Tree) -> Tree:
        """Return *updated* where the gradients were *finite*, else what there was *before*."""
        return jax.tree_util.tree_map(lambda new, old: jnp.where(finite, new, old), updated, before)

    @contextlib.contextmanager
    def evaluation(self, parameters: Tree) -> Iterator[Tree]:
        """Yield *parameters* in FP32 (fp64: FP64; own: as they are), and compute in real FP32 inside, not in TF32."""
        wide = None if self.precision == OWN else "float64" if self.precision == "fp64" else "float32"
        with jax.default_device(self.device.device), self._products(_FP32):
            yield _cast(parameters, wide)

    def scaling(self, scale: LossScale) -> Mapping[str, float]:
        """Return the metrics of the scaling after a step, named as torch's are; nothing where no loss is scaled."""
        if not self.loss_scaling:
            return {}
        return {
            "loss_scale": float(scale.scale),
            "skipped_steps": float(scale.skipped_steps),
            "overflowed_gradients": float(scale.overflowed_gradients),
        }


def _first_scale(*, scaled: bool) -> LossScale:
    """Return what a training begins with; where nothing is *scaled*, a scale of one that stays."""
    counters = (jnp.zeros((), jnp.int32) for _ in range(3))  # of their own: a step may be given their memory
    return LossScale(jnp.asarray(_INITIAL if scaled else 1.0, jnp.float32), *counters)


def _unscale(gradients: Tree, state: LossScale) -> tuple[Tree, jax.Array, LossScale]:
    """Return the gradients as they are, whether all are finite, and the scale of the next step."""
    unscaled = jax.tree_util.tree_map(lambda gradient: gradient / state.scale.astype(gradient.dtype), gradients)
    leaves = jax.tree_util.tree_leaves(unscaled)
    overflowed = sum((~jnp.isfinite(leaf)).sum().astype(jnp.int32) for leaf in leaves)
    finite = jnp.asarray(overflowed == 0)
    grows = finite & (state.good_steps + 1 >= _GROWTH_INTERVAL)
    factor = jnp.where(finite, jnp.where(grows, _GROWTH, 1.0), _BACKOFF)
    following = LossScale(
        scale=(state.scale * factor).astype(jnp.float32),
        good_steps=jnp.where(finite & ~grows, state.good_steps + 1, 0),
        skipped_steps=state.skipped_steps + jnp.where(finite, 0, 1),
        overflowed_gradients=jnp.asarray(overflowed, jnp.int32),
    )
    return unscaled, finite, following


def read_switches() -> dict[str, object]:
    """Return every switch with its value; XLA reads its flags once, when JAX starts, so they are only reported."""
    return {
        "jax_enable_x64": bool(jax.config.jax_enable_x64),
        "jax_default_matmul_precision": str(jax.config.jax_default_matmul_precision),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS") or None,
    }


def _cast(values: Tree, dtype: str | None) -> Tree:
    def one(value: Any) -> Any:  # noqa: ANN401 - any leaf
        array = jnp.asarray(value)
        return array.astype(dtype) if dtype is not None and jnp.issubdtype(array.dtype, jnp.floating) else array

    return jax.tree_util.tree_map(one, values)


def _sum_over(compute: Callable[[Tree], Tree], batch: Tree, parts: int) -> Tree:
    """Return the sum of what *compute* makes of each of so many *parts* of the rows of *batch*."""
    divided = jax.tree_util.tree_map(lambda rows: rows.reshape(parts, -1, *rows.shape[1:]), batch)
    first = jax.tree_util.tree_map(lambda rows: rows[0], divided)
    zero = jax.tree_util.tree_map(lambda like: jnp.zeros(like.shape, like.dtype), jax.eval_shape(compute, first))

    def add(sums: Tree, part: Tree) -> tuple[Tree, None]:
        return jax.tree_util.tree_map(jnp.add, sums, compute(part)), None

    return jax.lax.scan(add, zero, divided)[0]


def _gpus() -> Any:  # noqa: ANN401 - a list of JAX's devices
    try:
        return jax.devices("cuda")
    except RuntimeError:  # JAX's way to say that it has no such backend
        return []
