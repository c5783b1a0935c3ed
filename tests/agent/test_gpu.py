import pytest

from hpcml.agent.gpu import Gpu, list_gpus, visible_gpus


def gpu(uuid: str) -> Gpu:
    return Gpu(uuid=uuid, name="NVIDIA A100", compute_capability=(8, 0), memory_mb=40_960, driver="560.35.05")


GPUS = [gpu("GPU-aaaa-1"), gpu("GPU-bbbb-2"), gpu("GPU-bbbb-3")]


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


def test_listing_the_gpus_of_any_machine_works() -> None:
    """Without a driver the list is empty; with one, every device has an identity."""
    assert all(found.uuid.startswith("GPU-") for found in list_gpus())
