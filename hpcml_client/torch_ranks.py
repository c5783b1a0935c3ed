"""A torch model shared by the processes of a run, and what they tell each other besides gradients."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, ContextManager, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from hpcml_client.torch_arithmetic import Arithmetic
    from hpcml_client.torch_recipe import Batch, Recipe


class StepEnd(NamedTuple):
    """What all ranks know after a step."""

    loss: float  # the mean over all samples
    due: bool  # some rank finds a checkpoint due
    asked: bool  # some rank was asked to leave


class Team:
    """The processes that train one model together; one of its own is a team of one.

    What is said to be done by all ranks takes messages: each rank must call it, at the same point.
    """

    reorders_gradients = False  # after its first step, so that sums differ in the last bit

    def __init__(
        self, module: nn.Module, device: torch.device, *, world_size: int = 1, replicas: Optional[int] = None
    ) -> None:
        self.world_size = world_size
        self.replicas = world_size if replicas is None else replicas  # processes with samples of their own
        self.module = module
        self.model = module  # what to call in training
        self.devices: List[torch.device] = [device]  # of this process

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return what this process updates."""
        return self.module.parameters()

    def details(self) -> Mapping[str, object]:
        """Return what the event ``strategy`` says besides which it is; nothing: there is no such event."""
        return {}

    def metrics(self) -> Mapping[str, float]:
        """Return what the strategy adds to the metrics of the last step. Ask once the device has finished."""
        return {}

    def drawing(self, step: int) -> ContextManager[Any]:
        """Be around the fetching of the samples of *step*."""
        del step
        return contextlib.nullcontext()

    def part(self, *, is_last: bool) -> ContextManager[Any]:
        """Be around forward and backward pass of each part of a batch: gradients are exchanged after the last one."""
        del is_last
        return contextlib.nullcontext()

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

    def end_step(self, loss: torch.Tensor, *, due: bool, asked: bool) -> StepEnd:
        """Tell the others the *loss*, and what this rank knows of checkpoints.

        Signals reach the ranks at different moments. What they know goes along with the loss, so that all save, or
        leave, after the same step, and it takes no message of its own.
        """
        if self.world_size == 1:
            return StepEnd(float(loss), due, asked)
        shared = self.summed(torch.cat([loss.reshape(1), loss.new_tensor([due, asked])]))
        total, due_ranks, asked_ranks = shared.tolist()
        return StepEnd(total / self.replicas, due_ranks > 0, asked_ranks > 0)

    def everywhere(self, saved: bool) -> bool:  # noqa: FBT001 - what it is about
        """Tell whether all ranks could save: where the disk of the first is full, nobody leaves."""
        if self.world_size == 1:
            return saved
        failures = self.summed(torch.tensor([0 if saved else 1], device=self.devices[0]))
        return int(failures) == 0

    def summed(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the sums of *numbers* over all ranks; by all ranks."""
        distributed.all_reduce(numbers)
        return numbers

    @contextlib.contextmanager
    def whole(self) -> Iterator[Optional[nn.Module]]:
        """Yield the whole model on the first rank, to be examined; by all ranks."""
        yield self.module

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Return the whole model's state on the first rank; by all ranks."""
        return self.module.state_dict()

    def state(self, optimizer: torch.optim.Optimizer) -> Dict[str, Any]:
        """Return on the first rank all that a checkpoint must hold of model, *optimizer* and chance; by all ranks."""
        return {"model": self.weights(), "optimizer": optimizer.state_dict(), **random_state(self.devices)}

    def restore(self, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
        """Take up what `state` returned; by all ranks, which have read the same."""
        self.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        set_random_state(state, self.devices)


class DataParallel(Team):
    """Every process has the whole model and a share of each batch; gradients are averaged while they are computed."""

    reorders_gradients = True

    def __init__(
        self, module: nn.Module, device: torch.device, *, world_size: int, bucket_cap_mb: Optional[float] = None
    ) -> None:
        super().__init__(module, device, world_size=world_size)
        # an argument of its own only where something is set: torch's default of the first bucket is smaller
        bucket: Dict[str, Any] = {} if bucket_cap_mb is None else {"bucket_cap_mb": bucket_cap_mb}
        self._bucket_cap_mb = bucket_cap_mb
        self._parallel = DistributedDataParallel(
            module, device_ids=[device] if device.type == "cuda" else None, **bucket
        )
        self._waiting = _Waiting(module, device)
        self.model = self._parallel

    def details(self) -> Mapping[str, object]:
        """Return how it talks."""
        return {"backend": distributed.get_backend(), "bucket_cap_mb": self._bucket_cap_mb}

    def part(self, *, is_last: bool) -> ContextManager[Any]:
        """Exchange gradients after the last part only."""
        return self._waiting.watched() if is_last else self._parallel.no_sync()

    def metrics(self) -> Mapping[str, float]:
        """Return the metric ``communication_time_s`` of the last step, where it was seen.

        From the moment that all gradients of this rank are computed until those of all ranks are averaged: what
        communication adds to the step. What was sent meanwhile is not in it; waiting for slower ranks is.
        """
        seconds = self._waiting.seconds()
        return {} if seconds is None else {"communication_time_s": seconds}


def random_state(devices: Sequence[torch.device]) -> Dict[str, Any]:
    """Return the state of torch's random numbers."""
    state: Dict[str, Any] = {"random": torch.get_rng_state()}
    if devices[0].type == "cuda":
        states = [torch.cuda.get_rng_state(device) for device in devices]
        state["random_cuda"] = states[0] if len(states) == 1 else states
    return state


def set_random_state(state: Mapping[str, Any], devices: Sequence[torch.device]) -> None:
    """Take up what `random_state` returned."""
    torch.set_rng_state(state["random"])
    if devices[0].type == "cuda":
        states = [state["random_cuda"]] if len(devices) == 1 else state["random_cuda"]
        for saved, device in zip(states, devices):  # noqa: B905 - not in Python 3.8
            torch.cuda.set_rng_state(saved, device)


class _Waiting:
    """Notes when this rank has computed its last gradient, and when those of all ranks are there.

    On a GPU both are events in the stream that computes, which at the end waits for the one that communicates. Nothing
    is synchronised for it, and DDP is left as it is: backward pass and communication overlap as they would without. (A
    communication hook would see the same, but would have to do DDP's own part in Python.)
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self._learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._hooks: Dict[torch.Tensor, Any] = {}
        self._last: Optional[torch.Tensor] = None  # the parameter whose gradient came last
        self._began: Any = None
        self._ended: Any = None
        self._listen()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch one backward pass; DDP lets it end when the gradients of all ranks are there."""
        self._began = None
        yield
        self._ended = self._now()
        if self._began is None:  # another graph than in the step before, without the parameter that was last
            self._listen()
        elif len(self._hooks) > 1:  # the first step: from now on only the last one calls us
            for parameter, hook in self._hooks.items():
                if parameter is not self._last:
                    hook.remove()
            self._hooks = {parameter: hook for parameter, hook in self._hooks.items() if parameter is self._last}

    def seconds(self) -> Optional[float]:
        """Return the time between the two, or None where it was missed."""
        if self._began is None:
            return None
        if self._device.type == "cuda":
            return float(self._began.elapsed_time(self._ended)) / 1000
        return float(self._ended - self._began)

    def _listen(self) -> None:
        for parameter in self._learned:
            if parameter not in self._hooks:
                self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call, unused-ignore]
                    self._has_gradient
                )

    def _has_gradient(self, parameter: torch.Tensor) -> None:
        self._last = parameter
        self._began = self._now()

    def _now(self) -> Any:  # noqa: ANN401 - a moment of the device
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]
        event.record(torch.cuda.current_stream(self._device))
        return event
