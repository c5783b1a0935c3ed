"""What hpcml adds to each of its own torch recipes, over the same training in plain torch (`bare_training.py`).

**The step**: recipe and bare loop in turn in one process. After each block of the recipe's steps, which report to a
real journal, the bare loop takes as many. A pair of neighbouring blocks gives a ratio of CPU times and one of times by
the clock. Processes differ by more than the pairs of one tell, as their memory happens to lie: so there are several,
each with a run of its own, and the interval is that of their means.

**The whole**: `hpcml run` from the typed command to its end against `python bare_training.py`, one after the other, in
the order ABBA. What starts besides (hpcml's command, queue, agent, sampler) is in it, and so is one validation on both
sides. CPU time is that of all processes.

Ratios are geometric means with Student's 95 % interval. On both sides there is one thread, and the losses of every
block and of every training are equal bit for bit, or the script ends without a table. About half an hour on two free
cores; `--quick` shows in two that it works, `--step` measures the step alone, in `--processes` processes.

The goal: within 1 % for a step of the CNN.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import itertools
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: CPU time is then the time that a quiet machine would take

from bare_training import import_recipe, make, train
from hpcml_command import command_of
from scipy.stats import t as student
from torch.optim import optimizer

import hpcml_client
from hpcml.runs.journal import Metrics, read_journal
from hpcml_train.task import Task

GOAL = 1.01
WARM_UP_BLOCKS = 3
QUICK_STEPS = 20
BARE = Path(__file__).with_name("bare_training.py")
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, with sizes that give a step of a tenth of a second at most."""

    model: str
    steps: int  # of a whole training: one to three seconds
    block: int  # steps: 0.1 to 0.3 s
    settings: Sequence[str] = ()


CASES = (
    Case(model="mnist_cnn", steps=120, block=10),
    Case(model="mnist_mlp", steps=4000, block=400),
    Case(model="resnet18", steps=40, block=2, settings=("model.options.image_size=32", "training.batch_size=8")),
    Case(model="transformer_tiny", steps=60, block=5, settings=("training.batch_size=16",)),
    Case(model="lstm", steps=400, block=20),
    Case(model="unet", steps=40, block=4),
    Case(model="word2vec", steps=400, block=20),
    Case(model="linear_mse", steps=10000, block=1000),
)


class Turns:
    """Stands in front of a run's `metrics`, and takes as many bare steps after each block of the recipe's."""

    def __init__(self, run: hpcml_client.Client, task: Task, block: int) -> None:
        self.cpu_ratios: list[float] = []
        self.clock_ratios: list[float] = []
        self.bare_s: list[float] = []
        self._report = run.metrics
        self._task = task
        self._block = block

    def metrics(self, values: Mapping[str, object], step: int | None = None) -> None:
        """Report, and take a turn."""
        self._report(values, step)
        if step == 1:  # the recipe has drawn its weights by now
            self._bare = train(make(self._task), self._task)
            with unobserved():
                next(self._bare)
            self._begin()
        elif step is not None and (step - 1) % self._block == 0:
            with unobserved():
                between_cpu, between = time.process_time(), time.perf_counter()
                for _ in range(self._block):
                    loss = next(self._bare)
                ended_cpu, ended = time.process_time(), time.perf_counter()
            check_equal(values["loss"], loss, f"after {step} steps in turn")
            self.bare_s.append((ended_cpu - between_cpu) / self._block)
            self.cpu_ratios.append((between_cpu - self._began_cpu) / (ended_cpu - between_cpu))
            self.clock_ratios.append((between - self._began) / (ended - between))
            self._begin()

    def _begin(self) -> None:
        self._began_cpu, self._began = time.process_time(), time.perf_counter()


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Have no hook of ours at the steps of the bare loop, which torch's optimizers all go through."""
    hooks = [vars(optimizer)[f"_global_optimizer_{when}_hooks"] for when in ("pre", "post")]
    kept = [dict(one) for one in hooks]
    for one in hooks:
        one.clear()
    try:
        yield
    finally:
        for one, before in zip(hooks, kept, strict=True):
            one.update(before)


