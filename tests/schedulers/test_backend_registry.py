"""A new scheduler is one entry of the registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.errors import SubmissionError
from hpcml.model.cluster import SchedulerName
from hpcml.schedulers.description import Scheduler
from hpcml.schedulers.names import THIS_MACHINE
from hpcml.schedulers.registry import BACKENDS, open_submitter, require_programs

OURS = tuple(name for name in BACKENDS if name != THIS_MACHINE)


def test_every_scheduler_that_a_cluster_can_name_is_registered() -> None:
    assert set(BACKENDS) == {scheduler.name for scheduler in SchedulerName}


@pytest.mark.parametrize("scheduler", OURS)
def test_what_a_profile_and_a_retry_need_to_know_of_a_scheduler_is_said(scheduler: str) -> None:
    backend = BACKENDS[scheduler]

    assert isinstance(backend, Scheduler)
    assert backend.title.casefold() == backend.name == scheduler
    assert backend.gpu_request is not None
    assert "{gpus}" in backend.gpu_request
    assert backend.typed_gpu_request is None or "{gpu_type}" in backend.typed_gpu_request


@pytest.mark.parametrize("scheduler", OURS)
def test_a_submitter_is_opened_without_asking_anything(scheduler: str, tmp_path: Path) -> None:
    assert open_submitter(scheduler, submissions=tmp_path / "none").query([]).calls == 0


def test_a_machine_without_the_programs_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(SubmissionError, match="not on PATH here: qsub, qstat, qdel, qselect"):
        require_programs("pbs", cluster="dgx2")
