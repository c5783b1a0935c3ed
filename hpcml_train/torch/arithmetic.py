"""The arithmetic of one torch training: dtypes, autocast, loss scaling and emulation behind one interface.

arithmetic = run.apply_precision()
model = arithmetic.prepare(model)
optimizer = torch.optim.Adam(model.parameters(), eps=arithmetic.optimizer_eps())
with arithmetic.context():
    loss = criterion(model(x), y)
arithmetic.backward(loss)              # several times to accumulate
arithmetic.clip(optimizer, 1.0)        # the gradients as they are without loss scaling; unscale does only that
arithmetic.step(optimizer)             # and clears the gradients; several optimizers and schedulers in one call
with arithmetic.evaluation(model) as exact:
    accuracy = measure(exact)
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch

from hpcml_client.precisions import OWN, Precision, PrecisionName
from hpcml_train.errors import NoGpuError
from hpcml_train.torch import emulation, observer, switches
from hpcml_train.torch.gradients import ForwardTensors
from hpcml_train.torch.scaled_products import scaled_products
from hpcml_train.torch.scaled_products import why_not as why_no_scaled_products

_SIXTEEN_BITS = (torch.float16, torch.bfloat16)
_NOTHING = contextlib.nullcontext()  # one for all steps


def choose_device(kind: str | None, local_rank: int) -> torch.device:
    """Return the planned device (*kind* cpu or cuda) of this process; without a plan a GPU if there is one."""
    if kind == "cuda" or (kind is None and torch.cuda.is_available()):
        if not torch.cuda.is_available():
            raise NoGpuError("torch", torch.__version__)
        # a scheduler may bind one GPU to each process, which then is number 0 for everyone
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device("cpu")


class Arithmetic:
    """A precision in torch. Creating one sets torch's switches, explicitly for every precision.

    ``own`` asks for none: nothing is set or cast, and models and tensors are only moved to the device.
    """

    def __init__(
        self,
        precision: str,
        *,
        numerics: str = "auto",
        device: torch.device | None = None,
        rounding: str = "rna",
        loss_scaling: bool = True,
    ) -> None:
        if precision not in PrecisionName.__members__:
            known = ", ".join(one.name for one in PrecisionName if one.value.trains)
            raise ValueError(f"precision={precision!r}: choose one of {known}")
        self._row: Precision = PrecisionName[precision].value
        if not self._row.trains:
            raise ValueError(f"precision={precision}: torch trains in no integers here; it is for the recipe inference")
        self.precision = precision
        self.device = device or torch.device("cpu")
        self.numerics = _decide(precision, numerics, self.device)
        self.parameter_dtype: torch.dtype = (
            torch.get_default_dtype() if precision == OWN else getattr(torch, self._row.parameters)
        )
        # what factors of products are given in
        self.factor_dtype: torch.dtype = (
            getattr(torch, self._row.autocast) if self._row.autocast else self.parameter_dtype
        )
        self.rounding = rounding if precision == "tf32" and self.numerics == "emulated" else None
        self.skipped_steps = 0
        self.overflowed_gradients = 0  # elements that were not finite, in the last step
        self.products: dict[str, int] = {}  # operation -> how many were emulated
        self.unrounded: dict[str, int] = {}  # operation -> how many passed the emulation as they are
        self._forward = ForwardTensors()
        self.switches: Mapping[str, str | bool] = (
            switches.read_switches()
            if precision == OWN
            else switches.set_switches(tf32=precision == "tf32" and self.numerics == "native")
        )
        # FP16 gradients of FP16 parameters cannot be unscaled without losing them again: torch's scaler refuses them.
        self._scaler = torch.amp.GradScaler(self.device.type) if loss_scaling and precision == "amp_fp16" else None
        self._has_rnn = False
        self._unscaled: set[int] = set()  # the optimizers of this step whose gradients are unscaled already

    @functools.cached_property  # every step asks
    def replaces_products(self) -> bool:
        """Whether products are computed by others than torch's own, which compiled code would escape."""
        return self.numerics == "emulated" or self._row.scaled_products

    @property
    def has_convolutions(self) -> bool:
        """Whether convolutions can be computed: torch has none of 8-bit numbers."""
        return self.numerics == "emulated" or not self._row.scaled_products

    @property
    def loss_scaling(self) -> bool:
        """Whether the loss is scaled: only amp_fp16 does."""
        return self._scaler is not None

    def optimizer_eps(self, default: float = 1e-8) -> float:
        """Return Adam's eps: *default*, but 1e-4 for FP16 parameters.

        There 1e-8 rounds to zero, and steps could be infinite.
        """
        return max(default, 1e-4) if self.parameter_dtype is torch.float16 else default

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move *model* to the device and its parameters to their dtype; call it before DDP and the optimiser."""
        self._has_rnn = self._has_rnn or any(isinstance(part, torch.nn.RNNBase) for part in model.modules())
        return model.to(device=self.device, dtype=None if self.precision == OWN else self.parameter_dtype)

    def cast(self, x: torch.Tensor) -> torch.Tensor:
        """Return floating point *x* on the device in the parameters' dtype; anything else only moved."""
        is_cast = x.is_floating_point() and self.precision != OWN
        return x.to(device=self.device, dtype=self.parameter_dtype if is_cast else None)

    def context(self) -> contextlib.AbstractContextManager[None]:
        """Compute in this precision inside the block: the forward pass and the loss."""
        return self._mixed() if self._row.autocast else self._products(is_backward=False)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of *loss*, scaled where this precision scales; also several times before a step."""
        # Outside autocast: torch runs a backward pass in the dtypes that the forward pass chose.
        with self._products(is_backward=True):
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()  # type: ignore[no-untyped-call, unused-ignore]

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the gradients of *optimizer*'s parameters what they are without loss scaling; again changes nothing.

        Call it once all of a step's gradients are there, before they are looked at or changed.
        """
        if self._scaler is not None and id(optimizer) not in self._unscaled:
            self._scaler.unscale_(optimizer)
            self._unscaled.add(id(optimizer))

    def clip(self, optimizer: torch.optim.Optimizer, max_norm: float, *, norm_type: float = 2.0) -> torch.Tensor:
        """Clip the norm of all gradients of *optimizer* to *max_norm*; return what it was, inf or nan for an overflow.

        This is `torch.nn.utils.clip_grad_norm_` of the gradients as they are without loss scaling. Call it between
        `backward` and `step`.
        """
        self.unscale(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if self._scaler is None or not hasattr(torch.nn.utils, "get_total_norm"):  # torch has it since 2.6
            return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
        norm = _whole(torch.nn.utils.get_total_norm([p.grad for p in parameters], norm_type))
        # Divided by inf or nan, finite gradients would be counted as overflows too; the step is skipped anyhow.
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, torch.where(norm.isfinite(), norm, 0.0))
        return norm

    def step(
        self, *optimizers: torch.optim.Optimizer, schedulers: Sequence[torch.optim.lr_scheduler.LRScheduler] = ()
    ) -> bool:
        """Apply the gradients of all *optimizers* and clear them; return whether none was skipped.

        The scaler skips an optimizer whose gradients have overflowed. Those of *schedulers* whose optimizer was not
        skipped are stepped, so that a rate does not fall for a step that was not made. Several optimizers share one
        loss scale: step them in one call, after the gradients of all.
        """
        skipped = [] if self._scaler is None else self._scaled_steps(self._scaler, optimizers)
        if self._scaler is None:
            for optimizer in optimizers:
                optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        for scheduler in schedulers:
            if all(scheduler.optimizer is not one for one in skipped):
                scheduler.step()
        return not skipped

    def _scaled_steps(
        self, scaler: torch.amp.GradScaler, optimizers: Sequence[torch.optim.Optimizer]
    ) -> list[torch.optim.Optimizer]:
        """Step those of *optimizers* whose gradients are finite; return the others."""
        before = scaler.get_scale()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        self._unscaled.clear()
        counts = [(one, _count_overflows(one)) for one in optimizers] if scaler.get_scale() < before else []
        self.overflowed_gradients = sum(count for _, count in counts)
        self.skipped_steps += bool(counts)
        return [one for one, count in counts if count]

    def end_step(self) -> None:
        """Tell the end of a step, in a program that steps no optimizer of torch's: so its products are observed too."""
        if (seeing := observer.current()) is not None:
            seeing.end_step()

    def backward_and_step(self, loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> bool:
        """Train on *loss*: `backward`, then `step`."""
        self.backward(loss)
        return self.step(optimizer)

    def scaling(self) -> Mapping[str, float]:
        """Return the metrics of the loss scaling after a step; {} where no loss is scaled.

        ``loss_scale`` is that of the next step, ``skipped_steps`` how many were skipped so far,
        ``overflowed_gradients`` how many elements of the last step's gradients were infinite or nan: 0 unless it was
        skipped.
        """
        if self._scaler is None:
            return {}
        return {
            "loss_scale": self._scaler.get_scale(),
            "skipped_steps": float(self.skipped_steps),
            "overflowed_gradients": float(self.overflowed_gradients),
        }

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Compute in the block as before the first step: the training's counts do not know of it."""
        kept = self.products, self.unrounded, self._forward
        self.products, self.unrounded, self._forward = {}, {}, ForwardTensors()
        try:
            yield
        finally:
            self.products, self.unrounded, self._forward = kept

    def counted_products(self) -> dict[str, Any]:
        """Return how many products were rounded so far, by operation, and how many passed as they are."""
        return {**self.products, **({"not_rounded": dict(self.unrounded)} if self.unrounded else {})}

    def state_dict(self) -> dict[str, Any]:
        """Return the arithmetic's state for a checkpoint (loss scale, counters)."""
        return {
            "precision": self.precision,
            "skipped_steps": self.skipped_steps,
            "overflowed_gradients": self.overflowed_gradients,
            "products": dict(self.products),
            "unrounded": dict(self.unrounded),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state that `state_dict` returned; raises `ValueError` where it is of another precision."""
        if state["precision"] != self.precision or (state["scaler"] is None) != (self._scaler is None):
            raise ValueError(f"a checkpoint of precision={state['precision']} is no start for {self.precision}")
        self.skipped_steps = state["skipped_steps"]
        self.overflowed_gradients = state["overflowed_gradients"]
        self.products = dict(state["products"])
        self.unrounded = dict(state["unrounded"])
        if self._scaler is not None:
            self._scaler.load_state_dict(state["scaler"])

    @contextlib.contextmanager
    def evaluation(self, model: torch.nn.Module) -> Iterator[torch.nn.Module]:
        """Yield *model* in evaluation mode to be measured in real FP32, without gradients (fp64: in FP64).

        16-bit parameters are copied to FP32 first, which is exact: arms differ in how they trained, not in how they
        are examined. Give the module itself, not its DDP wrapper. ``own`` examines it as it trained.
        """
        examined = model
        if self.precision != OWN and any(parameter.dtype in _SIXTEEN_BITS for parameter in model.parameters()):
            examined = copy.deepcopy(model).float()
        was_training = model.training
        examined.eval()
        try:
            with torch.no_grad(), self._exactly():
                yield examined
        finally:
            model.train(was_training)

    @contextlib.contextmanager
    def _exactly(self) -> Iterator[None]:
        if self.precision == OWN:
            yield
            return
        with switches.ieee(), torch.autocast(self.device.type, enabled=False):
            yield

    @contextlib.contextmanager
    def _mixed(self) -> Iterator[None]:
        with self._autocast(), self._products(is_backward=False):  # what autocast asks of oneDNN is no product
            yield

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        dtype = self.factor_dtype
        with contextlib.ExitStack() as stack:
            if self.device.type == "cpu" and self._has_rnn and not _has_mkldnn(dtype):
                stack.enter_context(emulation.without_mkldnn())
            stack.enter_context(torch.autocast(self.device.type, dtype=dtype))
            yield

    def _products(self, *, is_backward: bool) -> contextlib.AbstractContextManager[None]:
        """Emulate the products of the block, or compute them in FP8, where the precision asks for one of these."""
        return self._replaced(is_backward=is_backward) if self.replaces_products else _NOTHING

    @contextlib.contextmanager
    def _replaced(self, *, is_backward: bool) -> Iterator[None]:
        name, of = str(self._row.emulation), emulation.Pass(self._forward, is_backward)
        self._forward.forget()
        how = {"has_rnn": self._has_rnn, "must_see": not is_backward}
        with (
            scaled_products(name, of=of, **how)
            if self.numerics == "native"
            else emulation.emulate(name, rounding=self.rounding, of=of, **how)
        ) as mode:
            yield
        for counts, of_block in ((self.products, mode.calls), (self.unrounded, mode.unrounded)):
            for operation, count in of_block.items():
                counts[operation] = counts.get(operation, 0) + count


def _has_mkldnn(dtype: torch.dtype) -> bool:
    """Tell whether oneDNN computes in *dtype* on this CPU.

    Without AVX-512 it does not; torch then takes kernels of its own, but under autocast its recurrent layers ask oneDNN
    all the same and raise (torch 2.13).
    """
    name = "_is_mkldnn_bf16_supported" if dtype is torch.bfloat16 else "_is_mkldnn_fp16_supported"
    asked = getattr(torch.ops.mkldnn, name, None)
    return asked is None or bool(asked())


def _count_overflows(optimizer: torch.optim.Optimizer) -> int:
    gradients = (p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
    return sum(int((~torch.isfinite(_whole(gradient))).sum()) for gradient in gradients)


def _whole(gradient: torch.Tensor) -> torch.Tensor:
    """Return the whole gradient, where *gradient* is a shard; all ranks must call it, since all skip the same steps."""
    gather = getattr(gradient, "full_tensor", None)
    return gradient if gather is None else cast("torch.Tensor", gather())


def _decide(precision: str, numerics: str, device: torch.device) -> str:
    """Return native or emulated: as planned, or for `auto` (a program started by hand) by the device."""
    row: Precision = PrecisionName[precision].value
    if numerics == "auto":
        numerics = "emulated" if device.type == "cpu" and row.emulation else "native"
    if numerics not in ("native", "emulated"):
        raise ValueError(f"numerics={numerics!r}: choose auto, native or emulated")
    if numerics == "emulated":
        if row.emulation is None:
            raise ValueError(f"numerics=emulated is refused: {precision} is native on every device")
        return numerics
    if (reason := _why_not_native(row, device)) is not None:
        raise ValueError(f"precision={precision} with numerics=native is refused: {reason}")
    return numerics


def _why_not_native(row: Precision, device: torch.device) -> str | None:
    return why_no_scaled_products(device) if row.scaled_products else row.why_not_on_gpu or None
