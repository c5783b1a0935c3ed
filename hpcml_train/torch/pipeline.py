"""A model cut into stages, one on each rank, through which the parts of a batch follow each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.func import functional_call

from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.recipe import Batch, Recipe
from hpcml_train.torch.stages import cut, parameters, shared
from hpcml_train.torch.team import Team, Twin, random_state, set_random_state

_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_SEEDS_APART = 1_000_003  # steps of one seed do not meet those of the next


def bubble_fraction(stages: int, microbatches: int) -> float:
    """Return the share of a step in which a rank has nothing to do, if all stages take equally long.

    GPipe (arXiv 1811.06965) and 1F1B (arXiv 2104.04473) have the same: the latter keeps fewer activations.
    """
    return (stages - 1) / (microbatches + stages - 1)


class Pipeline(Team):
    """Rank n trains the n-th stage of the model; all work on the same samples.

    The first rank examines the model, and so must have room for all of it then.
    """

    def __init__(self, recipe: Recipe, task: Task, arithmetic: Arithmetic, *, rank: int, world_size: int) -> None:
        if task.schedule == "1f1b" and task.microbatches < world_size:
            raise RecipeError(
                f"strategy.microbatches={task.microbatches}: strategy.schedule=1f1b needs one for each of "
                f"{world_size} stages, or more"
            )
        stages = cut(recipe.model, recipe.layers(recipe.model), world_size, task.strategy)
        self._recipe, self._task, self._arithmetic, self._rank = recipe, task, arithmetic, rank
        self._sizes = [parameters(stage) for stage in stages]
        self._twin = Twin(recipe.model, arithmetic, rank=rank)
        mine = nn.Sequential(*stages[rank])
        arithmetic.prepare(mine)
        self._names = _names(recipe.model, stages[rank])
        groups = [(parameter, ranks, distributed.new_group(ranks)) for parameter, ranks in shared(stages).items()]
        self._shared = [(parameter, group) for parameter, ranks, group in groups if rank in ranks]
        self._parts: Sequence[Batch] = []
        stage = PipelineStage(_InPrecision(mine, arithmetic), rank, world_size, arithmetic.device)
        self._schedule = _SCHEDULES[task.schedule](stage, task.microbatches, loss_fn=self._loss)
        self._is_last = rank == world_size - 1
        super().__init__(mine, arithmetic.device, world_size=world_size, replicas=1)

    def details(self) -> Mapping[str, object]:
        """Return how the work is divided."""
        task = self._task
        return {
            "backend": distributed.get_backend(),
            "schedule": task.schedule,
            "microbatches": task.microbatches,
            "stages": [{"parameters": size} for size in self._sizes],
            "bubble_fraction": bubble_fraction(self.world_size, task.microbatches),
        }

    @contextlib.contextmanager
    def drawing(self, step: int) -> Iterator[None]:
        """Let all ranks draw the same at random: the first needs the inputs of a batch, the last its labels."""
        on_gpu = self._arithmetic.device.type == "cuda"
        with torch.random.fork_rng(devices=[self._arithmetic.device] if on_gpu else []):
            torch.manual_seed(self._task.seed * _SEEDS_APART + step)
            yield

    def learn(self, recipe: Recipe, arithmetic: Arithmetic, parts: Sequence[Batch]) -> torch.Tensor:
        """Send the *parts* through the stages and their gradients back; the loss is known to the last rank only."""
        loss = self._send(recipe, arithmetic, parts)
        for parameter, group in self._shared:  # each has the gradient of its own stage
            distributed.all_reduce(parameter.grad, group=group)
        return loss

    def _send(self, recipe: Recipe, arithmetic: Arithmetic, parts: Sequence[Batch]) -> torch.Tensor:
        dtype = torch.float64 if arithmetic.parameter_dtype is torch.float64 else torch.float32
        if self._rank == 0:
            self._schedule.step(torch.cat([recipe.inputs(part) for part in parts]))
        elif not self._is_last:
            self._schedule.step()
        else:
            self._parts = parts
            losses: list[torch.Tensor] = []
            self._schedule.step(target=torch.arange(len(parts)), losses=losses)
            return torch.stack([loss.detach() for loss in losses]).mean().to(dtype)
        return torch.zeros((), dtype=dtype, device=arithmetic.device)

    @contextlib.contextmanager
    def whole(self) -> Iterator[nn.Module | None]:
        """Put all stages together on the first rank."""
        with self._twin.holding(self.weights()) as model:
            yield model

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Gather the weights of all stages."""
        found: dict[str, torch.Tensor] = {}
        for weights in self._gather(self._own_weights()):
            found.update(weights)
        return found

    def state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Gather what each rank remembers, one after the other."""
        own = {"optimizer": optimizer.state_dict(), **random_state(self.devices)}
        return {"model": self.weights(), "ranks": self._gather(own)}

    def restore(self, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
        """Take this rank's stage out of what was saved."""
        if len(state["ranks"]) != self.world_size:
            raise ValueError(f"a checkpoint of {len(state['ranks'])} stages is no start for {self.world_size}")
        self.module.load_state_dict({inside: state["model"][name] for inside, name in self._names.items()})
        own = state["ranks"][self._rank]
        optimizer.load_state_dict(own["optimizer"])
        set_random_state(own, self.devices)

    def _own_weights(self) -> dict[str, torch.Tensor]:
        return {self._names[inside]: tensor.cpu() for inside, tensor in self.module.state_dict().items()}

    def _gather(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what all ranks have, on the first; nothing on others."""
        found: list[Any] = [None] * self.world_size
        distributed.gather_object(own, found if self._rank == 0 else None)
        return found if self._rank == 0 else []

    def _loss(self, output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        with self._arithmetic.context():
            return self._recipe.loss(_Answer(output), self._parts[int(number)])


class _InPrecision(nn.Module):
    """A stage that computes in the precision of the run; its backward pass follows in the same dtypes.

    Torch calls it once in advance, with whatever lies in memory, to learn the shapes: BatchNorm must not remember that.
    """

    def __init__(self, stage: nn.Module, arithmetic: Arithmetic) -> None:
        super().__init__()
        self.stage = stage
        self._arithmetic = arithmetic
        self._is_rehearsed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            x.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call, unused-ignore]
        with self._arithmetic.context():
            output: torch.Tensor = self.stage(x) if self._is_rehearsed else self._rehearse(x)
        return output.contiguous()  # gloo sends nothing else

    def _rehearse(self, x: torch.Tensor) -> torch.Tensor:
        self._is_rehearsed = True
        buffers = {name: buffer.clone() for name, buffer in self.stage.named_buffers()}
        output: torch.Tensor = functional_call(self.stage, buffers, (x,))
        return output


class _Answer(nn.Module):
    """Stands for the model where its output is known already, whatever it is asked."""

    def __init__(self, output: torch.Tensor) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_: object, **__: object) -> torch.Tensor:
        return self._output


def _names(model: nn.Module, stage: Sequence[nn.Module]) -> dict[str, str]:
    """Return the name in *model* of each tensor of *stage*, by its name in a Sequential of the stage's layers."""
    prefixes = {id(module): name for name, module in model.named_modules()}
    return {
        f"{number}.{name}": f"{prefixes[id(layer)]}.{name}"
        for number, layer in enumerate(stage)
        for name in layer.state_dict()
    }
