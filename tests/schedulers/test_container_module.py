"""What a job loads: the module of what starts images, where a run is in one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hpcml.model.container import Container, ContainerKind
from hpcml.schedulers.batches import own_batch
from hpcml.schedulers.contract import Job
from hpcml.schedulers.driver import Driver
from hpcml.schedulers.slurm import SLURM
from tests.schedulers.test_batches import jobs_of


def in_image(job: Job, *, modules: list[str]) -> Job:
    run = job.manifest.run
    cluster = replace(run.cluster, modules=modules, container_module="apptainer/1.4")
    container = Container(name="sif", kind=ContainerKind.sif, path="/a.sif")
    return replace(job, manifest=replace(job.manifest, run=replace(run, cluster=cluster, container=container)))


def loaded(submitter: Driver, job: Job) -> list[str]:
    lines = submitter.preview(own_batch(job)).script.splitlines()
    return [line.split()[2] for line in lines if line.startswith("module load")]


def test_the_module_of_the_runtime_is_loaded_once_and_only_for_a_run_in_an_image(tmp_path: Path) -> None:
    submitter = Driver(scheduler=SLURM, submissions=tmp_path / "submissions")
    (plain,) = jobs_of(submitter, tmp_path, "10m")
    boxed = in_image(plain, modules=["git"])
    none = replace(
        boxed, manifest=replace(boxed.manifest, run=replace(boxed.manifest.run, container=Container(name="none")))
    )

    assert loaded(submitter, boxed) == ["git", "apptainer/1.4"]
    assert loaded(submitter, in_image(plain, modules=["apptainer/1.4", "git"])) == ["apptainer/1.4", "git"]
    assert loaded(submitter, none) == ["git"]
