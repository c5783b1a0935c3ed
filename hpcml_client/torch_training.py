"""The loop of all torch recipes: reproducible, in any precision, in one process or several, and able to go on."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Iterator, cast

import torch
from torch import nn

from hpcml_client.loss_watch import LossWatch
from hpcml_client.recipe_task import RecipeError, Task
from hpcml_client.step_clock import StepClock
from hpcml_client.torch_failures import said_in_one_line
from hpcml_client.torch_memory import PeakMemory
from hpcml_client.torch_progress import Progress, digest
from hpcml_client.torch_ranks import Team
from hpcml_client.torch_recipe import Batch, Recipe
from hpcml_client.torch_strategies import devices_of, prepare, refuse_impossible, share
from hpcml_client.torch_work import count_step

if TYPE_CHECKING:
    from typing import Dict, List

    from hpcml_client.checkpoints import Checkpoints, Saved
    from hpcml_client.client import Client
    from hpcml_client.torch_arithmetic import Arithmetic


@dataclass(frozen=True)
class Session:
    """What the steps of a training work with."""

    run: Client
    task: Task
    recipe: Recipe
    arithmetic: Arithmetic
    checkpoints: Checkpoints
    part_size: int  # samples that a process works on at once


def train(run: Client, task: Task, checkpoints: Checkpoints, make: Callable[[Task, Arithmetic], Recipe]) -> bool:
    """Train as *task* says and report to *run*; return False where it left at a checkpoint, as it was asked to.

    The last step is always evaluated. Raises `RecipeError` where the request cannot be met, `TrainingFailed` where the
    loss is no number any more or the memory is used up.
    """
    part_size = task.part_size(run.world_size)
    _make_reproducible(task)
    arithmetic = run.apply_precision("torch")
    if task.compile and arithmetic.numerics == "emulated":
        raise RecipeError(
            f"training.compile=true: compiled code escapes the emulation of {arithmetic.precision}: set it to false"
        )
    refuse_impossible(task, arithmetic)
    with said_in_one_line():
        recipe = make(task, arithmetic)
        prepare(recipe.model, task, arithmetic)
        return _train(
            Session(
                run=run,
                task=task,
                recipe=recipe,
                arithmetic=arithmetic,
                checkpoints=checkpoints,
                part_size=part_size,
            )
        )


def _train(session: Session) -> bool:
    run, task, arithmetic = session.run, session.task, session.arithmetic
    if run.rank == 0:
        _say_what_is_trained(session)
    saved = session.checkpoints.latest()
    with share(session.recipe, run, task, arithmetic) as team:
        optimizer = session.recipe.optimizer(
            team.parameters(), learning_rate=task.learning_rate, eps=arithmetic.optimizer_eps()
        )
        progress = Progress(team=team, optimizer=optimizer, arithmetic=arithmetic)
        details = team.details()
        if details and run.rank == 0:
            run.event("strategy", strategy=task.strategy, **details)
        if saved is not None:
            _go_on(session, progress, saved)
        if task.compile:
            team.model = cast("nn.Module", torch.compile(team.model))
        finished = _train_steps(session, progress, done=saved.step if saved else 0)
        weights = team.weights() if finished else {}
    if finished and run.rank == 0:
        if arithmetic.products:
            run.event("emulated_products", **arithmetic.products)
        run.event("final", step=task.steps, sha256=digest(weights))
        for name, found in session.recipe.results(weights).items():
            run.event(name, **found)
        session.checkpoints.clear()
    return finished


def _train_steps(session: Session, progress: Progress, *, done: int) -> bool:
    """Do the steps after the first *done*; return False where it left at a checkpoint."""
    run, task, arithmetic, team = session.run, session.task, session.arithmetic, progress.team
    clock = StepClock(lambda: _synchronize(team))
    memories = [PeakMemory(device) for device in dict.fromkeys(team.devices)]  # logical devices are one
    watch = LossWatch(is_scaled=arithmetic.loss_scaling)
    orders = itertools.islice(sample_orders(session.recipe.samples, run, task), done, None)
    finished = True
    for step in range(done + 1, task.steps + 1):
        with clock.data(), team.drawing(step):
            parts = _fetch(session, next(orders))
        with clock.step():
            loss = team.learn(session.recipe, arithmetic, parts)
            arithmetic.step(progress.optimizer)
        end = team.end_step(loss, due=session.checkpoints.due(step), asked=session.checkpoints.asked)
        values = {"loss": end.loss, "step_time_s": clock.step_time_s, "data_time_s": clock.data_time_s}
        values.update(team.metrics(), **arithmetic.scaling())
        if step % task.eval_every == 0 or step == task.steps:
            values.update(_examine(session, team, memories))
            if run.rank == 0:
                print(_as_line(step, values), flush=True)  # noqa: T201 - a program's own words
        if run.rank == 0:
            run.metrics(values, step)
        watch.see(end.loss, step)
        if end.due and step < task.steps:
            saved = session.checkpoints.save(step, functools.partial(torch.save, progress.state()))
            if end.asked and team.everywhere(saved):
                finished = False
                break
    for memory in memories:
        run.event("memory", **memory.details())
    return finished


def _examine(session: Session, team: Team, memories: List[PeakMemory]) -> Dict[str, float]:
    """Return the validation metrics on the first rank, nothing on others."""
    with contextlib.ExitStack() as stack:
        for memory in memories:
            stack.enter_context(memory.passed_over())
        model = stack.enter_context(team.whole())
        if session.run.rank > 0 or model is None:
            return {}
        with session.arithmetic.evaluation(model) as examined:
            return dict(session.recipe.evaluate(examined))


def _fetch(session: Session, indices: torch.Tensor) -> List[Batch]:
    chosen = indices.to(session.arithmetic.device)
    return [session.recipe.batch(part) for part in torch.split(chosen, session.part_size)]


def sample_orders(count: int, run: Client, task: Task) -> Iterator[torch.Tensor]:
    """Yield this rank's share of each step's samples: epoch after epoch, in an order that only the seed decides."""
    generator = torch.Generator().manual_seed(task.seed)
    replicas = task.replicas(run.world_size)
    share = task.batch_size // replicas
    replica = run.rank if replicas > 1 else 0
    order = torch.empty(0, dtype=torch.long)
    while True:
        while len(order) < task.batch_size:
            order = torch.cat([order, torch.randperm(count, generator=generator)])
        batch, order = order[: task.batch_size], order[task.batch_size :]
        yield batch[replica * share : (replica + 1) * share]


def _say_what_is_trained(session: Session) -> None:
    run, task, recipe, model = session.run, session.task, session.recipe, session.recipe.model
    run.event(
        "training",
        steps=task.steps,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        batch_size=task.batch_size,
        **recipe.facts(),
    )
    device = session.arithmetic.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):  # a batch may be drawn at random
        count = count_step(model, _any_part(session), recipe.loss)
    parts = task.batch_size // session.part_size  # in all processes
    tokens = recipe.tokens_per_sample
    run.event(
        "work",
        devices=run.world_size * len(devices_of(task, session.arithmetic.device)),
        model_flops=None if count.flops is None else count.flops * parts,
        flops_method=None if count.flops is None else "meta",
        flops_doubt=count.doubt,
        samples=float(task.batch_size),
        tokens=None if tokens is None else float(tokens * task.batch_size),
    )


def _any_part(session: Session) -> Batch:
    """Return a batch of the size that is trained with, of whichever samples."""
    indices = torch.arange(session.part_size, device=session.arithmetic.device)
    return session.recipe.batch(indices % session.recipe.samples)


def _go_on(session: Session, progress: Progress, saved: Saved) -> None:
    """Take up what was saved, on every rank."""
    if progress.team.reorders_gradients:
        # After its first step DDP puts the gradients into another order, in which their sums over three or more ranks
        # differ in the last bit: so one step is done and forgotten, and what follows adds up as without the break.
        batch = _any_part(session)
        with session.arithmetic.context():
            loss = session.recipe.loss(progress.team.model, batch)
        session.arithmetic.backward(loss)
        progress.optimizer.zero_grad(set_to_none=True)
    progress.read(saved)
    if session.run.rank == 0:
        session.run.event("resumed", step=saved.step, path=session.run.relative(saved.path))


def _make_reproducible(task: Task) -> None:
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > 0:
        torch.set_num_threads(int(threads))
    if task.strategy == "cpu_threads" and torch.get_num_interop_threads() != task.inter_op_threads:
        torch.set_num_interop_threads(task.inter_op_threads)  # only once, and before the first operation
    torch.manual_seed(task.seed)  # initial weights are drawn on the CPU in FP32: the same for every precision
    torch.use_deterministic_algorithms(task.deterministic)
    torch.backends.cudnn.benchmark = False  # kernels chosen by their speed are numbers chosen by chance


def _synchronize(team: Team) -> None:
    for device in team.devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _as_line(step: int, values: Dict[str, float]) -> str:
    return f"step {step}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items())
