import pytest

from hpcml.agent.telemetry.gpus import SHARED, Gpu, find_gpus, gpu_facts, visible_gpus


def gpu(uuid: str, **more: object) -> Gpu:
    known = {"name": "NVIDIA A100", "compute_capability": (8, 0), "memory_mb": 40_960, "driver": "560.35.05"}
    return Gpu(uuid=uuid, **{**known, **more})  # type: ignore[arg-type]


GPUS = [gpu("GPU-aaaa-1"), gpu("GPU-bbbb-2"), gpu("GPU-bbbb-3")]
A, B = gpu("GPU-aa", pci="00000000:1A:00.0", minor=1), gpu("GPU-bb", pci="00000000:3B:00.0", minor=0)
NODE = [B, A]  # NVML's order is not that of the bus
PARTS = [gpu(f"MIG-{name}", board="GPU-dd", instance=(number, 0)) for number, name in enumerate(("11", "12"), start=1)]
DIVIDED = gpu("GPU-dd", pci="00000000:5E:00.0", minor=2, mig_mode=True, instances=PARTS)


@pytest.mark.parametrize(
    ("variable", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("-1", []),
        ("0,-1,1", [0]),
        ("7", []),
        ("0,7,1", [0]),
        ("GPU-aaaa", [0]),
        ("GPU-bbbb-3,GPU-aaaa-1", [2, 0]),
        ("GPU-bbbb", []),  # not unique
        ("nonsense", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(variable: str | None, indices: list[int]) -> None:
    assert visible_gpus(GPUS, variable) == [GPUS[index] for index in indices]


@pytest.mark.parametrize(
    ("variables", "uuids", "source"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, ["GPU-aa"], "CUDA_VISIBLE_DEVICES"),  # the first on the bus, not NVML's first
        ({"CUDA_VISIBLE_DEVICES": "GPU-bb"}, ["GPU-bb"], "CUDA_VISIBLE_DEVICES"),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, ["GPU-bb", "GPU-aa"], "CUDA_VISIBLE_DEVICES"),
        ({"CUDA_VISIBLE_DEVICES": ""}, [], "CUDA_VISIBLE_DEVICES"),  # PBS's hook: no GPU was asked for
        (
            {"CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_JOB_ID": "1"},
            [],
            "CUDA_VISIBLE_DEVICES",
        ),  # Slurm's words for it
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "0"}, ["GPU-aa"], "CUDA_VISIBLE_DEVICES"),
        ({"GPU_DEVICE_ORDINAL": "1", "SLURM_JOB_ID": "1"}, ["GPU-bb"], "GPU_DEVICE_ORDINAL"),
        ({"SLURM_JOB_GPUS": "1", "SLURM_JOB_ID": "1"}, ["GPU-aa"], "SLURM_JOB_GPUS"),  # /dev/nvidia1
        ({"SLURM_STEP_GPUS": "0", "SLURM_JOB_GPUS": "0-1", "SLURM_JOB_ID": "1"}, ["GPU-bb"], "SLURM_STEP_GPUS"),
        ({"SLURM_JOB_GPUS": "0-1", "SLURM_JOB_ID": "1"}, ["GPU-bb", "GPU-aa"], "SLURM_JOB_GPUS"),
        (
            {"SLURM_JOB_GPUS": "6,7", "SLURM_JOB_ID": "1"},
            ["GPU-bb", "GPU-aa"],
            "SLURM_JOB_GPUS",
        ),  # the cgroup shows ours
        ({}, ["GPU-bb", "GPU-aa"], "no job: all shown"),
    ],
)
def test_the_gpus_of_a_run_are_found_by_what_the_job_says(
    variables: dict[str, str], uuids: list[str], source: str
) -> None:
    found = find_gpus(NODE, variables)

    assert ([gpu.uuid for gpu in found.gpus], found.source) == (uuids, source)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"PBS_JOBID": "12.server"}, "2 GPUs are shown, and the job asked for 1"),
        ({"CUDA_VISIBLE_DEVICES": "5"}, "CUDA_VISIBLE_DEVICES=5: 2 GPUs are shown, none of which is number 5"),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "5"}, "no GPU shown is /dev/nvidia5"),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "a100:1"}, "'a100:1' is no id"),
    ],
)
def test_what_nobody_says_is_shared_or_unknown_with_the_reason(variables: dict[str, str], reason: str) -> None:
    found = find_gpus(NODE, variables, expected=1)

    assert found.source == SHARED
    assert not found.is_known
    assert reason in (found.reason or "")


def test_a_job_that_asked_for_as_many_gpus_as_are_shown_has_them_all() -> None:
    found = find_gpus(NODE, {"PBS_JOBID": "12.server"}, expected=2)

    assert (found.source, len(found.gpus)) == ("all shown", 2)


def test_numbers_are_doubtful_among_different_models_unless_cuda_counts_along_the_bus() -> None:
    mixed = [A, gpu("GPU-cc", pci="00000000:3B:00.0", name="NVIDIA T4")]

    assert not find_gpus(mixed, {"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "1"}).is_known
    found = find_gpus(mixed, {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-aa"]


@pytest.mark.parametrize(
    ("variable", "uuids"),
    [
        ("MIG-12", ["MIG-12"]),
        ("MIG-GPU-dd/1/0", ["MIG-11"]),
        ("MIG-GPU-dd/9/0", []),
        ("MIG-1", []),
        ("GPU-dd", ["GPU-dd"]),
    ],
)
def test_mig_instances_are_found_by_their_uuids_old_and_new(variable: str, uuids: list[str]) -> None:
    found = find_gpus([A, DIVIDED], {"CUDA_VISIBLE_DEVICES": variable})

    assert [gpu.uuid for gpu in found.gpus] == uuids


def test_a_number_that_means_a_divided_gpu_is_doubtful() -> None:
    assert not find_gpus([DIVIDED], {"CUDA_VISIBLE_DEVICES": "0"}).is_known


def test_facts_are_flat_and_name_the_gpus_by_uuid() -> None:
    facts = gpu_facts([gpu("GPU-1", cores=6912, power_limit_w=400.0), gpu("GPU-2", cores=6912, power_limit_w=300.0)])

    assert all(isinstance(value, str | int | float) for value in facts.values())
    assert facts["gpu_uuids"] == "GPU-1,GPU-2"
    assert facts["gpu_model"] == "NVIDIA A100"
    assert facts["gpu_sm_count"] == 108  # of an A100
    assert facts["gpu_power_limit_w"] == 300.0
    assert "gpu_compute_mode" not in facts  # nobody has said


def test_a_machine_without_gpus_has_no_gpu_facts() -> None:
    assert gpu_facts([]) == {}
