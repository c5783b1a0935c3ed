"""A run put back into the queue from inside its job: ``python -P -m hpcml.schedulers.requeue SCHEDULER MANIFEST``.

The agent runs this, by the variable HPCML_REQUEUE of the job script, after the workload has left at a checkpoint. Where
the run is another job from then on, what that is called is printed, as one line of JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.manifest import read_manifest
from hpcml.rundir import run_dir_of
from hpcml.schedulers import batches
from hpcml.schedulers.commands import call
from hpcml.schedulers.local_queue import QUEUE_FOLDER, QUEUE_INDEX, TICKET, again_mark
from hpcml.schedulers.submitter import Job, Ticket

_PATIENCE_S = 60.0
_PAUSE_S = 5.0
# What the script and the scheduler told this job of itself: sbatch would hand it on to the next
_OF_THIS_JOB = (
    *("HPCML_REQUEUE", "HPCML_MASTER_ADDR", "HPCML_NODE_RANK", "TMPDIR"),
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
)
_PBS_CONFIGURATION = Path("/etc/pbs.conf")
_PBS_USUAL_PLACE = "/opt/pbs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Put the run of the manifest that the last word names back into the queue; return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        ticket = _put_back(words, dict(os.environ))
    except HpcmlError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    if ticket is not None:
        said = {name: asdict(ticket)[name] for name in ("scheduler", "job_id", "array_index", "job_name")}
        sys.stdout.write(f"{json.dumps(said)}\n")
    return 0


def _put_back(words: Sequence[str], environ: Mapping[str, str]) -> Ticket | None:
    """Return the ticket of the job that carries on, or None where it is this job."""
    is_alone = "--alone" in words
    match [word for word in words if word != "--alone"]:
        case ["slurm", manifest] if is_alone:
            return _sbatch(_job(Path(manifest)))
        case ["slurm", _]:
            _requeue(environ)
            return None
        case ["pbs", manifest]:
            return _qsub(_job(Path(manifest)), environ)
        case ["local", _]:
            return _start_again(environ)
        case _:
            raise HpcmlError("usage: python -m hpcml.schedulers.requeue slurm|pbs|local [--alone] MANIFEST")


def _job(manifest: Path) -> Job:
    retry = int(manifest.stem) if manifest.parent.name == "retries" else 0
    return Job(run_dir=run_dir_of(manifest), manifest=read_manifest(manifest), retry=retry)


def _requeue(environ: Mapping[str, str]) -> None:
    """Have Slurm run this job, or element of an array, once more: it keeps its id, and is killed at once."""
    array, index = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    job_id = f"{array}_{index}" if array and index else environ.get("SLURM_JOB_ID")
    if not job_id:
        raise HpcmlError("this is no job of Slurm: SLURM_JOB_ID is not set")
    from hpcml.schedulers.slurm_query import one_line  # noqa: PLC0415 - as below

    answer = call(["scontrol", "requeue", job_id], timeout_s=_PATIENCE_S)
    if answer.returncode != 0:
        raise SubmissionError(f"scontrol did not requeue job {job_id}: {one_line(answer)}")


def _sbatch(job: Job) -> Ticket:
    """Submit the run's own script: its job runs others too, which have to go on."""
    from hpcml.schedulers.slurm import sbatch, titles_of  # noqa: PLC0415 - submitit, which only this needs, is slow

    for name in _OF_THIS_JOB:
        os.environ.pop(name, None)
    batch = batches.own_batch(job)
    # What the first submission waited for has come true, or is forgotten, which newer Slurms refuse
    more = ["--dependency="] if job.manifest.run.resources.dependency else []
    job_id = sbatch(job.script, batch, patience_s=_PATIENCE_S, pause_s=_PAUSE_S, more=more)
    return Ticket(scheduler="slurm", job_id=job_id, job_name=titles_of(batch).name)


def _qsub(job: Job, environ: Mapping[str, str]) -> Ticket:
    """Submit the run's own script: PBS requeues for operators only, and by no exit status."""
    from hpcml.schedulers import pbs_client  # noqa: PLC0415
    from hpcml.schedulers.pbs import prepare  # noqa: PLC0415
    from hpcml.schedulers.pbs_answers import parse_id  # noqa: PLC0415
    from hpcml.schedulers.pbs_script import LONGEST_NAME, qsub_argv  # noqa: PLC0415

    before = parse_id(environ.get("PBS_JOBID", ""))
    if before is None:
        raise HpcmlError("this is no job of PBS: PBS_JOBID is not set")
    prepared = prepare(Path("unused"), batches.own_batch(job))
    # A name of its own, by which it is found if qsub's answer gets lost: this job, which still runs, has the other
    mark = f"-q{before.number}"
    name = f"{prepared.wanted.name[: LONGEST_NAME - len(mark)]}{mark}"
    wanted = replace(prepared.wanted, name=name, depend=None)
    qsub = find_qsub(environ)
    job_id = pbs_client.submit(
        qsub_argv(qsub, wanted, prepared.script), name=name, qselect=str(Path(qsub).with_name("qselect"))
    )
    return Ticket(scheduler="pbs", job_id=job_id, job_name=name)


def find_qsub(environ: Mapping[str, str], *, configuration: Path = _PBS_CONFIGURATION) -> str:
    """Return where qsub is: a job of PBS has no PATH to speak of."""
    for path in (environ.get("PATH"), environ.get("PBS_O_PATH")):
        if found := shutil.which("qsub", path=path or ""):
            return found
    places = [_PBS_USUAL_PLACE]
    if configuration.is_file():
        lines = (line.partition("=") for line in configuration.read_text(encoding="utf-8").splitlines())
        places = [value.strip() for name, _, value in lines if name.strip() == "PBS_EXEC"] + places
    for place in places:
        if found := shutil.which("qsub", path=f"{place}/bin"):
            return found
    raise SubmissionError(f"there is no qsub on this node: not on PATH, not in {', '.join(places)}")


def _start_again(environ: Mapping[str, str]) -> Ticket:
    """Leave the mark that the queue of this machine looks for when the agent has ended."""
    folder, index = environ.get(QUEUE_FOLDER), environ.get(QUEUE_INDEX)
    if not folder or not index:
        raise HpcmlError("no queue of this machine started this run")
    try:
        job_id = str(json.loads((Path(folder) / TICKET).read_text(encoding="utf-8"))["job_id"])
        again_mark(Path(folder), int(index)).touch()
    except OSError as error:
        raise SubmissionError(f"the queue in {folder} cannot be told: {error.strerror}") from error
    return Ticket(scheduler="local", job_id=job_id, array_index=int(index))


if __name__ == "__main__":
    sys.exit(main())
