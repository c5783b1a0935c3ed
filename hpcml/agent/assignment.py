"""Which runs this job executes, as the agent's arguments and the job's environment name them.

The job script starts the agent with a run directory, a manifest, or ``--batch FILE`` for array jobs and packed jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import HpcmlError
from hpcml.model.cluster import SchedulerName
from hpcml.model.run import Run
from hpcml.runs.layout import RunDir, run_dir_of
from hpcml.runs.manifest import Manifest, read_to_execute
from hpcml.runs.plan import Plan
from hpcml.runs.private import check, check_lent
from hpcml.runs.run_json import read_own
from hpcml_client.journal import JournalWriter

_BATCH_FORMAT = 1
_WAITS_FOR_ROOM_S = 30.0  # on a full disk, for how the attempt ended: without it the run is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """The manifests of the runs that this job, or element of an array job, executes one after the other."""

    sources: Sequence[Path]
    pack: str | None  # where it is several runs: what tells this job from all others, for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One run that the agent is to execute on this node.

    `node` is this node's number in the job, from 0; `pack` names the job where it executes several runs, else None.
    """

    run_dir: RunDir
    source: Path  # run.json, or the manifest of a retry
    manifest: Manifest
    node: int
    pack: str | None

    @property
    def uid(self) -> str:
        """The run's id."""
        return self.manifest.uid

    @property
    def plan(self) -> Plan:
        """What is to be done."""
        return self.manifest.plan

    @property
    def run(self) -> Run:
        """The settings of the run."""
        return self.manifest.run

    @property
    def is_local(self) -> bool:
        """Whether hpcml itself is the scheduler of the run; that may be inside of somebody's interactive job."""
        return self.run.cluster.scheduler is SchedulerName.local

    def open_journal(self, attempt: int) -> JournalWriter:
        """Return the journal of this node's agent for *attempt*."""
        return JournalWriter.open(
            str(self.run_dir.journals),
            run=self.uid,
            attempt=attempt,
            writer="agent" if self.node == 0 else f"agent{self.node}",
            patience_s=_WAITS_FOR_ROOM_S,
        )


def read_element(words: Sequence[str], environ: Mapping[str, str]) -> Element:
    """Return the runs that *words* name: a run directory, a manifest, or a batch file with the job's array index.

    Raises `HpcmlError` for other arguments, an unreadable batch file, or an array index that it does not list, and
    `NotPrivateError` for a batch file that another user could have written.
    """
    if len(words) == 1:
        path = Path(words[0]).absolute()
        return Element(sources=[RunDir(path).manifest if path.is_dir() else path], pack=None)
    if len(words) != 2 or words[0] != "--batch":
        raise HpcmlError("usage: python -m hpcml.agent.main RUN_DIR | MANIFEST | --batch FILE")
    path = Path(words[1]).absolute()
    batch = read_own(path)
    if batch.get("format") != _BATCH_FORMAT:
        raise HpcmlError(f"{path} has format {batch.get('format')!r}; this hpcml reads format {_BATCH_FORMAT}")
    jobs, index = batch.get("jobs"), environ.get("HPCML_PACK") or array_index(environ)
    if not isinstance(jobs, list) or (index is None and len(jobs) != 1) or not 0 <= int(index or 0) < len(jobs):
        raise HpcmlError(f"{path} lists no run for array index {index}")
    sources = [Path(source) for source in jobs[int(index or 0)]]
    # The file lies in a folder that is named after the batch's token.
    pack = f"{path.parent.name}/{index or 0}" if len(sources) > 1 else None
    return Element(sources=sources, pack=pack)


def read_turn(source: Path, pack: str | None, environ: Mapping[str, str]) -> Turn:
    """Return the run of the manifest *source* as a turn of this node.

    Raises `HpcmlError` where the manifest cannot be read, or has a format that this hpcml does not know, and
    `NotPrivateError` where another user could have written it, or the code or the image that it names.
    """
    manifest = read_to_execute(source)
    image, code = manifest.plan.image, manifest.provenance.code
    if code is not None:
        check(Path(code), top=Path(code).parent.parent)  # HOME/code/DIGEST
    if image is not None and image.key is not None:
        check_lent(Path(image.path))
    is_local = manifest.run.cluster.scheduler is SchedulerName.local  # perhaps within somebody's job of several nodes
    node = 0 if is_local else node_of(environ)
    return Turn(run_dir=run_dir_of(source), source=source, manifest=manifest, node=node, pack=pack)


def node_of(environ: Mapping[str, str]) -> int:
    """Return the number of this node in the job, from 0: by our job script, srun (SLURM_NODEID), or IBM's jsrun."""
    return int(environ.get("HPCML_NODE_RANK") or environ.get("SLURM_NODEID") or environ.get("JSM_NAMESPACE_RANK") or 0)


def job_of(turn: Turn, environ: Mapping[str, str]) -> dict[str, str | int | None]:
    """Return the job's id, array index and name as the scheduler's variables give them, as details of an event.

    They are read here and not taken from the submission, since a job script may be submitted again by hand. All are
    None for local runs.

    The scripts of all schedulers but Slurm and PBS say it in words of ours: HPCML_JOB_ID, HPCML_JOB_NAME, and in an
    array HPCML_ARRAY_INDEX, which the scheduler counts as it likes, and HPCML_PACK, the place in the batch file.
    """
    if turn.is_local:
        return {"job_id": None, "array_index": None, "job_name": None}
    if "HPCML_JOB_ID" in environ:
        index = environ.get("HPCML_ARRAY_INDEX")
        name = environ.get("HPCML_JOB_NAME")
        return {"job_id": environ["HPCML_JOB_ID"], "array_index": int(index) if index else None, "job_name": name}
    name = environ.get("SLURM_JOB_NAME") or environ.get("PBS_JOBNAME")
    sent_to = environ.get("HPCML_JOB_CLUSTER")  # by our script, where it names clusters
    told = {"job_name": name, **({"job_cluster": sent_to} if sent_to else {})}
    array_id = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("PBS_ARRAY_ID")
    if array_id:
        return {"job_id": array_id, "array_index": int(array_index(environ) or 0), **told}
    return {"job_id": environ.get("SLURM_JOB_ID") or environ.get("PBS_JOBID"), "array_index": None, **told}


def job_start_of(environ: Mapping[str, str]) -> str:
    """Return what tells this start of the job from an earlier one under the same id; the same on all of its nodes.

    Our scripts draw it, that of PBS on several nodes only; Slurm counts restarts (SLURM_RESTART_COUNT, absent in the
    first).
    """
    return environ.get("HPCML_JOB_START") or environ.get("SLURM_RESTART_COUNT") or ""


def array_index(environ: Mapping[str, str]) -> str | None:
    """Return the index of this job within its array job, as text; None outside of one.

    Slurm sets SLURM_ARRAY_TASK_ID, PBS sets PBS_ARRAY_INDEX.
    """
    return environ.get("SLURM_ARRAY_TASK_ID") or environ.get("PBS_ARRAY_INDEX")
