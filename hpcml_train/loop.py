"""The training loop of all recipes: the order of steps, reports, evaluations and checkpoints, and how training ends.

A framework implements `Training`, which computes the steps; `train` runs it. `StepClock` times steps, `LossWatch` ends
a training that diverged, `batches` deals out samples.
"""

from __future__ import annotations

import abc
import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import (
    Any,
    NamedTuple,
)

from hpcml_client.checkpoints import Checkpoints, Saved
from hpcml_client.client import Client
from hpcml_train.errors import TrainingFailed
from hpcml_train.task import Task

# A loss that is no number has spoilt the weights, and stays none; three, so that one freak value is not the end. Where
# the loss is scaled the weights are spared, and the scale is halved instead: after 16 times torch's first one is 1, and
# what still overflows is not the scale's fault.
_NON_FINITE_LIMIT = 3
_NON_FINITE_LIMIT_SCALED = 20

Events = Iterable[tuple[str, Mapping[str, object]]]  # names and details


class StepCount(NamedTuple):
    """The floating-point operations of one forward and backward pass; a fused multiply-add counts as two.

    None: unknown.
    """

    flops: float | None
    doubt: str | None = None  # what the count cannot see, or why there is none; one line


class Work(NamedTuple):
    """What one step computes, over all devices of the run."""

    devices: int  # that compute it together
    counted: StepCount  # of all samples of the step
    tokens_per_sample: int | None = None  # of texts


class StepEnd(NamedTuple):
    """The result of a step, which all processes know."""

    step: int  # from 1
    loss: float  # the mean over all samples of the step
    due: bool  # some process finds a checkpoint due, and the weights are those after this step
    asked: bool  # some process was asked to leave
    step_time_s: float
    data_time_s: float


class Training(abc.ABC):
    """The interface between the loop and a framework; the loop calls the methods in this order.

    "By all ranks": the method may exchange messages, and each process must call it at the same point.
    """

    flops_method: str  # how `work` counts: a word of the event ``work``

    def __init__(self, run: Client, task: Task, checkpoints: Checkpoints) -> None:
        self.run = run
        self.task = task
        self.checkpoints = checkpoints

    @property
    @abc.abstractmethod
    def is_scaled(self) -> bool:
        """Whether the loss is scaled, so that steps whose gradients overflow are skipped."""

    @abc.abstractmethod
    def parameters(self) -> int:
        """Return the number of trained parameters; on the first rank only."""

    @abc.abstractmethod
    def facts(self) -> Mapping[str, object]:
        """Return further details of the event ``training``; on the first rank only."""

    @abc.abstractmethod
    def work(self) -> Work:
        """Return the work of a step; on the first rank only."""

    def together(self) -> contextlib.AbstractContextManager[object]:
        """Return a context manager around all that follows, in which processes connect and share the model.

        By all ranks.
        """
        return contextlib.nullcontext()

    @abc.abstractmethod
    def restore(self, saved: Saved) -> None:
        """Load the checkpoint *saved*; raises `RecipeError` where it is unreadable or of something else.

        By all ranks.
        """

    @abc.abstractmethod
    def steps(self, done: int) -> Iterator[StepEnd]:
        """Do the steps after the first *done* and yield the end of each; by all ranks."""

    @abc.abstractmethod
    def metrics(self, end: StepEnd) -> Mapping[str, float]:
        """Return metrics of the framework and the strategy for this step; on the first rank only."""

    @abc.abstractmethod
    def examine(self) -> Mapping[str, float]:
        """Return the validation metrics of the model as it is now, on other ranks than the first {}; by all ranks."""

    @abc.abstractmethod
    def writer(self) -> Callable[[str], object]:
        """Return the function that writes a checkpoint to a path; by all ranks."""

    def everywhere(self, saved: bool) -> bool:  # noqa: FBT001 - what it is about
        """Return whether all ranks *saved*; by all ranks. Where one disk is full, no rank leaves."""
        return saved

    @abc.abstractmethod
    def memory(self) -> Iterable[Mapping[str, object]]:
        """Return the details of an event ``memory`` for each device of this process."""

    @abc.abstractmethod
    def weights(self) -> Any:  # noqa: ANN401 - the framework's own
        """Return the trained weights on the first rank; by all ranks."""

    @abc.abstractmethod
    def outcome(self, weights: Any) -> Events:  # noqa: ANN401 - the framework's own
        """Return the last events, among them ``final`` with a digest of *weights*; on the first rank only."""


def train(training: Training) -> bool:
    """Train and report; return False where a signal asked it to leave at a checkpoint, True at the end.

    The last step is always evaluated. Raises `TrainingFailed` where the loss stays nan or infinite.
    """
    run = training.run
    if run.rank == 0:
        _say_what_is_trained(training)
    saved = training.checkpoints.latest()  # before ranks begin to talk to each other
    with training.together():
        if saved is not None:
            training.restore(saved)
            if run.rank == 0:
                run.event("resumed", step=saved.step, path=run.relative(saved.path))
        finished = _train_steps(training, done=saved.step if saved else 0)
        weights = training.weights() if finished else None
    if finished and run.rank == 0:
        for name, details in training.outcome(weights):
            run.event(name, **details)
        training.checkpoints.clear()
    return finished


