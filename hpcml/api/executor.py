"""Functions as recorded runs: ``hpcml.Executor(cluster="karolina")`` is an executor of submitit, on every scheduler.

Each call is a run of ``hpcml run``: its arguments are the settings ``args.NAME``, it has telemetry and is compared as
any run is. Pickles, results and exceptions are submitit's; `hpcml_client.call` is what runs in the job.

    executor = hpcml.Executor(cluster="karolina")
    executor.update_parameters(timeout_min=30, gpus_per_node=1)
    jobs = executor.map_array(train, [0.1, 0.01])  # one job array
    print([job.result() for job in jobs])
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from submitit.core import core, utils

from hpcml.api.store import Store, open_store
from hpcml.api.submission import ComposedRuns, compose
from hpcml.config.compose import Composed, check_told_apart
from hpcml.config.from_python import arguments
from hpcml.errors import ConfigError
from hpcml.model.records import RunRecord
from hpcml.model.secrets import masked
from hpcml.runs.layout import RunDir

_SHARED: Mapping[str, tuple[str, Callable[[Any], object]]] = {  # submitit's words, ours, and how we write the value
    "name": ("experiment", str),
    "timeout_min": ("resources.walltime", lambda minutes: f"{round(minutes * 60)}s"),
    "mem_gb": ("resources.mem", lambda gb: f"{round(gb * 1024)}M"),
    "nodes": ("resources.nodes", int),
    "cpus_per_task": ("resources.cpus_per_task", int),
    "gpus_per_node": ("resources.gpus_per_node", int),
}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_MOST_SHOWN = 80  # characters of an argument that is no number or text
_SEED = "seed"


class _Watcher(core.InfoWatcher):
    """Reads the states of an executor's runs in the store, all at once; what has ended is asked for no more."""

    def __init__(self, store: Store) -> None:
        super().__init__(delay_s=5)
        self._store = store

    def update(self) -> None:
        """Read what the runs have told, and ask their schedulers as `Store.as_completed` does."""
        self._num_calls += 1
        waiting = sorted(self._registered - self._finished)
        with suppress(TimeoutError):  # raised where some go on
            for ended in self._store.as_completed(waiting, timeout_s=0) if waiting else ():
                self._finished.add(ended.uid)
        for record in self._store.runs_named(waiting):
            self._info_dict[record.uid] = {"State": record.state.value, "Reason": record.reason or ""}
        self._last_status_check = time.time()

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Return the state of the run *job_id*."""
        state: str = self.get_info(job_id, "cache" if job_id in self._finished else mode).get("State", "UNKNOWN")
        return state

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Return whether the run has ended and is not being queued again."""
        self.get_state(job_id, mode)
        return job_id in self._finished


class _RunPaths(utils.JobPaths):
    """Where a run has what submitit looks for."""

    @property
    def submitted_pickle(self) -> Path:
        return RunDir(self.folder).call

    @property
    def result_pickle(self) -> Path:
        return RunDir(self.folder).result

    @property
    def submission_file(self) -> Path:
        return RunDir(self.folder).script

    @property
    def stdout(self) -> Path:
        return RunDir(self.folder).stdout(self._attempt, 0)

    @property
    def stderr(self) -> Path:
        return RunDir(self.folder).stderr(self._attempt, 0)

    @property
    def _attempt(self) -> int:
        return max((number for number, _ in RunDir(self.folder).claims()), default=0)


class RunJob(core.Job[core.R]):
    """A call that is a run, whose id is `job_id`: done when the run has ended."""

    def __init__(self, record: RunRecord, store: Store, watcher: _Watcher) -> None:
        self.watcher = watcher
        self._store = store
        super().__init__(record.path, record.uid)
        self._paths = _RunPaths(record.path, record.uid)

    def done(self, force_check: bool = False) -> bool:  # noqa: FBT001, FBT002 - submitit's signature
        """Tell whether the run has ended and is recorded, which is a moment after its result is there."""
        has_result = self.paths.result_pickle.exists()
        return self.watcher.is_done(self.job_id, mode="force" if force_check or has_result else "standard")

    def cancel(self, check: bool = True) -> None:  # noqa: FBT001, FBT002
        """Stop the run, as `Store.cancel` does, which says what went wrong in the log."""
        del check
        self._store.cancel([self.job_id])


