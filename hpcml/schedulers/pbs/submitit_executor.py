"""PBS for submitit: ``submitit.AutoExecutor(folder, cluster="pbs")``, for everybody who has hpcml installed.

submitit finds the class by the entry point ``executor`` of the group ``submitit``. PBS knows no signal before walltime
and no requeue by the user, so functions are not carried on by another job: those of `hpcml.Executor` are.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit.core import core, logger, utils

from hpcml.errors import HpcmlError, NotPrivateError
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.model.pbs import PbsRequest
from hpcml.runs.private import FILE, check, make_folder, make_home, open_file, write_file
from hpcml.schedulers.contract import Answers, Known, Ticket
from hpcml.schedulers.description import JobDraft
from hpcml.schedulers.driver import Driver
from hpcml.schedulers.pbs.scheduler import FIRST_LINES, PBS, submit
from hpcml.schedulers.request import Request

_DEFAULT_TIMEOUT_MIN = 5  # as with submitit's other executors
_UNKNOWN_UNTIL_LOST = 3  # a server that was restarted may not know a job for a moment
_PASSED_ON = ("PYTHONPATH", "LD_LIBRARY_PATH")  # `qsub -V` sends nothing, or crashes, depending on the version
_DRIVER = Driver(scheduler=PBS, submissions=Path("none"))  # a function has a folder of submitit's
_FINAL = frozenset({"COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "CANCELLED", "NOT_FOUND"})


class PbsInfoWatcher(core.InfoWatcher):
    """Asks for the states of all jobs of this process: one qstat for each array, one for some twenty plain jobs.

    States are in Slurm's words, since submitit knows those only: COMPLETED, FAILED, TIMEOUT and so on. A job that PBS
    does not know three times in a row becomes NOT_FOUND.
    """

    def __init__(self, delay_s: int = 30) -> None:
        super().__init__(delay_s)
        self._unknown: dict[str, int] = {}

    def clear(self) -> None:
        """Forget every answer."""
        super().clear()
        self._unknown.clear()

    def update(self) -> None:
        """Ask PBS; where it does not answer, what was known stays known.

        submitit calls it when it needs a state, usually not more often than
        every `delay_s` seconds. A job that ended is not asked for again.
        """
        self._num_calls += 1
        asked = {job_id: _ticket(job_id) for job_id in self._registered - self._finished}
        try:
            answers = _DRIVER.query(list(asked.values()))
        except HpcmlError as error:
            answers = Answers(known={}, unanswered=dict.fromkeys(asked.values(), str(error)))
        for problem in set(answers.unanswered.values()):
            logger.get_logger().warning(f"Call #{self.num_calls} - {problem}; states may be out of date.")
        for job_id, ticket in asked.items():
            if ticket not in answers.unanswered:
                self._take(job_id, answers.known.get(ticket))
        self._last_status_check = time.time()
        self._finished |= {job_id for job_id in asked if self.is_done(job_id, mode="cache")}

    def _take(self, job_id: str, known: Known | None) -> None:
        if known is not None:
            self._unknown.pop(job_id, None)
            self._info_dict[job_id] = {"State": known.state.value, "Reason": known.reason or ""}
            return
        self._unknown[job_id] = self._unknown.get(job_id, 0) + 1
        if self._unknown[job_id] >= _UNKNOWN_UNTIL_LOST:
            self._info_dict[job_id] = {"State": "NOT_FOUND", "Reason": "PBS knows the job no longer"}

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Return the state in Slurm's words, which submitit understands."""
        return self.get_info(job_id, mode=mode).get("State") or "UNKNOWN"

    def _make_command(self) -> list[str] | None:
        return None  # `update` does without


class PbsJob(core.Job[core.R]):
    """A job, or one of an array: its id is ``12`` or, in an array, ``12_3``."""

    _cancel_command = "qdel"
    # submitit wants one watcher for all jobs of a process: state that outlives executors. Tests put a new one here.
    watcher = PbsInfoWatcher(delay_s=30)

    def cancel(self, check: bool = True) -> None:  # noqa: FBT001, FBT002 - submitit's signature
        """Delete the job, leaving a mark first: PBS does not always tell a deleted job from one that failed.

        With *check*, a refusal of PBS is raised as `HpcmlError`; else it is ignored.
        """
        make_folder(self._cancel_mark.parent, parents=True)
        self._cancel_mark.touch(mode=FILE)
        try:
            _DRIVER.cancel([_ticket(self.job_id)])
        except HpcmlError:
            if check:
                raise

    @property
    def state(self) -> str:
        """The state in Slurm's words; a job that was cancelled here and left no result is CANCELLED."""
        state: str = super().state
        cancelled = state in _FINAL and self._cancel_mark.exists() and not self.paths.result_pickle.exists()
        return "CANCELLED" if cancelled else state

    @property
    def _cancel_mark(self) -> Path:
        folder: Path = self.paths.folder
        return folder / f"{self.job_id}_cancelled"


