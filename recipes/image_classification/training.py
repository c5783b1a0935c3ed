"""One training: data on the device, one process or several, everything reported by the first of them."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from models import CLASSES, MODELS, PIXELS, count_parameters
from progress import Progress, digest
from task import RecipeError, Task
from torch import distributed, nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom

from hpcml_client import Checkpoints, Client, Saved, datasets
from hpcml_client.torch_arithmetic import Arithmetic

_EVALUATION_BATCH = 1000  # bounds the memory only
_DIGITS_SIDE = 20  # 8x8 digits are enlarged to this, then padded: MNIST's own digits lie in their frame like that


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Images and labels on the device."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What the steps of a training work with."""

    run: Client
    task: Task
    arithmetic: Arithmetic
    training: Samples
    validation: Samples
    progress: Progress
    checkpoints: Checkpoints


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    """Train as *task* says and report to *run*; return False where it left at a checkpoint, as it was asked to.

    The last step is always evaluated.
    """
    if task.model not in MODELS:
        raise RecipeError(f"model={task.model} is not in this recipe: choose {' or '.join(MODELS)}")
    task.check_processes(run.world_size)
    _make_reproducible(task)
    arithmetic = run.apply_precision("torch")
    training, validation = (_place(images, arithmetic, task) for images in _read(task))
    model = arithmetic.prepare(MODELS[task.model]())
    if task.layout == "nhwc":
        model = model.to(memory_format=torch.channels_last)
    if run.rank == 0:
        run.event(
            "training",
            steps=task.steps,
            parameters=count_parameters(model),
            batch_size=task.batch_size,
            training_samples=len(training),
            validation_samples=len(validation),
        )
    optimizer = torch.optim.Adam(model.parameters(), lr=task.learning_rate, eps=arithmetic.optimizer_eps())
    session = Session(
        run=run,
        task=task,
        arithmetic=arithmetic,
        training=training,
        validation=validation,
        progress=Progress(model=model, optimizer=optimizer, arithmetic=arithmetic),
        checkpoints=checkpoints,
    )
    saved = checkpoints.latest()
    with _shared(model, run, task, arithmetic) as shared:
        if saved is not None:
            _go_on(session, shared, saved)
        finished = _train_steps(session, shared, done=saved.step if saved else 0)
    if finished and run.rank == 0:
        if arithmetic.products:
            run.event("emulated_products", **arithmetic.products)
        run.event("final", step=task.steps, sha256=digest(model))
        checkpoints.clear()
    return finished


def _train_steps(session: Session, model: nn.Module, *, done: int) -> bool:
    """Do the steps after the first *done*; return False where it left at a checkpoint."""
    run, task, arithmetic = session.run, session.task, session.arithmetic
    batches = itertools.islice(_batches(len(session.training), run, task), done, None)
    for step, indices in enumerate(batches, start=done + 1):
        chosen = indices.to(arithmetic.device)
        _synchronize(arithmetic)
        began = time.perf_counter()
        loss = _step(model, session.training, chosen, arithmetic, session.progress.optimizer)
        took_s = time.perf_counter() - began
        mean_loss, due, asked = _share(loss, session.checkpoints, step, run)
        if run.rank == 0:
            values = {"loss": mean_loss, "step_time_s": took_s, **arithmetic.scaling()}
            if step % task.eval_every == 0 or step == task.steps:
                values.update(_evaluate(session.progress.model, session.validation, arithmetic))
                print(_as_line(step, values), flush=True)
            run.metrics(values, step)
        if due and step < task.steps:
            saved = session.checkpoints.save(step, session.progress.write)
            if asked and _everywhere(saved, run):
                return False
    return True


def _go_on(session: Session, model: nn.Module, saved: Saved) -> None:
    """Take up what was saved, on every rank."""
    if session.run.world_size > 1:
        # After its first step DDP puts the gradients into another order, in which their sums over three or more ranks
        # differ in the last bit: so one step is done and forgotten, and what follows adds up as without the break.
        images, labels = session.arithmetic.cast(session.training.images[:1]), session.training.labels[:1]
        with session.arithmetic.context():
            loss = _cross_entropy(model(images), labels)
        session.arithmetic.backward(loss)
        session.progress.optimizer.zero_grad(set_to_none=True)
    session.progress.read(saved)
    if session.run.rank == 0:
        session.run.event("resumed", step=saved.step, path=session.run.relative(saved.path))


def _make_reproducible(task: Task) -> None:
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > 0:
        torch.set_num_threads(int(threads))
    torch.manual_seed(task.seed)  # initial weights are drawn on the CPU in FP32: the same for every precision
    torch.use_deterministic_algorithms(task.deterministic)
    torch.backends.cudnn.benchmark = False  # kernels chosen by their speed are numbers chosen by chance


def _read(task: Task) -> tuple[datasets.Images, datasets.Images]:
    if task.data == "mnist":
        return datasets.read_mnist(task.data_path or "")
    return datasets.split(datasets.read_digits(), task.holdout)


