"""Whose turn it is: the runs that the words and the job's environment name, as one of the job's nodes sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.cluster import SchedulerName
from hpcml.errors import HpcmlError
from hpcml.manifest import Manifest, read_manifest, read_raw
from hpcml.rundir import RunDir, run_dir_of

_BATCH_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """The manifests of what this job runs, one after the other."""

    sources: Sequence[Path]
    pack: str | None  # where it is several runs: what tells this job from all others, for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One run whose turn it is."""

    run_dir: RunDir
    source: Path  # run.json, or the manifest of a retry
    manifest: Manifest
    node: int
    pack: str | None

    @property
    def is_local(self) -> bool:
        """Whether no scheduler knows of it; perhaps inside somebody's interactive job."""
        return self.manifest.run.cluster.scheduler is SchedulerName.local


def read_element(words: Sequence[str], environ: Mapping[str, str]) -> Element:
    """Return what *words* name: a run directory, a manifest, or a batch, of which the array index chooses the runs."""
    if len(words) == 1:
        path = Path(words[0]).absolute()
        return Element(sources=[RunDir(path).manifest if path.is_dir() else path], pack=None)
    if len(words) != 2 or words[0] != "--batch":
        raise HpcmlError("usage: python -m hpcml.agent.main RUN_DIR | MANIFEST | --batch FILE")
    path = Path(words[1]).absolute()
    batch = read_raw(path)
    if batch.get("format") != _BATCH_FORMAT:
        raise HpcmlError(f"{path} has format {batch.get('format')!r}; this hpcml reads format {_BATCH_FORMAT}")
    jobs, index = batch.get("jobs"), array_index(environ)
    if not isinstance(jobs, list) or (index is None and len(jobs) != 1) or not 0 <= int(index or 0) < len(jobs):
        raise HpcmlError(f"{path} lists no run for array index {index}")
    sources = [Path(source) for source in jobs[int(index or 0)]]
    # The file lies in a folder that is named after the batch's token.
    return Element(sources=sources, pack=f"{path.parent.name}/{index or 0}" if len(sources) > 1 else None)


def read_turn(source: Path, pack: str | None, environ: Mapping[str, str]) -> Turn:
    """Return the turn of the run that *source* describes."""
    return Turn(
        run_dir=run_dir_of(source), source=source, manifest=read_manifest(source), node=node_of(environ), pack=pack
    )


def node_of(environ: Mapping[str, str]) -> int:
    """Return which of the job's nodes this is: srun numbers its tasks, our PBS script sets the other."""
    return int(environ.get("HPCML_NODE_RANK") or environ.get("SLURM_NODEID") or 0)


def job_of(turn: Turn, environ: Mapping[str, str]) -> dict[str, str | int | None]:
    """Return the scheduler's name for this job: a run may be submitted again by hand, as another one."""
    if turn.is_local:
        return {"job_id": None, "array_index": None, "job_name": None}
    name = environ.get("SLURM_JOB_NAME") or environ.get("PBS_JOBNAME")
    array_id = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("PBS_ARRAY_ID")
    if array_id:
        return {"job_id": array_id, "array_index": int(array_index(environ) or 0), "job_name": name}
    return {"job_id": environ.get("SLURM_JOB_ID") or environ.get("PBS_JOBID"), "array_index": None, "job_name": name}


def array_index(environ: Mapping[str, str]) -> str | None:
    """Return the number of this job within its array."""
    return environ.get("SLURM_ARRAY_TASK_ID") or environ.get("PBS_ARRAY_INDEX")