class Executor(core.Executor):
    """Submits functions as runs of *cluster*, by default of this machine; jobs are submitit's.

    *words* and *settings* are as for `hpcml.compose`, and so is what `update_parameters` takes besides submitit's own
    name (the experiment), timeout_min, mem_gb, nodes, cpus_per_task and gpus_per_node. *python* is the interpreter in
    the job, which needs submitit. Of several processes, all of which call the function, the first has the result.
    """

    job_class = RunJob

    def __init__(
        self,
        *words: str,
        cluster: str | None = None,
        settings: Mapping[str, object] | None = None,
        store: Store | None = None,
        python: str = sys.executable,
    ) -> None:
        self._store = store or open_store()
        super().__init__(self._store.places.runs, {**({"cluster": cluster} if cluster else {}), **(settings or {})})
        self._words = words
        self._python = python
        self._watcher = _Watcher(self._store)

    def _internal_process_submissions(self, delayed_submissions: Sequence[Any]) -> list[core.Job[Any]]:
        templates: dict[tuple[str, ...], Composed] = {}
        points = [self._point(delayed, templates) for delayed in delayed_submissions]
        check_told_apart([point.run for point in points])
        names = dict.fromkeys(_name(delayed.function) for delayed in delayed_submissions)
        runs = ComposedRuns(points, remarks=(), project=Path.cwd(), command_line=["hpcml.Executor", *names])
        records: dict[bytes, list[RunRecord]] = defaultdict(list)  # equal calls are replicates: each has one of them
        for record in runs.submit(self._store).runs():
            records[RunDir(Path(record.path)).call.read_bytes()].append(record)
        return [RunJob(records[point.call or b""].pop(0), self._store, self._watcher) for point in points]

    def _point(self, delayed: utils.DelayedSubmission, templates: dict[tuple[str, ...], Composed]) -> Composed:
        """Return the run of a call; those of one function are composed once, and differ in what is set on that."""
        name = _name(delayed.function)
        args = _arguments(name, delayed)
        seed = args.pop(_SEED) if args.get(_SEED, "").isdecimal() else None
        words = [f"{key}={{{key}}}" for key in (*args, *([] if seed is None else [_SEED]))]
        program = (self._python, "-m", "hpcml_client.call", name, *words)
        if program not in templates:
            settings = {**self._settings(), **{f"args.{key}": value for key, value in args.items()}}
            (templates[program],) = compose(*self._words, settings=settings, program=program, as_is=True).points
        point = templates[program]
        run = replace(point.run, workload=replace(point.run.workload, args=args))
        typed = [word for word in point.overrides if not word.startswith("args.")]
        typed += [f"args.{key}={value}" for key, value in args.items()]
        if seed is not None:
            run = replace(run, seed=int(seed))
            typed = [*(word for word in typed if not word.startswith(f"{_SEED}=")), f"{_SEED}={seed}"]
        return replace(point, run=run, overrides=tuple(masked(typed)), call=_pickled(name, delayed))

    def _settings(self) -> dict[str, object]:
        settings: dict[str, object] = {}
        for name, value in self.parameters.items():
            if name not in _SHARED:
                settings[name] = value
            elif value is not None:  # as submitit has it: not set
                key, written = _SHARED[name]
                settings[key] = written(value)
        return settings


def _name(function: Callable[..., object]) -> str:
    """Return what *function* is called where it is imported from, without ``__main__``."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}".removeprefix("__main__.")


def _pickled(name: str, delayed: utils.DelayedSubmission) -> bytes:
    try:
        with NamedTemporaryFile() as file:
            delayed.dump(file.name)
            return file.read()
    except Exception as error:  # each class has its own way to refuse
        raise ConfigError(f"{name} or an argument of it cannot be pickled: {' '.join(str(error).split())}") from error


def _arguments(name: str, delayed: utils.DelayedSubmission) -> dict[str, str]:
    """Return the arguments of a call by their names, defaults too, as settings are recorded."""
    try:
        signature = inspect.signature(delayed.function)
    except (ValueError, TypeError):  # of a function that is not written in Python
        return {f"arg{at}": _shown(value) for at, value in enumerate(delayed.args)}
    try:
        bound = signature.bind(*delayed.args, **delayed.kwargs)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from error
    bound.apply_defaults()
    variable = {each.name for each in signature.parameters.values() if each.kind is each.VAR_KEYWORD}
    given = {key: value for key, value in bound.arguments.items() if key not in variable}
    for key in variable:
        given |= bound.arguments[key]
    return {key: _shown(value) for key, value in given.items()}


def _shown(value: object) -> str:
    """Return *value* as it would be typed where it is a number, text or list of them, else what Python prints of it.

    >>> _shown(0.1), _shown(True), _shown([1, 2]), _shown(object())
    ('0.1', 'true', '[1,2]', '<object object>')
    """
    try:
        ((_, (text,)),) = arguments({"args.x": value}, {}).values()
    except ConfigError:
        text = _ADDRESS.sub("", repr(value))
    text = " ".join(text.split())
    if len(text) <= _MOST_SHOWN:
        return text
    return f"{text[:_MOST_SHOWN]}...{hashlib.sha256(text.encode()).hexdigest()[:8]}"  # others begin alike