def _train_steps(training: Training, *, done: int) -> bool:
    """Do the steps after the first *done*; return False where it left at a checkpoint."""
    run, task = training.run, training.task
    watch = LossWatch(is_scaled=training.is_scaled)
    finished = True
    for end in training.steps(done):
        _report(training, end)
        watch.see(end.loss, end.step)
        if end.due and end.step < task.steps:
            saved = training.checkpoints.save(end.step, training.writer())
            if end.asked and training.everywhere(saved):
                finished = False
                break
    for details in training.memory():
        run.event("memory", **details)
    return finished


def _report(training: Training, end: StepEnd) -> None:
    run, task = training.run, training.task
    is_examined = end.step % task.eval_every == 0 or end.step == task.steps
    if run.rank > 0:
        if is_examined:
            training.examine()
        return
    values: dict[str, float] = {"loss": end.loss, "step_time_s": end.step_time_s, "data_time_s": end.data_time_s}
    values.update(training.metrics(end))
    if is_examined:
        values.update(training.examine())
        said = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        print(f"step {end.step}: {said}", flush=True)  # noqa: T201 - a program's own words
    run.metrics(values, end.step)


def perplexity(loss: float) -> float:
    """Return the perplexity of a *loss* in nats per token: its exponential, infinite where that has no number."""
    return math.exp(loss) if loss < math.log(1e300) else math.inf


def _say_what_is_trained(training: Training) -> None:
    run, task = training.run, training.task
    run.event(
        "training",
        steps=task.steps,
        parameters=training.parameters(),
        batch_size=task.batch_size,
        **training.facts(),
    )
    work = training.work()
    tokens = work.tokens_per_sample
    run.event(
        "work",
        devices=work.devices,
        model_flops=work.counted.flops,
        flops_method=None if work.counted.flops is None else training.flops_method,
        flops_doubt=work.counted.doubt,
        samples=float(task.batch_size),
        tokens=None if tokens is None else float(tokens * task.batch_size),
    )


class LossWatch:
    """Ends a training whose loss stays nan or infinite; scaled losses are given more steps to recover."""

    def __init__(self, *, is_scaled: bool) -> None:
        self._limit = _NON_FINITE_LIMIT_SCALED if is_scaled else _NON_FINITE_LIMIT
        self._in_a_row = 0

    def see(self, loss: float, step: int) -> None:
        """Take the loss of *step*; raises `TrainingFailed` after 3 (scaled: 20) non-finite ones in a row."""
        self._in_a_row = 0 if math.isfinite(loss) else self._in_a_row + 1
        if self._in_a_row == self._limit:
            first = step - self._limit + 1
            raise TrainingFailed(
                f"loss is {loss} at step {first} and the {self._limit - 1} after it: "
                "choose a smaller training.learning_rate or a precision of greater range"
            )


class StepClock:
    """Times the parts of each step, in seconds; *wait* blocks until the device has done all its work.

    Without *wait* it has done that once the program goes on. `data` times the fetching of a batch until it is on the
    device, `step` forward pass, backward pass and update, with all their kernels; evaluation, checkpoints and reports
    between steps are in neither.

    with clock.data:
        batch = next(batches)
    with clock.step:
        train_on(batch)
    """

    def __init__(
        self, wait: Callable[[], object] | None = None, *, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.data, self.step = Timed(wait, now), Timed(wait, now)


class Timed:
    """Times its block, each time that it is entered; no generator, since every step of a training goes through it."""

    def __init__(self, wait: Callable[[], object] | None, now: Callable[[], float]) -> None:
        self.took_s = 0.0  # the last time
        self._wait, self._now = wait, now

    def __enter__(self) -> None:
        if self._wait is not None:
            self._wait()
        self._began = self._now()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            if self._wait is not None:
                self._wait()
            self.took_s = self._now() - self._began


def batches(draw: Callable[[], Any], join: Callable[[list[Any]], Any], batch_size: int) -> Iterator[Any]:
    """Yield the samples of each step, *batch_size* of them, without end.

    *draw* returns an order of all samples for one epoch, *join* concatenates a list of orders. What is left of an epoch
    begins the batch that the next one fills.

    >>> found = batches(lambda: [0, 1, 2], lambda orders: orders[0] + orders[1], 2)
    >>> [next(found) for _ in range(3)]
    [[0, 1], [2, 0], [1, 2]]
    """
    order = draw()
    while True:
        while len(order) < batch_size:
            order = join([order, draw()])
        batch, order = order[:batch_size], order[batch_size:]
        yield batch
