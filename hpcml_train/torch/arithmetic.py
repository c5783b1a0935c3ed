"""The arithmetic of one torch training: dtypes, autocast, loss scaling and emulation behind one interface.

arithmetic = run.apply_precision()
model = arithmetic.prepare(model)
optimizer = torch.optim.Adam(model.parameters(), eps=arithmetic.optimizer_eps())
with arithmetic.context():
    loss = criterion(model(x), y)
arithmetic.backward_and_step(loss, optimizer)
with arithmetic.evaluation(model) as exact:
    accuracy = measure(exact)
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any, ContextManager, Dict, Iterator, Mapping, Optional, cast

import torch

from hpcml_train.errors import NoGpuError
from hpcml_train.torch import emulation, switches

_PARAMETERS = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}  # float32 for all others
_AUTOCAST = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}
_EMULATED = {
    "tf32": "tf32",
    "amp_fp16": emulation.HALF,
    "fp16": emulation.HALF,
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
}
_PLAIN = ("fp32", "fp64", "amp_bf16", "bf16")  # native on every device
_SIXTEEN_BITS = (torch.float16, torch.bfloat16)


def choose_device(kind: Optional[str], local_rank: int) -> torch.device:
    """Return the planned device (*kind* cpu or cuda) of this process; without a plan a GPU if there is one."""
    if kind == "cuda" or (kind is None and torch.cuda.is_available()):
        if not torch.cuda.is_available():
            raise NoGpuError("torch", torch.__version__)
        # a scheduler may bind one GPU to each process, which then is number 0 for everyone
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device("cpu")


class Arithmetic:
    """A precision in torch. Creating one sets torch's switches, explicitly for every precision."""

    def __init__(
        self,
        precision: str,
        *,
        numerics: str = "auto",
        device: Optional[torch.device] = None,
        rounding: str = "rna",
        loss_scaling: bool = True,
    ) -> None:
        if precision not in _EMULATED and precision not in _PLAIN:
            raise ValueError(f"precision={precision!r}: choose one of {', '.join([*_PLAIN, *_EMULATED])}")
        self.precision = precision
        self.device = device or torch.device("cpu")
        self.numerics = _decide(precision, numerics, self.device)
        self.parameter_dtype: torch.dtype = _PARAMETERS.get(precision, torch.float32)
        self.rounding = rounding if precision == "tf32" and self.numerics == "emulated" else None
        self.skipped_steps = 0
        self.overflowed_gradients = 0  # elements that were not finite, in the last step
        self.products: Dict[str, int] = {}  # operation -> how many were emulated
        self.switches = switches.set_switches(tf32=precision == "tf32" and self.numerics == "native")
        # FP16 gradients of FP16 parameters cannot be unscaled without losing them again: torch's scaler refuses them.
        self._scaler = torch.amp.GradScaler(self.device.type) if loss_scaling and precision == "amp_fp16" else None
        self._has_rnn = False

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
        return model.to(device=self.device, dtype=self.parameter_dtype)

    def cast(self, x: torch.Tensor) -> torch.Tensor:
        """Return floating point *x* on the device in the parameters' dtype; anything else only moved."""
        return x.to(device=self.device, dtype=self.parameter_dtype if x.is_floating_point() else None)

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """Compute in this precision inside the block: the forward pass and the loss."""
        with self._emulation(must_see=True), self._autocast():
            yield

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of *loss*, scaled where this precision scales; also several times before a step."""
        # Outside autocast: torch runs a backward pass in the dtypes that the forward pass chose.
        with self._emulation(must_see=False):
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()  # type: ignore[no-untyped-call, unused-ignore]

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Apply the gradients and clear them; return False where the scaler skipped, because they had overflowed."""
        done = True
        if self._scaler is None:
            optimizer.step()
        else:
            before = self._scaler.get_scale()
            self._scaler.step(optimizer)
            self._scaler.update()
            done = self._scaler.get_scale() >= before
            self.skipped_steps += not done
            self.overflowed_gradients = 0 if done else _count_overflows(optimizer)
        optimizer.zero_grad(set_to_none=True)
        return done

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

    def state_dict(self) -> Dict[str, Any]:
        """Return the arithmetic's state for a checkpoint (loss scale, counters)."""
        return {
            "precision": self.precision,
            "skipped_steps": self.skipped_steps,
            "overflowed_gradients": self.overflowed_gradients,
            "products": dict(self.products),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state that `state_dict` returned; raises `ValueError` where it is of another precision."""
        if state["precision"] != self.precision or (state["scaler"] is None) != (self._scaler is None):
            raise ValueError(f"a checkpoint of precision={state['precision']} is no start for {self.precision}")
        self.skipped_steps = state["skipped_steps"]
        self.overflowed_gradients = state.get("overflowed_gradients", 0)  # older checkpoints have none
        self.products = dict(state["products"])
        if self._scaler is not None:
            self._scaler.load_state_dict(state["scaler"])

    @contextlib.contextmanager
    def evaluation(self, model: torch.nn.Module) -> Iterator[torch.nn.Module]:
        """Yield *model* in evaluation mode to be measured in real FP32, without gradients (fp64: in FP64).

        16-bit parameters are copied to FP32 first, which is exact: arms differ in how they trained, not in how they
        are examined. Give the module itself, not its DDP wrapper.
        """
        examined = model
        if any(parameter.dtype in _SIXTEEN_BITS for parameter in model.parameters()):
            examined = copy.deepcopy(model).float()
        was_training = model.training
        examined.eval()
        try:
            with torch.no_grad(), switches.ieee(), torch.autocast(self.device.type, enabled=False):
                yield examined
        finally:
            model.train(was_training)

    def _autocast(self) -> ContextManager[Any]:
        dtype = _AUTOCAST.get(self.precision)
        return contextlib.nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)

    @contextlib.contextmanager
    def _emulation(self, *, must_see: bool) -> Iterator[None]:
        if self.numerics != "emulated":
            yield
            return
        name = _EMULATED[self.precision]
        with emulation.emulate(name, rounding=self.rounding, has_rnn=self._has_rnn, must_see=must_see) as emulated:
            yield
        for operation, count in emulated.calls.items():
            self.products[operation] = self.products.get(operation, 0) + count


def _count_overflows(optimizer: torch.optim.Optimizer) -> int:
    gradients = (p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
    return sum(int((~torch.isfinite(_whole(gradient))).sum()) for gradient in gradients)


def _whole(gradient: torch.Tensor) -> torch.Tensor:
    """Return the whole gradient, where *gradient* is a shard; all ranks must call it, since all skip the same steps."""
    gather = getattr(gradient, "full_tensor", None)
    return gradient if gather is None else cast("torch.Tensor", gather())


def _decide(precision: str, numerics: str, device: torch.device) -> str:
    """Return native or emulated: as planned, or for `auto` (a program started by hand) by the device."""
    if numerics == "auto":
        numerics = "emulated" if device.type == "cpu" and precision in _EMULATED else "native"
    if numerics not in ("native", "emulated"):
        raise ValueError(f"numerics={numerics!r}: choose auto, native or emulated")
    if numerics == "emulated" and precision not in _EMULATED:
        raise ValueError(f"numerics=emulated is refused: {precision} is native on every device")
    if numerics == "native" and precision.startswith("fp8"):
        raise ValueError(f"precision={precision} with numerics=native is refused: there is no native FP8 here yet")
    return numerics
