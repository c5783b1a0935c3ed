"""The client of a run: what a training program calls to read its settings and to report metrics and events.

>>> run = connect()
>>> run.metrics({"loss": 0.7, "accuracy": 0.5}, step=1)

Outside of a run (started by hand) everything is accepted and nothing is written. See docs/your-own-program.md.
"""

from __future__ import annotations

import atexit
import importlib
import json
import operator
import os
import sys
from collections.abc import Mapping, Sequence
from typing import (
    Any,
    NamedTuple,
    Protocol,
    SupportsFloat,
    cast,
)

from hpcml_client.checkpoint_files import CheckpointFiles
from hpcml_client.checkpoints import Checkpoints
from hpcml_client.journal import JournalWriter

# (rank, world size, local rank) as different launchers say it; all three are taken from the same launcher
_BY_LAUNCHER = (
    # before Slurm's, which inside of mpirun are still those of mpirun itself
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK"),  # PALS
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # Hydra: MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),
    ("PMI_RANK", "PMI_SIZE", ""),  # by a launcher that says no local rank
)
_LAUNCHERS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),  # before RANK, which may be that of horovodrun itself
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    *_BY_LAUNCHER,
)


class Ranks(NamedTuple):
    """The rank of this process, from 0, the number of all processes, and its rank on its own node."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


class Observer(Protocol):
    """What looks at the program while it runs, and raises nothing."""

    def expect_last(self, step: int) -> None:
        """Know which step will be the last one."""

    def close(self) -> None:
        """Report what is not reported yet."""


class Client:
    """The connection of a program to its run: settings to read, metrics, events and checkpoints to report.

    Outside of a run it accepts everything and writes nothing. `config` is the content of run.json ({} outside of a
    run), `run_dir` the run's directory or None. No error of the disk reaches the program.
    """

    def __init__(
        self,
        *,
        journal: JournalWriter | None = None,
        run_dir: str | None = None,
        config: Mapping[str, Any] | None = None,
        precision: str | None = None,
        ranks: Ranks | None = None,
        attempt: int = 0,
    ) -> None:
        self.config: dict[str, Any] = dict(config or {})
        self.run_dir = run_dir
        self.attempt = attempt
        self.rank, self.world_size, self.local_rank = ranks or Ranks()
        self._precision = precision
        self._journal = journal
        self._next_step: dict[str, int] = {}
        self._checkpoints: list[Checkpoints] = []
        self._observers: list[Observer] = []

    @property
    def precision(self) -> str:
        """The precision that the run asks for, by hpcml's name (bf16, tf32 ...); fp32 outside of a run."""
        asked: Mapping[str, Any] = (self.config.get("run") or {}).get("precision") or {}
        return str(self._precision or asked.get("name") or "fp32")

    @property
    def numerics(self) -> str:
        """How the precision is to be computed, as planned: native or emulated; auto outside of a run."""
        plan: Mapping[str, Any] = self.config.get("plan") or {}
        return str(plan.get("numerics") or "auto")

    def metric(self, name: str, value: object, step: int | None = None) -> None:
        """Report one number; without *step* the values of a name are numbered from 0.

        Raises as `metrics` does.
        """
        self.metrics({name: value}, step)

    def metrics(self, values: Mapping[str, object], step: int | None = None) -> None:
        """Report the numbers of one step as one line of the journal.

        A value is whatever ``float()`` takes, tensors of one element too; nan and infinity are kept. Without *step* it
        is the one after the last of these names. Raises `TypeError` for text, bool, several elements or a name that is
        no text, `ValueError` for an empty name.

        >>> connect({}).metrics({"loss": 0.25}, step=10)
        """
        known, is_counted = self._next_step, step is None
        step = max((known.get(name, 0) for name in values), default=0) if step is None else operator.index(step)
        numbers = {}
        for name, value in values.items():
            if name not in known:
                _check_name(name)
            numbers[name] = value if type(value) is float else _as_float(name, value)
            known[name] = step + 1
        if numbers and self._journal is not None:
            self._journal.metrics(step, numbers, is_counted=is_counted)

    def epoch(self, number: int) -> None:
        """Report that epoch *number* begins."""
        self.event("epoch", number=operator.index(number))

    def last_step(self, number: int) -> None:
        """Report which step will be the last one, from which the remaining time is known while the program runs."""
        self.event("training", steps=operator.index(number))
        for observer in self._observers:
            observer.expect_last(operator.index(number))

    def note(self, text: str) -> None:
        """Report a remark for whoever reads the run."""
        self.event("note", text=str(text))

    def artifact(self, path: str | os.PathLike[str], kind: str | None = None) -> None:
        """Report a file that this run made, with its size and SHA-256; raises `FileNotFoundError` where there is none.

        *kind* is a word of your own, e.g. "model".
        """
        name = os.path.abspath(os.fspath(path))
        if not os.path.isfile(name):
            raise FileNotFoundError(f"{name} is no file: write it before it is reported as an artifact")
        import hashlib  # loads OpenSSL, for who asks for a digest alone

        digest = hashlib.sha256()
        size = 0
        with open(name, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
                size += len(block)
        self.event("artifact", path=self.relative(name), kind=kind, bytes=size, sha256=digest.hexdigest())

    def event(self, name: str, /, **details: object) -> None:
        """Report an event with details; values that JSON cannot hold are written as text.

        Raises `TypeError` or `ValueError` for a *name* that is no text or empty.
        """
        _check_name(name)
        if self._journal is not None:
            self._journal.event(name, details)

    def watched_by(self, observer: Observer) -> None:
        """Have *observer* closed before this client is, and told which step is the last one."""
        self._observers.append(observer)

    def apply_precision(self, framework: str | None = None) -> Any:  # noqa: ANN401 - a framework's Arithmetic
        """Set the framework's switches for this run's precision, measure what they do, and report both.

        Returns the `Arithmetic` of the framework ("torch", "tensorflow", "jax" or "numpy"); without *framework* that of
        the run's model, or torch. Where the device was measured to compute in another precision, the program ends with
        one line and status 2; with ``precision.on_mismatch=warn``, or outside of a run, it goes on with that line.
        Raises `ValueError` for an unknown framework, `ModuleNotFoundError` for one that is not installed.
        """
        try:
            proof = importlib.import_module("hpcml_train.precision.proof")
        except ModuleNotFoundError as error:
            if error.name != "hpcml_train":
                raise
            raise ModuleNotFoundError(
                "apply_precision is hpcml's: start the program with hpcml, or pip install hpcml", name=error.name
            ) from None
        return proof.apply_to(self, framework)

    def checkpoints(
        self,
        *,
        every_steps: int | None = None,
        every_s: float | None = None,
        keep: int = 2,
        sharded: bool = False,
        by_hand: str | os.PathLike[str] | None = None,
    ) -> Checkpoints:
        """Catch SIGUSR1 and SIGTERM from now on, and return the object that saves and finds checkpoints.

        They are kept in ``checkpoints/`` of the run directory; outside of a run in the folder *by_hand*, and without
        one they are off. Rank 0 writes them, with *sharded* every rank its own part. The newest *keep* stay. One is due
        after each *every_steps* steps, *every_s* seconds after the last one, and when a signal asks for it.

        Call this early, before torch is imported: a program that does not listen yet is not asked. Raises
        `RuntimeError` outside of the main thread, `ValueError` for a number that is not greater than 0.
        """
        directory = by_hand if self.run_dir is None else os.path.join(self.run_dir, "checkpoints")
        files = None
        if directory is not None:
            files = CheckpointFiles(
                os.fspath(directory),
                attempt=self.attempt,
                rank=self.rank,
                world_size=self.world_size,
                keep=keep,
                sharded=sharded,
            )
        made = Checkpoints(self, files, every_steps=every_steps, every_s=every_s)
        self._checkpoints.append(made)
        return made

    def relative(self, name: str) -> str:
        """Return the path *name* as the journal has it: relative to the run directory if it lies inside."""
        if self.run_dir is not None:
            root = os.path.realpath(self.run_dir)
            real = os.path.realpath(name)
            if os.path.commonpath([root, real]) == root:
                return os.path.relpath(real, root)
        return name

    def sync(self) -> None:
        """Write everything that was reported to the disk now (fdatasync); it is also done every 20 seconds."""
        if self._journal is not None:
            self._journal.sync()

    def close(self) -> None:
        """Write everything to the disk, and restore the signal handlers; also done when the program ends."""
        atexit.unregister(self.close)
        for checkpoints in reversed(self._checkpoints):
            checkpoints.close()
        for observer in self._observers:
            observer.close()
        if self._journal is not None:
            self._journal.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(environ: Mapping[str, str] | None = None) -> Client:
    """Return the client of the run that this process belongs to, by its environment (HPCML_RUN_DIR, HPCML_CONFIG ...).

    *environ* defaults to ``os.environ``; without HPCML_RUN_DIR the client writes nothing. Raises `RuntimeError` where a
    configuration is named but cannot be read (training with defaults would go by its name), `ValueError` for a rank
    that is no integer.

    >>> connect({}).precision
    'fp32'
    """
    env = os.environ if environ is None else environ
    run_dir = env.get("HPCML_RUN_DIR")
    ranks = ranks_of(env)
    config = _read_config(env.get("HPCML_CONFIG"))
    precision = env.get("HPCML_PRECISION")
    attempt = _read_int(env, "HPCML_ATTEMPT", 0)
    if not run_dir:
        return Client(config=config, precision=precision, ranks=ranks)
    journal = JournalWriter.open(
        os.path.join(run_dir, "journal"),
        run=env.get("HPCML_RUN_ID") or os.path.basename(os.path.abspath(run_dir)),
        attempt=attempt,
        writer=f"rank{ranks.rank}",
        closes=_ends_by_itself(),
    )
    client = Client(journal=journal, run_dir=run_dir, config=config, precision=precision, ranks=ranks, attempt=attempt)
    atexit.register(client.close)
    return client


def _ends_by_itself() -> bool:
    """Whether this process runs what is registered for its end; the children of multiprocessing do not."""
    process = sys.modules.get("multiprocessing.process")
    return process is None or process.parent_process() is None


def ranks_by_launcher(env: Mapping[str, str]) -> Ranks | None:
    """Return what an MPI launcher (mpirun, mpiexec, srun, flux run) has told this process in *env*; None: nothing.

    Variables that hpcml or torchrun sets are not looked at. Raises `ValueError` for one that is no integer or no rank.
    """
    return _ranks_by(_BY_LAUNCHER, env)


def ranks_of(env: Mapping[str, str]) -> Ranks:
    """Return which process of how many this is, as whatever launcher says it in *env*."""
    return _ranks_by(_LAUNCHERS, env) or Ranks()


def _ranks_by(launchers: Sequence[tuple[str, str, str]], env: Mapping[str, str]) -> Ranks | None:
    for rank, world_size, local_rank in launchers:
        # PMI_RANK is what several launchers say: which one it is shows in the variable of the local rank
        is_whole = local_rank in env or not local_rank or rank != "PMI_RANK"
        # the script of a job has SLURM_PROCID=0 and the job's SLURM_NTASKS, and is no step: srun has not started it
        is_started = rank != "SLURM_PROCID" or "SLURM_STEP_ID" in env
        if env.get(rank) and is_whole and is_started:
            ranks = Ranks(_read_int(env, rank, 0), _read_int(env, world_size, 1), _read_int(env, local_rank, 0))
            if not 0 <= ranks.rank < ranks.world_size:
                raise ValueError(f"{rank}={ranks.rank} is no rank of {world_size}={ranks.world_size}: set both")
            return ranks
    return None


def _read_int(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name)
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} must be an integer") from None


def _read_config(path: str | None) -> dict[str, Any]:
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError) as error:
        raise RuntimeError(f"HPCML_CONFIG={path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise RuntimeError(f"HPCML_CONFIG={path} is no run.json")  # noqa: TRY004 - the file's fault, not the caller's
    return config


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no name: metrics and events are named by text")
    if not name:
        raise ValueError("a metric or event needs a name")


def _as_float(name: str, value: object) -> float:
    if isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is no measurement: report int({value!r}), or an event")
    if not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"{name}={value!r} is no number")
    detach = getattr(value, "detach", None)  # torch warns about a number taken from what still has its gradient
    if callable(detach):
        value = detach()
    try:
        return float(cast("SupportsFloat", value))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # a tensor of several elements; 10**400
        raise TypeError(f"{name} is no single number that a float can hold: {error}") from error
