"""MIG slices: which there are, which a site has, and what a run on them may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.errors import ConfigError
from hpcml.model.hardware import GpuModel, known_gpus
from hpcml.model.mig import mig_profiles
from hpcml.runs.manifest import Manifest, Provenance
from hpcml.runs.run_json import FORMAT
from hpcml.schedulers.request import request_for
from hpcml.schedulers.slurm import render
from tests.commands.planning import planned_for
from tests.schedulers.slurm.test_slurm_script import draft

NOWHERE = Provenance(command_line=[], submitted_at="", submitted_from="", user="", cwd="", hpcml_version="", python="")
REQUEST = "cluster.gpu_request='--gpus-per-node={gpu_type}:{gpus}'"
NARVAL = ("+cluster=narval", "resources.account=def-me", "workload.command=true", "precision=fp32")


@pytest.mark.parametrize("found", [model for model in known_gpus() if model.mig_instances], ids=lambda each: each.name)
def test_the_profiles_of_every_gpu_with_mig_agree_with_its_data_sheet(found: GpuModel) -> None:
    profiles = mig_profiles(found.name)

    assert max(profile.most for profile in profiles) == found.mig_instances
    assert all(profile.slices * profile.most <= profile.of for profile in profiles)
    assert max(profile.memory_gb for profile in profiles) in found.memory_gb
    assert all(profile.memory_gb * profile.most <= 1.1 * found.memory_gb[0] + profile.most for profile in profiles)


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-16GB", "NVIDIA A40", "NVIDIA L40S", "A100-SXM-64GB (custom)"])
def test_a_gpu_without_known_slices_has_none(name: str) -> None:
    assert mig_profiles(name) == ()


@pytest.mark.parametrize(
    ("name", "smallest"),
    [
        ("NVIDIA A100-SXM4-40GB", "1g.5gb"),
        ("NVIDIA A100 80GB PCIe", "1g.10gb"),
        ("NVIDIA H100 80GB HBM3", "1g.10gb"),
        ("NVIDIA H100 NVL", "1g.12gb"),
        ("NVIDIA GH200 480GB", "1g.12gb"),
        ("NVIDIA H200", "1g.18gb"),
        ("NVIDIA B200", "1g.23gb"),
    ],
)
def test_a_name_as_nvml_writes_it_finds_its_slices(name: str, smallest: str) -> None:
    assert mig_profiles(name)[0].name == smallest


def test_a_slice_is_asked_for_in_the_words_of_the_site(tmp_path: Path) -> None:
    (item,) = planned_for(tmp_path, *NARVAL, "resources.mig=3g.20gb")
    manifest = Manifest(format=FORMAT, uid="u", spec_hash="", run=item.run, plan=item.plan, provenance=NOWHERE)

    script = render(draft(request_for(manifest)))

    assert "#SBATCH --gpus-per-node=a100_3g.20gb:1" in script.splitlines()
    assert item.run.profile_device().name == "A100-SXM4-40GB MIG 3g.20gb"
    assert item.plan.gpus_per_node == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["cluster.mig_type='a100_{mig}'"], "whole GPUs, .*'--gpus-per-node={gpus}' does not say {gpu_type}"),
        (["cluster.mig_type='a100_{mig}'", "cluster.gpu_request=null"], "'--gpus-per-node={gpus}' does not say"),
        (["cluster.mig_type='a100_{mi}'", REQUEST], "'a100_{mi}': only {mig} is filled in"),
    ],
)
def test_a_slice_that_the_scheduler_would_not_hear_of_is_refused(
    tmp_path: Path, settings: list[str], says: str
) -> None:
    words = ["+cluster=slurm", "cluster.gpu_model=A100-SXM4-40GB", *settings, "workload.command=true", "precision=fp32"]

    with pytest.raises(ConfigError, match=says):
        planned_for(tmp_path, *words, "resources.mig=1g.5gb")


@pytest.mark.parametrize(
    "settings",
    [
        ["cluster.mig_type='a100_{mig}'", REQUEST],
        ["cluster.mig_type='a100_{mig}'", "cluster.directives=['--constraint={gpu_type}']"],
        ["cluster.mig_type=slice"],  # of a partition that has slices of one kind and nothing else
    ],
)
def test_a_site_may_say_in_several_ways_which_slice_it_gives(tmp_path: Path, settings: list[str]) -> None:
    words = ["+cluster=slurm", "cluster.gpu_model=A100-SXM4-40GB", *settings, "workload.command=true", "precision=fp32"]

    (item,) = planned_for(tmp_path, *words, "resources.mig=1g.5gb")

    assert item.run.resources.mig == "1g.5gb"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["resources.mig=1g.6gb"],
            "no MIG profile of cluster=narval .*: choose of 1g.5gb, 2g.10gb, 3g.20gb, 4g.20gb",
        ),
        (["resources.mig=7g.40gb"], "choose of 1g.5gb, 2g.10gb"),
        (["resources.mig=1g.5gb", "resources.gpus_per_node=2", "strategy=mirrored"], "a process sees one .CUDA."),
        (["resources.mig=1g.5gb", "resources.gpus_per_node=2", "strategy=ddp"], "NCCL joins none"),
        (["resources.mig=1g.5gb", "resources.nodes=2", "strategy=ddp"], "NCCL joins none"),
        (["resources.mig=1g.5gb", "resources.gpus_per_node=0"], "leave one of them out"),
    ],
)
def test_what_cannot_be_had_of_slices_is_refused_in_one_line(tmp_path: Path, words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        planned_for(tmp_path, *NARVAL, *words)

    assert "\n" not in str(caught.value)


def test_a_site_that_offers_none_and_this_machine_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cluster=karolina offers no MIG slices.*cluster\.mig_type"):
        planned_for(tmp_path, "+cluster=karolina", "resources.account=OPEN-1-1", *NARVAL[2:], "resources.mig=1g.5gb")
    with pytest.raises(ConfigError, match=r"is asked of a scheduler: on this machine set CUDA_VISIBLE_DEVICES"):
        planned_for(tmp_path, *NARVAL[2:], "resources.mig=1g.5gb")


def test_a_run_on_a_slice_is_another_than_one_on_the_gpu_and_old_hashes_stay(tmp_path: Path) -> None:
    (whole,) = planned_for(tmp_path, *NARVAL)
    (part,) = planned_for(tmp_path, *NARVAL, "resources.mig=1g.5gb")

    assert whole.run.spec_hash != part.run.spec_hash
