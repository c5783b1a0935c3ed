"""The processes that train one torch model together, and the messages between them besides gradients."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.recipe import Batch, Recipe

_NOTHING = contextlib.nullcontext()  # one for all steps


class Told(NamedTuple):
    """What all ranks know of a step after they exchanged it."""

    loss: float  # the mean over all samples
    due: bool  # some rank finds a checkpoint due
    asked: bool  # some rank was asked to leave


class Team:
    """The processes that train one model; the base class is a single process.

    "By all ranks": the method exchanges messages, and each rank must call it at the same point.
    """

    reorders_gradients = False  # after its first step, so that sums differ in the last bit

    def __init__(
        self, module: nn.Module, device: torch.device, *, world_size: int = 1, replicas: int | None = None
    ) -> None:
        self.world_size = world_size
        self.replicas = world_size if replicas is None else replicas  # processes with samples of their own
        self.module = module
        self.model = module  # what to call in training
        self.devices: list[torch.device] = [device]  # of this process

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters that this process updates."""
        return self.module.parameters()

    def details(self) -> Mapping[str, object]:
        """Return the details of the event ``strategy``; {} for no such event."""
        return {}

    def metrics(self) -> Mapping[str, float]:
        """Return the strategy's metrics of the last step; call it once the device has finished."""
        return {}

    def drawing(self, step: int) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager around fetching the samples of *step*."""
        del step
        return _NOTHING

    def part(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager around forward and backward pass of a part of a batch.

        Gradients are exchanged after the last part.
        """
        del is_last
        return _NOTHING

    def learn(self, recipe: Recipe, arithmetic: Arithmetic, parts: Sequence[Batch]) -> torch.Tensor:
        """Compute the gradients of one step; return the mean loss of this process's samples."""
        losses = []
        for number, batch in enumerate(parts, start=1):
            with self.part(is_last=number == len(parts)):
                with arithmetic.context():
                    loss = recipe.loss(self.model, batch)
                losses.append(loss.detach())
                arithmetic.backward(loss if len(parts) == 1 else loss / len(parts))
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean()

    def end_step(self, loss: torch.Tensor, *, due: bool, asked: bool) -> Told:
        """Tell the others the *loss*, and what this rank knows of checkpoints.

        Signals reach the ranks at different moments. What they know goes along with the loss, so that all save, or
        leave, after the same step, and it takes no message of its own.
        """
        if self.world_size == 1:
            return Told(float(loss), due, asked)
        shared = self.summed(torch.cat([loss.reshape(1), loss.new_tensor([due, asked])]))
        total, due_ranks, asked_ranks = shared.tolist()
        return Told(total / self.replicas, due_ranks > 0, asked_ranks > 0)

    def everywhere(self, saved: bool) -> bool:  # noqa: FBT001 - what it is about
        """Return whether all ranks *saved*; where the disk of the first is full, no rank leaves."""
        if self.world_size == 1:
            return saved
        failures = self.summed(torch.tensor([0 if saved else 1], device=self.devices[0]))
        return int(failures) == 0

    def summed(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the sums of *numbers* over all ranks; by all ranks."""
        distributed.all_reduce(numbers)
        return numbers

    @contextlib.contextmanager
    def whole(self) -> Iterator[nn.Module | None]:
        """Yield the whole model on the first rank, for evaluation, None on others; by all ranks."""
        yield self.module

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Return the whole model's weights on the first rank; by all ranks."""
        return self.module.state_dict()

    def state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return on the first rank the state of model, *optimizer* and random numbers for a checkpoint.

        By all ranks.
        """
        return {"model": self.weights(), "optimizer": optimizer.state_dict(), **random_state(self.devices)}

    def restore(self, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
        """Load what `state` returned; by all ranks, each of which has read the same checkpoint."""
        self.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        set_random_state(state, self.devices)


class DataParallel(Team):
    """Torch's DDP: each process has the whole model and a share of each batch; gradients are averaged meanwhile."""

    reorders_gradients = True

    def __init__(
        self, module: nn.Module, device: torch.device, *, world_size: int, bucket_cap_mb: float | None = None
    ) -> None:
        super().__init__(module, device, world_size=world_size)
        # an argument of its own only where something is set: torch's default of the first bucket is smaller
        bucket: dict[str, Any] = {} if bucket_cap_mb is None else {"bucket_cap_mb": bucket_cap_mb}
        self._bucket_cap_mb = bucket_cap_mb
        self._parallel = DistributedDataParallel(
            module, device_ids=[device] if device.type == "cuda" else None, **bucket
        )
        self._waiting = _Waiting(module, device)
        self.model = self._parallel

    def details(self) -> Mapping[str, object]:
        """Return the backend of the communication."""
        return {"backend": distributed.get_backend(), "bucket_cap_mb": self._bucket_cap_mb}

    def part(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """Exchange gradients after the last part only."""
        return self._waiting.watched() if is_last else self._parallel.no_sync()

    def metrics(self) -> Mapping[str, float]:
        """Return the metric ``communication_time_s`` of the last step, where it was seen.

        From the moment that all gradients of this rank are computed until those of all ranks are averaged: what
        communication adds to the step. What was sent meanwhile is not in it; waiting for slower ranks is.
        """
        seconds = self._waiting.seconds()
        return {} if seconds is None else {"communication_time_s": seconds}


class Twin:
    """A copy of *model* in the host memory of the first rank; the others have none."""

    def __init__(self, model: nn.Module, arithmetic: Arithmetic, *, rank: int) -> None:
        self._model: nn.Module | None = copy.deepcopy(model).cpu() if rank == 0 else None
        self._arithmetic = arithmetic

    @contextlib.contextmanager
    def holding(self, weights: Mapping[str, torch.Tensor]) -> Iterator[nn.Module | None]:
        """Give the first rank its copy with these *weights*, on the device meanwhile; the others get None."""
        if self._model is None:
            yield None
            return
        self._model.load_state_dict(weights)
        yield self._arithmetic.prepare(self._model)
        self._model.cpu()


def random_state(devices: Sequence[torch.device]) -> dict[str, Any]:
    """Return the state of torch's random numbers."""
    state: dict[str, Any] = {"random": torch.get_rng_state()}
    if devices[0].type == "cuda":
        states = [torch.cuda.get_rng_state(device) for device in devices]
        state["random_cuda"] = states[0] if len(states) == 1 else states
    return state


def set_random_state(state: Mapping[str, Any], devices: Sequence[torch.device]) -> None:
    """Set the state that `random_state` returned."""
    torch.set_rng_state(state["random"])
    if devices[0].type == "cuda":
        states = [state["random_cuda"]] if len(devices) == 1 else state["random_cuda"]
        for saved, device in zip(states, devices, strict=True):
            torch.cuda.set_rng_state(saved, device)


class Stopwatch:
    """Moments of a device; on a GPU they are events in the stream that computes, so that nothing waits for them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> Any:  # noqa: ANN401 - a moment of the device
        """Return the moment at which the device has done all that it was given so far."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, began: Any, ended: Any) -> float:  # noqa: ANN401 - two moments
        """Return the seconds between two moments; ask once the device has finished."""
        return float(began.elapsed_time(ended)) / 1000 if self._device.type == "cuda" else float(ended - began)


class _Waiting:
    """Notes when this rank has computed its last gradient, and when those of all ranks are there.

    On a GPU both are events in the stream that computes, which at the end waits for the one that communicates. Nothing
    is synchronised for it, and DDP is left as it is: backward pass and communication overlap as they would without. (A
    communication hook would see the same, but would have to do DDP's own part in Python.)
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._watch = Stopwatch(device)
        self._learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._hooks: dict[torch.Tensor, Any] = {}
        self._last: torch.Tensor | None = None  # the parameter whose gradient came last
        self._began: Any = None
        self._ended: Any = None
        self._listen()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch one backward pass; DDP lets it end when the gradients of all ranks are there."""
        self._began = None
        yield
        self._ended = self._watch.now()
        if self._began is None:  # another graph than in the step before, without the parameter that was last
            self._listen()
        elif len(self._hooks) > 1:  # the first step: from now on only the last one calls us
            for parameter, hook in self._hooks.items():
                if parameter is not self._last:
                    hook.remove()
            self._hooks = {parameter: hook for parameter, hook in self._hooks.items() if parameter is self._last}

    def seconds(self) -> float | None:
        """Return the time between the two, or None where it was missed."""
        if self._began is None:
            return None
        return self._watch.seconds(self._began, self._ended)

    def _listen(self) -> None:
        for parameter in self._learned:
            if parameter not in self._hooks:
                self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call, unused-ignore]
                    self._has_gradient
                )

    def _has_gradient(self, parameter: torch.Tensor) -> None:
        self._last = parameter
        self._began = self._watch.now()
