"""Training with torch: reproducible, in any precision, in one process or several, resumable from checkpoints."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import nn

from hpcml_client.checkpoints import Checkpoints, Saved
from hpcml_client.client import Client
from hpcml_train import loop
from hpcml_train.errors import RecipeError, TrainingFailed, cannot_go_on, out_of_memory
from hpcml_train.loop import StepClock, StepEnd, Work
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.flops import count_step
from hpcml_train.torch.profiling import StepWindow
from hpcml_train.torch.recipe import Batch, Recipe
from hpcml_train.torch.strategies import STRATEGIES, devices_of, prepare, refuse_impossible, share
from hpcml_train.torch.team import Team

_MIB = 1 << 20
_NO_HOST_MEMORY = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")
# gloo's words where a connection broke, NCCL's (ncclRemoteError) and Horovod's
_GONE = (
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited"),
    "Horovod has been shut down",
)
_COMPILERS = ("torch._dynamo", "torch._inductor")


def train(run: Client, task: Task, checkpoints: Checkpoints, make: Callable[[Task, Arithmetic], Recipe]) -> bool:
    """Train as *task* says and report to *run*; return False where a signal asked it to leave at a checkpoint.

    *make* builds the recipe. The last step is always evaluated. Raises `RecipeError` where the request cannot be met,
    `TrainingFailed` where the loss stays nan or infinite, or the memory is exhausted.
    """
    task.choose("strategy", STRATEGIES)
    part_size = task.part_size(run.world_size)
    _make_reproducible(task)
    arithmetic = run.apply_precision("torch")
    if task.compile and arithmetic.replaces_products:
        what = "emulation" if arithmetic.numerics == "emulated" else "scaled products"
        raise RecipeError(
            f"training.compile=true: compiled code escapes the {what} of {arithmetic.precision}: set it to false"
        )
    refuse_impossible(task, arithmetic)
    with said_in_one_line():
        recipe = make(task, arithmetic)
        prepare(recipe.model, task, arithmetic)
        return loop.train(TorchTraining(run, task, checkpoints, recipe, arithmetic, part_size))


class TorchTraining(loop.Training):
    """A model of torch, trained by a team of processes and devices; each works on *part_size* samples at once."""

    flops_method = "meta"

    def __init__(
        self,
        run: Client,
        task: Task,
        checkpoints: Checkpoints,
        recipe: Recipe,
        arithmetic: Arithmetic,
        part_size: int,
    ) -> None:
        super().__init__(run, task, checkpoints)
        self._recipe = recipe
        self._arithmetic = arithmetic
        self._part_size = part_size
        self._memories: list[PeakMemory] = []
        self._team: Team  # once they are together
        self._optimizer: torch.optim.Optimizer

    @property
    def is_scaled(self) -> bool:
        """As torch's arithmetic says."""
        return self._arithmetic.loss_scaling

    def parameters(self) -> int:
        """Count them before the model is shared."""
        return sum(parameter.numel() for parameter in self._recipe.model.parameters())

    def facts(self) -> Mapping[str, object]:
        """Return the recipe's."""
        return self._recipe.facts()

    def work(self) -> Work:
        """Count a part of a batch, and multiply by the parts of all processes."""
        device, recipe = self._arithmetic.device, self._recipe
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):  # a batch may be drawn at random
            count = count_step(recipe.model, self._any_part(), recipe.loss)
        if count.flops is not None:
            count = count._replace(flops=count.flops * (self.task.batch_size // self._part_size))
        devices = self.run.world_size * len(devices_of(self.task, device))
        return Work(devices, count, recipe.tokens_per_sample)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Share the model as the strategy has it, and make its optimiser."""
        run, task, arithmetic = self.run, self.task, self._arithmetic
        with share(self._recipe, run, task, arithmetic) as self._team:
            self._optimizer = self._recipe.optimizer(
                self._team.parameters(), learning_rate=task.learning_rate, eps=arithmetic.optimizer_eps()
            )
            details = self._team.details()
            if details and run.rank == 0:
                run.event("strategy", strategy=task.strategy, **details)
            yield

    def restore(self, saved: Saved) -> None:
        """Take up weights, optimiser, arithmetic and random numbers."""
        if self._team.reorders_gradients:
            # After its first step DDP puts the gradients into another order, in which their sums over three or more
            # ranks differ in the last bit: so one step is done and forgotten, and what follows adds up as without the
            # break.
            batch = self._any_part()
            with self._arithmetic.context():
                loss = self._recipe.loss(self._team.model, batch)
            self._arithmetic.backward(loss)
            self._optimizer.zero_grad(set_to_none=True)
        try:
            state = torch.load(saved.path, map_location="cpu", weights_only=True)
            self._team.restore(state, self._optimizer)
            self._arithmetic.load_state_dict(state["arithmetic"])
        except (OSError, EOFError, RuntimeError, KeyError, ValueError, pickle.UnpicklingError) as error:
            raise cannot_go_on(saved.path, error) from error

    def steps(self, done: int) -> Iterator[StepEnd]:
        """Fetch, learn, and tell the other ranks."""
        run, task, team = self.run, self.task, self._team
        if task.compile:
            team.model = cast("nn.Module", torch.compile(team.model))
        gpus = [one for one in team.devices if one.type == "cuda"]
        clock = StepClock(functools.partial(_synchronize, gpus) if gpus else None)
        self._memories = [PeakMemory(device) for device in dict.fromkeys(team.devices)]  # logical devices are one
        orders = itertools.islice(sample_orders(self._recipe.samples, run, task), done, None)
        window = StepWindow.of_run(run, done)
        with contextlib.ExitStack() as stack:
            if window is not None:
                stack.callback(window.close)  # of a training that fails or leaves, too
            for step in range(done + 1, task.steps + 1):
                if window is not None:
                    window.before(step)
                with clock.data, team.drawing(step):
                    parts = self._fetch(next(orders))
                with clock.step:
                    loss = team.learn(self._recipe, self._arithmetic, parts)
                    del parts  # so that the next ones find their memory warm
                    self._arithmetic.step(self._optimizer)
                if window is not None:
                    window.after(step)
                    if step == task.steps:
                        window.close()
                end = team.end_step(loss, due=self.checkpoints.due(step), asked=self.checkpoints.asked)
                yield StepEnd(step, end.loss, end.due, end.asked, clock.step.took_s, clock.data.took_s)

    def metrics(self, end: StepEnd) -> Mapping[str, float]:
        """Return what the strategy and the scaling of the loss have measured."""
        del end
        return {**self._team.metrics(), **self._arithmetic.scaling()}

    def examine(self) -> Mapping[str, float]:
        """Put the model together where it is in parts, and measure it in real FP32."""
        with contextlib.ExitStack() as stack:
            for memory in self._memories:
                stack.enter_context(memory.passed_over())
            model = stack.enter_context(self._team.whole())
            if self.run.rank > 0 or model is None:
                return {}
            with self._arithmetic.evaluation(model) as examined:
                return dict(self._recipe.evaluate(examined))

    def writer(self) -> Callable[[str], object]:
        """Gather what the next step depends on, but for the order of the samples, which only the seed decides."""
        state = {**self._team.state(self._optimizer), "arithmetic": self._arithmetic.state_dict()}
        return functools.partial(torch.save, state)

    def everywhere(self, saved: bool) -> bool:  # noqa: FBT001 - what it is about
        """Ask the team."""
        return self._team.everywhere(saved)

    def memory(self) -> Iterator[Mapping[str, object]]:
        """Return what torch's allocators held at most."""
        return (memory.details() for memory in self._memories)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Return the whole model's state."""
        return self._team.weights()

    def outcome(self, weights: Mapping[str, torch.Tensor]) -> loop.Events:
        """Return the products that were emulated or scaled, the digest of the weights, and what the recipe found."""
        if self._arithmetic.products:
            name = "emulated_products" if self._arithmetic.numerics == "emulated" else "scaled_products"
            yield name, self._arithmetic.counted_products()
        yield "final", {"step": self.task.steps, "sha256": digest(weights)}
        yield from self._recipe.results(weights).items()

    def _fetch(self, indices: torch.Tensor) -> list[Batch]:
        chosen = indices.to(self._arithmetic.device)
        parts = [chosen] if len(chosen) == self._part_size else torch.split(chosen, self._part_size)
        return [self._recipe.batch(part) for part in parts]

    def _any_part(self) -> Batch:
        """Return a batch of the size that is trained with, of whichever samples."""
        indices = torch.arange(self._part_size, device=self._arithmetic.device)
        return self._recipe.batch(indices % self._recipe.samples)


def sample_orders(count: int, run: Client, task: Task) -> Iterator[torch.Tensor]:
    """Yield this rank's share of each step's samples: epoch after epoch, in an order that only the seed decides."""
    generator = torch.Generator().manual_seed(task.seed)
    replicas = task.replicas(run.world_size)
    share = task.batch_size // replicas
    first = run.rank * share if replicas > 1 else 0
    draw = functools.partial(torch.randperm, count, generator=generator)
    return (batch[first : first + share] for batch in loop.batches(draw, torch.cat, task.batch_size))


def digest(weights: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of all *weights*, bit by bit: equal for equal trainings."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


class PeakMemory:
    """The peak of torch's allocator since this was created; unknown on a CPU, where torch does not count."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._allocated = self._reserved = 0
        self._reset()

    @contextlib.contextmanager
    def passed_over(self) -> Iterator[None]:
        """Exclude the memory of the block: an evaluation in FP32 would hide what a precision saves."""
        self._note()
        yield
        self._reset()

    def details(self) -> dict[str, str | float | None]:
        """Return the details of the event ``memory``, in MiB."""
        self._note()
        known = self._device.type == "cuda"
        return {
            "device": str(self._device),
            "peak_allocated_mb": self._allocated / _MIB if known else None,
            "peak_reserved_mb": self._reserved / _MIB if known else None,
        }

    def _note(self) -> None:
        if self._device.type == "cuda":
            self._allocated = max(self._allocated, torch.cuda.max_memory_allocated(self._device))
            self._reserved = max(self._reserved, torch.cuda.max_memory_reserved(self._device))

    def _reset(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)


@contextlib.contextmanager
def said_in_one_line() -> Iterator[None]:
    """Raise `TrainingFailed` or `RecipeError` with one line for torch's errors: memory, lost processes, compilation."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise out_of_memory(_first_sentences(error)) from error
    except RuntimeError as error:
        if any(words in str(error) for words in _NO_HOST_MEMORY):
            raise out_of_memory(_first_sentences(error)) from error
        if any(words in str(error) for words in _GONE):
            raise TrainingFailed(
                f"another process of this training is gone ({_first_sentences(error)}): its own words say why"
            ) from error
        if type(error).__module__.startswith(_COMPILERS):
            raise RecipeError(
                f"training.compile=true: {type(error).__name__}: {_first_sentences(error)}: set it to false"
            ) from error
        raise


def _first_sentences(error: Exception) -> str:
    """Return what torch says first; it goes on with advice and stacks."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return ". ".join(line.split(". ")[:2]).rstrip(".")


def _make_reproducible(task: Task) -> None:
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > 0:
        torch.set_num_threads(int(threads))
    if task.strategy == "cpu_threads" and torch.get_num_interop_threads() != task.inter_op_threads:
        torch.set_num_interop_threads(task.inter_op_threads)  # only once, and before the first operation
    torch.manual_seed(task.seed)  # initial weights are drawn on the CPU in FP32: the same for every precision
    if task.deterministic:
        # Torch insists on it, and has to find it before CUDA starts. It is for nobody else: torch 2.11 reads it again
        # in every product, which takes the host 40 microseconds.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(task.deterministic)
    torch.backends.cudnn.benchmark = task.cudnn_benchmark  # kernels chosen by their speed: numbers chosen by chance


def _synchronize(gpus: Sequence[torch.device]) -> None:
    for gpu in gpus:
        torch.cuda.synchronize(gpu)
