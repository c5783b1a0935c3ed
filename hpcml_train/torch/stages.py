"""A model cut into stages that follow each other: which layers each has, on which device, and how long they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hpcml_train.errors import RecipeError
from hpcml_train.torch.team import Stopwatch, Team

Stage = list[nn.Module]


def cut(model: nn.Module, layers: Sequence[nn.Module], count: int, strategy: str) -> list[Stage]:
    """Return *count* stages of the *layers* of *model*, in their order; the largest is as small as can be.

    Sizes are numbers of parameters. Raises `RecipeError` where *layers* are not the whole model, or too few.
    """
    if not layers:
        raise RecipeError(f"strategy={strategy}: this model is not made of layers that follow each other")
    learned = {id(parameter) for layer in layers for parameter in layer.parameters()}
    if learned != {id(parameter) for parameter in model.parameters()}:
        raise RecipeError(f"strategy={strategy}: some parameters of this model belong to no layer")
    if len({id(layer) for layer in layers}) < len(layers):
        raise RecipeError(f"strategy={strategy}: a layer of this model comes twice")
    units = _units(layers)
    if len(units) < count:
        raise RecipeError(f"strategy={strategy}: this model has {len(units)} layers that learn, too few for {count}")
    sizes = [parameters(unit) for unit in units]
    bounds = _split(sizes, count)
    return [[layer for unit in units[begin:end] for layer in unit] for begin, end in bounds]


def parameters(stage: Stage) -> int:
    """Return how many numbers *stage* learns."""
    return sum(parameter.numel() for parameter in nn.ModuleList(stage).parameters())


def shared(stages: Sequence[Stage]) -> dict[nn.Parameter, list[int]]:
    """Return the parameters that several *stages* use, and the numbers of these stages."""
    users: dict[nn.Parameter, list[int]] = {}
    for number, stage in enumerate(stages):
        for parameter in nn.ModuleList(stage).parameters():
            users.setdefault(parameter, []).append(number)
    return {parameter: numbers for parameter, numbers in users.items() if len(numbers) > 1}


def _units(layers: Sequence[nn.Module]) -> list[Stage]:
    """Return *layers* in groups of which each learns something: what learns nothing goes with what is before it."""
    units: list[Stage] = []
    begun: Stage = []  # before the first layer that learns
    for layer in layers:
        learns = any(True for _ in layer.parameters())
        if learns:
            units.append([*begun, layer])
            begun = []
        else:
            (units[-1] if units else begun).append(layer)
    return units


def _split(sizes: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Return *count* ranges of *sizes* that follow each other, none empty, whose largest sum is the smallest."""
    best: dict[tuple[int, int], tuple[int, int]] = {(0, 0): (0, 0)}  # (ranges, end) -> (largest sum, begin of the last)
    for ranges in range(1, count + 1):
        for end in range(ranges, len(sizes) + 1):
            known = [begin for begin in range(ranges - 1, end) if (ranges - 1, begin) in best]
            best[ranges, end] = min((max(best[ranges - 1, b][0], sum(sizes[b:end])), b) for b in known)
    bounds = []
    end = len(sizes)
    for ranges in range(count, 0, -1):
        begin = best[ranges, end][1]
        bounds.append((begin, end))
        end = begin
    return bounds[::-1]


class ModelParallel(Team):
    """One process whose model lies on several devices, stage after stage: while one computes, the others wait."""

    def __init__(self, model: nn.Module, stages: Sequence[Stage], devices: Sequence[torch.device]) -> None:
        super().__init__(model, devices[0])
        self._stages = stages
        self.devices = list(devices)
        self._clocks = [_StageClock(device) for device in devices]
        # The last first: what stages share lies where it is used first, and the others fetch it.
        for stage, device, clock in reversed(list(zip(stages, devices, self._clocks, strict=True))):
            for layer in stage:
                layer.to(device)
            _put_in_front(stage[0], device, clock)
            stage[-1].register_forward_hook(clock.ended)
        _bring_back(stages[-1][-1], devices[0])

    def metrics(self) -> Mapping[str, float]:
        """Return the seconds of each stage's forward pass in the last step."""
        return {f"stage{number}_forward_s": clock.take_s() for number, clock in enumerate(self._clocks)}

    def details(self) -> Mapping[str, object]:
        """Return where each stage lies, and how large it is."""
        return {
            "stages": [
                {"device": str(device), "parameters": parameters(stage)}
                for stage, device in zip(self._stages, self.devices, strict=True)
            ]
        }


class _StageClock:
    """Times the forward passes of a stage in training."""

    def __init__(self, device: torch.device) -> None:
        self._watch = Stopwatch(device)
        self._spans: list[tuple[Any, Any]] = []
        self._began: Any = None

    def begin(self) -> None:
        self._began = self._watch.now()

    def ended(self, module: nn.Module, *_: object) -> None:
        if module.training:
            self._spans.append((self._began, self._watch.now()))

    def take_s(self) -> float:
        """Return the seconds since it was asked last; ask once the device has finished."""
        spans, self._spans = self._spans, []
        return sum(self._watch.seconds(began, ended) for began, ended in spans)


def _put_in_front(layer: nn.Module, device: torch.device, clock: _StageClock) -> None:
    def arrive(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        moved = tuple(move(arg, device) for arg in args)
        if module.training:
            clock.begin()
        return moved

    layer.register_forward_pre_hook(arrive)


def _bring_back(layer: nn.Module, device: torch.device) -> None:
    layer.register_forward_hook(lambda _module, _args, output: move(output, device))


def move(value: Any, device: torch.device) -> Any:  # noqa: ANN401 - tensors, alone or in tuples and lists
    """Return *value* with its tensors on *device*."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, (tuple, list)):
        return type(value)(move(part, device) for part in value)
    return value