def _place(images: datasets.Images, arithmetic: Arithmetic, task: Task) -> Samples:
    """Put all *images* on the device: 28x28 pixels between 0 and 1."""
    raw = torch.frombuffer(bytearray(images.pixels), dtype=torch.uint8)
    pixels = raw.view(len(images), 1, images.height, images.width).float() / images.largest
    if task.data == "digits":
        pixels = F.interpolate(pixels, size=(_DIGITS_SIDE, _DIGITS_SIDE), mode="bilinear", align_corners=False)
        pixels = F.pad(pixels, [(PIXELS - _DIGITS_SIDE) // 2] * 4)
    labels = torch.frombuffer(bytearray(images.labels), dtype=torch.uint8).long()
    if pixels.shape[-2:] != (PIXELS, PIXELS) or int(labels.max()) >= CLASSES:
        raise RecipeError(
            f"data={task.data} has images of {images.height}x{images.width} pixels and labels up to {int(labels.max())}"
            f": the models expect {PIXELS}x{PIXELS} and {CLASSES - 1}"
        )
    if task.layout == "nhwc":
        pixels = pixels.contiguous(memory_format=torch.channels_last)
    return Samples(images=pixels.to(arithmetic.device), labels=labels.to(arithmetic.device))


@contextlib.contextmanager
def _shared(model: nn.Module, run: Client, task: Task, arithmetic: Arithmetic) -> Iterator[nn.Module]:
    """Share *model* between the processes of the run; a single process gets the model itself."""
    if task.strategy == "single":
        yield model
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise RecipeError(f"strategy=ddp needs {' and '.join(missing)} in the environment: start it with hpcml")
    on_gpu = arithmetic.device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(arithmetic.device)
    distributed.init_process_group("nccl" if on_gpu else "gloo", rank=run.rank, world_size=run.world_size)
    yield nn.parallel.DistributedDataParallel(model, device_ids=[arithmetic.device] if on_gpu else None)
    # Not in a `finally`: a rank that failed must not wait for the others.
    distributed.barrier()  # nobody leaves while another still talks to it
    distributed.destroy_process_group()


def _batches(count: int, run: Client, task: Task) -> Iterator[torch.Tensor]:
    """Yield this rank's share of each step's samples: epoch after epoch, in an order that only the seed decides."""
    generator = torch.Generator().manual_seed(task.seed)
    share = task.batch_size // run.world_size
    order = torch.empty(0, dtype=torch.long)
    for _ in range(task.steps):
        while len(order) < task.batch_size:
            order = torch.cat([order, torch.randperm(count, generator=generator)])
        batch, order = order[: task.batch_size], order[task.batch_size :]
        yield batch[run.rank * share : (run.rank + 1) * share]


def _step(
    model: nn.Module,
    samples: Samples,
    chosen: torch.Tensor,
    arithmetic: Arithmetic,
    optimizer: torch.optim.Optimizer,
) -> torch.Tensor:
    """Do one step of the optimiser; return the loss once the device has finished."""
    images, labels = arithmetic.cast(samples.images[chosen]), samples.labels[chosen]
    with arithmetic.context():
        loss = _cross_entropy(model(images), labels)
    arithmetic.backward_and_step(loss, optimizer)
    _synchronize(arithmetic)
    return loss.detach()


def _synchronize(arithmetic: Arithmetic) -> None:
    if arithmetic.device.type == "cuda":
        torch.cuda.synchronize(arithmetic.device)


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    # sums of exponentials overflow in 16 bits; autocast computes them in FP32 too
    return F.cross_entropy(logits if logits.dtype is torch.float64 else logits.float(), labels)


def _evaluate(model: nn.Module, samples: Samples, arithmetic: Arithmetic) -> dict[str, float]:
    correct, loss = 0, 0.0
    with arithmetic.evaluation(model) as examined:
        dtype = next(examined.parameters()).dtype
        for begin in range(0, len(samples), _EVALUATION_BATCH):
            part = slice(begin, begin + _EVALUATION_BATCH)
            labels = samples.labels[part]
            logits = examined(samples.images[part].to(dtype))
            correct += int((logits.argmax(dim=1) == labels).sum())
            loss += float(_cross_entropy(logits, labels)) * len(labels)
    return {"val_accuracy": correct / len(samples), "val_loss": loss / len(samples)}


def _share(loss: torch.Tensor, checkpoints: Checkpoints, step: int, run: Client) -> tuple[float, bool, bool]:
    """Return the mean loss, and whether any rank finds a checkpoint due, and was asked to leave.

    Signals reach the ranks at different moments. What they know goes along with the loss, so that all save, or leave,
    after the same step, and it takes no message of its own.
    """
    asked = checkpoints.asked
    due = asked or checkpoints.due(step)
    if run.world_size == 1:
        return float(loss), due, asked
    shared = torch.cat([loss.reshape(1), loss.new_tensor([due, asked])])
    distributed.all_reduce(shared)
    total, due_ranks, asked_ranks = shared.tolist()
    return total / run.world_size, due_ranks > 0, asked_ranks > 0


def _everywhere(saved: bool, run: Client) -> bool:  # noqa: FBT001 - what it is about
    """Tell whether all ranks could save: where the disk of the first is full, nobody leaves."""
    if run.world_size == 1:
        return saved
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    failures = torch.tensor([0 if saved else 1], device=device)
    distributed.all_reduce(failures)
    return int(failures) == 0


def _as_line(step: int, values: dict[str, float]) -> str:
    return f"step {step}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items())