def check_equal(ours: object, theirs: object, when: str) -> None:
    if ours != theirs:
        raise SystemExit(f"the trainings are not the same: {when} hpcml's loss is {ours!r} and the bare one {theirs!r}")


def take_turns(config: Path, pairs: int, block: int) -> None:
    """Print the ratios of *pairs* of blocks, as JSON."""
    module = import_recipe(json.loads(config.read_text(encoding="utf-8")))
    with (
        tempfile.TemporaryDirectory() as folder,
        hpcml_client.connect({"HPCML_RUN_DIR": folder, "HPCML_CONFIG": str(config)}) as run,
    ):
        steps = (pairs + WARM_UP_BLOCKS) * block + 2
        task = replace(Task.from_config(run.config), steps=steps, eval_every=steps)
        turns = Turns(run, task, block)
        run.metrics = turns.metrics  # type: ignore[method-assign]
        with contextlib.redirect_stdout(io.StringIO()):  # a recipe prints, too
            module.train(run, task, run.checkpoints())
    print(
        json.dumps(
            {
                "cpu": turns.cpu_ratios[WARM_UP_BLOCKS:],
                "clock": turns.clock_ratios[WARM_UP_BLOCKS:],
                "bare_ms": statistics.median(turns.bare_s[WARM_UP_BLOCKS:]) * 1000,
            }
        ),
        flush=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """One training from its first to its last process."""

    wall_s: float
    cpu_s: float
    step_s: float
    loss: float


def timed(command: Sequence[str], environ: Mapping[str, str]) -> tuple[float, float, str]:
    """Return the wall and CPU seconds of *command* and all that it starts, and what it printed."""
    before, began = _cpu_s(), time.perf_counter()
    done = subprocess.run(command, check=False, env=environ, capture_output=True, text=True)
    wall_s = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr.strip()}")
    while True:  # the queue of this machine goes on without the command, and becomes our child then
        try:
            os.wait()
        except ChildProcessError:
            return wall_s, _cpu_s() - before, done.stdout


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_through(case: Case, home: Path) -> tuple[Whole, Path]:
    """Train by `hpcml run`; return what it took, and its run.json."""
    words = [f"model={case.model}", f"training.steps={case.steps}", f"training.eval_every={case.steps}"]
    words += [*case.settings, "resources.cpus_per_task=1"]
    environ = {**os.environ, "HPCML_HOME": str(home)}
    before = set(home.glob("runs/*/*"))
    wall_s, cpu_s, _ = timed([command_of(), "run", *words], environ)
    (run_dir,) = set(home.glob("runs/*/*")) - before
    (journal,) = run_dir.glob("journal/*-rank0.jsonl")
    points = [record for record in read_journal(journal).records if isinstance(record, Metrics)]
    ends = [point.t_s for point in points[len(points) // 2 : -1]]  # the last step is validated
    steps_s = [end - begin for begin, end in itertools.pairwise(ends)]
    loss = points[-1].values["loss"]
    return Whole(wall_s=wall_s, cpu_s=cpu_s, step_s=statistics.median(steps_s), loss=loss), run_dir / "run.json"


def run_bare(config: Path) -> Whole:
    wall_s, cpu_s, said = timed([sys.executable, str(BARE), str(config)], os.environ)
    found = json.loads(said)
    return Whole(wall_s=wall_s, cpu_s=cpu_s, step_s=found["step_s"], loss=found["loss"])


def run_whole(case: Case, home: Path, pairs: int) -> tuple[list[tuple[Whole, Whole]], Path]:
    """Return *pairs* of trainings, ours and bare, after one of each that warms up, and a run.json."""
    _, config = run_through(case, home)
    run_bare(config)
    found = []
    for pair in range(pairs):
        bare = run_bare(config) if pair % 2 else None
        ours, config = run_through(case, home)
        bare = bare or run_bare(config)
        check_equal(ours.loss, bare.loss, f"at the end of {case.model}")
        found.append((ours, bare))
    return found, config


def mean_ratio(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def ratio(values: Sequence[float]) -> tuple[float, str]:
    """Return the geometric mean, and it with its interval in words."""
    logs = [math.log(value) for value in values]
    mean = statistics.fmean(logs)
    reach = float(student.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (math.exp(mean + sign * reach) for sign in (-1, 0, 1))
    return middle, f"{middle:.3f} ({low:.3f} to {high:.3f})"


def whole_row(model: str, pairs: Sequence[tuple[Whole, Whole]]) -> str:
    bare_s, bare_cpu_s = (
        statistics.fmean(value) for value in zip(*((bare.wall_s, bare.cpu_s) for _, bare in pairs), strict=True)
    )
    more_s, more_cpu_s = (
        statistics.fmean(value)
        for value in zip(*((ours.wall_s - bare.wall_s, ours.cpu_s - bare.cpu_s) for ours, bare in pairs), strict=True)
    )
    _, wall = ratio([ours.wall_s / bare.wall_s for ours, bare in pairs])
    _, step = ratio([ours.step_s / bare.step_s for ours, bare in pairs])
    return f"| {model} | {bare_s:.1f} | {wall} | {more_s:+.2f} | {bare_cpu_s:.1f} | {more_cpu_s:+.2f} | {step} |"


def step_row(model: str, processes: Sequence[Mapping[str, Sequence[float]]], bare_ms: float) -> tuple[float, str]:
    """Return the ratio of CPU times, and the row of the table; the means of processes are the units."""
    middle, cpu = ratio([mean_ratio(one["cpu"]) for one in processes])
    _, clock = ratio([mean_ratio(one["clock"]) for one in processes])
    return middle, f"| {model} | {bare_ms:.3g} | {cpu} | {clock} |"


def measure_step(case: Case, config: Path, n_processes: int, pairs: int) -> tuple[float, str]:
    """Take *pairs* of blocks in each of *n_processes*, one after the other."""
    command = [sys.executable, __file__, "--turns", str(config), str(pairs), str(case.block)]
    found = [json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(n_processes)]
    return step_row(case.model, found, statistics.median(one["bare_ms"] for one in found))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="only these")
    parser.add_argument("--quick", action="store_true", help="few repeats: shows that it works, not how much it costs")
    parser.add_argument("--step", action="store_true", help="the step alone, no whole trainings but one")
    parser.add_argument("--processes", type=int, default=6, help="for each step, 2 or more (6)")
    parser.add_argument("--turns", nargs=3, metavar=("RUN_JSON", "PAIRS", "BLOCK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.processes < 2:
        parser.error(f"--processes {options.processes}: an interval needs two or more")
    return options


def main() -> int:
    options = parsed()
    if options.turns:
        take_turns(Path(options.turns[0]), int(options.turns[1]), int(options.turns[2]))
        return 0
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    began, wholes, within = time.perf_counter(), [], True
    n_processes = 2 if options.quick else options.processes
    block_pairs, whole_pairs = (6, 2) if options.quick else (48, 4)
    print("| model | bare step, CPU ms | CPU time, recipe / bare | by the clock, recipe / bare |")
    print("|---|---:|---:|---:|")
    for case in CASES:
        if options.models and case.model not in options.models:
            continue
        with tempfile.TemporaryDirectory() as home:
            steps = QUICK_STEPS if options.quick or options.step else case.steps
            pairs, config = run_whole(replace(case, steps=steps), Path(home), 0 if options.step else whole_pairs)
            middle, row = measure_step(case, config, n_processes, block_pairs)
        print(row, flush=True)
        if pairs:
            wholes.append(whole_row(case.model, pairs))
        within = within and (case.model != "mnist_cnn" or middle <= GOAL)
    if wholes:
        print(
            "\n| model | bare, wall s | wall, hpcml / bare | more, s | bare, CPU s | more, CPU s | step by the clock |"
        )
        print("|---|---:|---:|---:|---:|---:|---:|")
        print("\n".join(wholes))
    taken = f"{block_pairs} pairs of blocks in each of {n_processes} processes"
    print(f"\n{taken}, {len(wholes) and whole_pairs} pairs of trainings, {time.perf_counter() - began:.0f} s")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