class PbsExecutor(core.PicklingExecutor):
    """Submits functions to PBS Pro or OpenPBS; *python* is the interpreter on the nodes.

    Parameters beyond submitit's own, with the prefix ``pbs_`` in `AutoExecutor`: queue, account, array_parallelism,
    setup (shell lines), dependency, place, chunk (more of the select statement, as "mpiprocs=4"), mail_user, mail_type,
    env (variables), additional_parameters (more options of qsub).

    >>> executor = submitit.AutoExecutor("logs", cluster="pbs")  # doctest: +SKIP
    >>> executor.update_parameters(timeout_min=30, gpus_per_node=1, pbs_queue="gpu")  # doctest: +SKIP
    >>> executor.submit(train, 0.1).result()  # doctest: +SKIP
    """

    job_class = PbsJob

    def __init__(self, folder: Path | str, max_pickle_size_gb: float = 1.0, python: str | None = None) -> None:
        super().__init__(folder, max_num_timeout=0, max_pickle_size_gb=max_pickle_size_gb)
        self.python = shlex.quote(sys.executable) if python is None else python
        self._throttling = 0.0  # PBS takes two hundred submissions a second

    @classmethod
    def affinity(cls) -> int:
        """Tell submitit whether this is a login node of PBS."""
        return -1 if shutil.which("qsub") is None else 2

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        own = "queue account array_parallelism setup dependency place chunk mail_user mail_type env"
        return {*own.split(), "additional_parameters"}

    def _internal_update_parameters(self, **kwargs: Any) -> None:  # noqa: ANN401 - submitit's, without types
        if kwargs.get("tasks_per_node", 1) != 1:
            raise ValueError("tasks_per_node must be 1 on PBS: a job is one process, which may start others")
        super()._internal_update_parameters(**kwargs)

    def _num_tasks(self) -> int:
        return 1

    def _internal_process_submissions(self, delayed_submissions: Sequence[Any]) -> list[core.Job[Any]]:
        self._claim_folder()
        count = len(delayed_submissions)
        pickles: list[Path] = []
        try:
            for delayed in delayed_submissions:
                pickles.append(self._submission_folder / f"{uuid.uuid4().hex}.pkl")
                delayed.set_timeout(self._timeout_min, self.max_num_timeout)
                open_file(pickles[-1], "xb").close()  # for its owner only; who fills it asks for no mode
                delayed.dump(pickles[-1])
                self._require_small(count * pickles[0].stat().st_size)
            number = self._qsub(self._submitit_command_str, count if count > 1 else None)
        except BaseException:
            for path in pickles:
                path.unlink(missing_ok=True)
            raise
        ids = [f"{number}_{index}" for index in range(count)] if count > 1 else [str(number)]
        jobs: list[core.Job[Any]] = [PbsJob(self.folder, job_id) for job_id in ids]
        for job, path in zip(jobs, pickles, strict=True):
            make_folder(job.paths.folder, parents=True)
            job.paths.move_temporary_file(path, "submitted_pickle")
        return jobs

    def _claim_folder(self) -> None:
        """Make the folder, or make sure that nobody else could put there what jobs, and this process, execute."""
        try:
            make_home(self._submission_folder)
            check(self._submission_folder, top=self._submission_folder)
        except (NotPrivateError, OSError) as error:
            raise utils.FailedSubmissionError(str(error)) from error

    def _require_small(self, size_bytes: int) -> None:
        if size_bytes > self.max_pickle_size_gb * 1024**3:
            raise RuntimeError(
                f"the functions and arguments to be pickled take an estimated {size_bytes / 1024**3:.2f} GB: set "
                f"executor.max_pickle_size_gb={self.max_pickle_size_gb:g} to more if that is what you want"
            )

    def _submit_command(self, command: str) -> core.Job[Any]:
        return PbsJob(self.folder, str(self._qsub(command, None)))

    def _qsub(self, command: str, array_size: int | None) -> int:
        """Write the script, submit it, and return the job's number."""
        uid = uuid.uuid4().hex
        script = self._script_path(uid)
        text = self._make_submission_file_text(command, uid)
        write_file(script, text)
        try:
            (full,) = _DRIVER.send(self._draft(uid, array_size), text, os.environ)
        except HpcmlError as error:
            raise utils.FailedSubmissionError(str(error)) from error
        number = _number(full)
        paths = utils.JobPaths(self.folder, job_id=str(number) if array_size is None else f"{number}_0")
        make_folder(paths.folder, parents=True)
        paths.move_temporary_file(script, "submission_file", keep_as_symlink=True)
        return number

    @property
    def _submission_folder(self) -> Path:
        folder: Path = utils.JobPaths.get_first_id_independent_folder(self.folder)
        return folder

    def _script_path(self, uid: str) -> Path:
        return self._submission_folder / f".submission_file_{uid}.sh"

    @property
    def _timeout_min(self) -> float:
        return float(self.parameters.get("timeout_min", _DEFAULT_TIMEOUT_MIN))

    @property
    def _submitit_command_str(self) -> str:
        return f"{self.python} -u -m submitit.core._submit {shlex.quote(str(self.folder))}"

    def _draft(self, uid: str, array_size: int | None) -> JobDraft:
        asked = self.parameters
        request = Request(
            cluster=Cluster(name="pbs", scheduler=SchedulerName.pbs),
            account=asked.get("account"),
            partition=asked.get("queue"),
            qos=None,
            nodes=asked.get("nodes", 1),
            gpus_per_node=asked.get("gpus_per_node") or 0,
            cpus_per_node=asked.get("cpus_per_task", 1),
            mem_mb=round(asked["mem_gb"] * 1024) if asked.get("mem_gb") else None,
            walltime_s=round(self._timeout_min * 60),
            constraint=asked.get("chunk"),
            reservation=None,
            nodelist=None,
            exclude=None,
            exclusive=False,
            dependency=asked.get("dependency"),
            mail_user=asked.get("mail_user"),
            mail_type=asked.get("mail_type"),
            array_parallelism=asked.get("array_parallelism"),
            extra_directives=tuple(asked.get("additional_parameters", ())),
            pbs=PbsRequest(place=asked.get("place")),
        )
        name = PBS.label(f"{asked.get('name', 'submitit')[:200]}-{uid[:8]}")  # qsub takes 230 characters
        folder, script = self._submission_folder, self._script_path(uid)
        return JobDraft(
            request=request, name=name, token=uid, remark="", folder=folder, logs=folder, script=script, command=(),
            array_size=array_size,
        )  # fmt: skip

    def _make_submission_file_text(self, command: str, uid: str) -> str:  # noqa: ARG002 - submitit's signature
        said = self.parameters
        exports = {
            "SUBMITIT_EXECUTOR": "pbs",
            "SUBMITIT_PBS_NUM_NODES": str(said.get("nodes", 1)),
            **_passed_on(os.environ),
            **{name: str(value) for name, value in said.get("env", {}).items()},
        }
        errors = "2>&1" if said.get("stderr_to_stdout") else '2>>"$folder/${id}_0_log.err"'
        return "\n".join(
            [
                "#!/bin/bash",
                *(f"export {name}={shlex.quote(value)}" for name, value in exports.items()),
                "number=${PBS_JOBID%%.*}; number=${number%%[*}",
                "id=$number${PBS_ARRAY_INDEX:+_$PBS_ARRAY_INDEX}",
                "export SUBMITIT_PBS_JOB_ID=$id",
                *FIRST_LINES,
                "umask go-w",  # what is written here is unpickled
                f"folder={_folder_in_bash(self.folder)}",
                f'mkdir -p "$folder"; exec >>"$folder/${{id}}_0_log.out" {errors}',
                *said.get("setup", ()),
                f"exec {command}",
                "",
            ]
        )

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return [*submit(self._draft(uuid.uuid4().hex, None))[:-1], str(submission_file_path)]

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        text = string.decode("utf-8", "replace") if isinstance(string, bytes) else string
        if not (ids := PBS.submitted(text)):
            raise utils.FailedSubmissionError(f"qsub printed no job id: {text!r}")
        return str(_number(ids[-1]))


def _passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in _PASSED_ON if environ.get(name)}


def _ticket(job_id: str) -> Ticket:
    number, _, index = job_id.partition("_")
    return Ticket(scheduler="pbs", job_id=f"{number}[]" if index else number, array_index=int(index) if index else None)


def _number(full: str) -> int:
    number = PBS.number_of(full)
    assert number is not None
    return int(number)


def _folder_in_bash(folder: Path) -> str:
    """Return *folder* as bash reads it, with submitit's placeholders filled in by the job."""
    quoted = "'" + str(folder).replace("'", "'\"'\"'") + "'"
    ids = {"%j": '"$id"', "%A": '"${id%%_*}"', "%a": '"${id##*_}"', "%t": "0"}
    for placeholder, word in ids.items():
        quoted = quoted.replace(placeholder, f"'{word}'")
    return quoted
