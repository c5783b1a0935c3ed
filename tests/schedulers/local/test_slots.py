import multiprocessing
from pathlib import Path

from hpcml.schedulers.local.slots import Need, Pool, claim

POOL = Pool(cores=4, gpus=["GPU-a", "GPU-b"])


def test_a_claim_takes_what_is_free_and_leaves_the_rest(tmp_path: Path) -> None:
    first = claim(Need(cores=2, gpus=1), POOL, tmp_path)
    second = claim(Need(cores=2, gpus=1), POOL, tmp_path)

    assert first is not None
    assert second is not None
    assert [*first.gpus, *second.gpus] == ["GPU-a", "GPU-b"]
    assert claim(Need(cores=1, gpus=0), POOL, tmp_path) is None


def test_a_claim_that_fails_holds_nothing(tmp_path: Path) -> None:
    held = claim(Need(cores=1, gpus=2), POOL, tmp_path)

    assert claim(Need(cores=3, gpus=1), POOL, tmp_path) is None
    assert claim(Need(cores=3, gpus=0), POOL, tmp_path) is not None
    assert held is not None


def test_what_was_released_can_be_claimed_again(tmp_path: Path) -> None:
    held = claim(Need(cores=4, gpus=2), POOL, tmp_path)
    assert held is not None

    held.release()

    assert claim(Need(cores=4, gpus=2), POOL, tmp_path) is not None


def _claim_and_exit(folder: Path) -> None:
    assert claim(Need(cores=4, gpus=0), POOL, folder) is not None


def test_a_process_that_ended_holds_nothing(tmp_path: Path) -> None:
    other = multiprocessing.get_context("spawn").Process(target=_claim_and_exit, args=(tmp_path,))
    other.start()
    other.join()

    assert other.exitcode == 0
    assert claim(Need(cores=4, gpus=0), POOL, tmp_path) is not None


def test_the_folder_of_locks_is_private(tmp_path: Path) -> None:
    claim(Need(cores=1, gpus=0), POOL, tmp_path / "locks")

    assert (tmp_path / "locks").stat().st_mode & 0o077 == 0
