import fcntl
import multiprocessing
import os
from pathlib import Path

import pytest

from hpcml.schedulers.local.slots import Claim, Holder, Need, Pool, QueuePlace, claim, find_shortage
from hpcml.schedulers.local.waiting import in_words

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


def test_what_an_earlier_one_waits_for_is_left_free_and_the_rest_is_not(tmp_path: Path) -> None:
    running = claim(Need(cores=2, gpus=2), POOL, tmp_path)
    first, second = QueuePlace(tmp_path, "1"), QueuePlace(tmp_path, "2")
    second.take(Need(cores=1, gpus=0))
    first.take(Need(cores=1, gpus=1))

    assert running is not None
    assert first.needed_before(POOL) == Need(cores=0, gpus=0)
    before = second.needed_before(POOL)
    assert before == Need(cores=1, gpus=1)
    assert claim(Need(cores=2, gpus=0), POOL, tmp_path, left=before) is None
    passing = claim(Need(cores=1, gpus=0), POOL, tmp_path, left=before)
    assert passing is not None
    assert claim(Need(cores=1, gpus=0), POOL, tmp_path, left=before) is None
    running.release()
    assert claim(Need(cores=1, gpus=2), POOL, tmp_path, left=before) is None
    assert claim(Need(cores=1, gpus=1), POOL, tmp_path, left=before) is not None

    first.leave()
    assert second.needed_before(POOL) == Need(cores=0, gpus=0)
    first.take(Need(cores=5, gpus=0))  # more than there is holds up nobody
    assert second.needed_before(POOL) == Need(cores=0, gpus=0)


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


def test_while_something_is_claimed_the_folder_is_locked_against_what_clears_tmp(tmp_path: Path) -> None:
    held, other = _held(Need(cores=1, gpus=0), tmp_path, tmp_path), _held(Need(cores=1, gpus=0), tmp_path, tmp_path)
    folder = os.open(tmp_path, os.O_RDONLY)  # as systemd-tmpfiles does
    held.release()

    with pytest.raises(BlockingIOError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    other.release()
    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert claim(Need(cores=1, gpus=0), POOL, tmp_path) is not None
    os.close(folder)


def test_the_folder_of_locks_is_private(tmp_path: Path) -> None:
    claim(Need(cores=1, gpus=0), POOL, tmp_path / "locks")

    assert (tmp_path / "locks").stat().st_mode & 0o077 == 0


def _held(need: Need, folder: Path, run_dir: Path) -> Claim:
    held = claim(need, POOL, folder)
    assert held is not None
    held.label(run_dir)
    return held


def test_who_waits_learns_what_is_missing_and_who_holds_it(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    locks = tmp_path / "locks"
    assert find_shortage(Need(cores=4, gpus=2), POOL, locks) is None

    _held(Need(cores=2, gpus=0), locks, there / "runs" / "default" / "a")
    held = _held(Need(cores=1, gpus=1), locks, here / "runs" / "default" / "b")
    shortage = find_shortage(Need(cores=3, gpus=2), POOL, locks)

    assert shortage is not None
    assert (shortage.cores, shortage.gpus) == (2, 1)
    assert [holder.run_dir.name for holder in shortage.holders] == ["a", "b"]
    first, second = (holder.since_s for holder in shortage.holders)
    words = in_words(shortage, home=here, now_s=second + 240)
    assert words == f"2 cores and 1 GPU, held by a (home {there}, 4m), b (4m)"
    assert first <= second
    held.release()
    assert find_shortage(Need(cores=2, gpus=2), POOL, locks) is None


def test_a_lock_says_nothing_of_who_held_it_before(tmp_path: Path) -> None:
    _held(Need(cores=4, gpus=0), tmp_path, tmp_path / "runs" / "default" / "before").release()
    again = claim(Need(cores=4, gpus=0), POOL, tmp_path)
    assert again is not None

    shortage = find_shortage(Need(cores=1, gpus=0), POOL, tmp_path)

    assert shortage is not None
    assert shortage.holders == []
    assert in_words(shortage, home=tmp_path, now_s=0.0) == "1 core"


def test_damaged_words_in_a_lock_name_nobody(tmp_path: Path) -> None:
    held = _held(Need(cores=4, gpus=0), tmp_path, tmp_path / "a")
    for number, words in enumerate([b"\xff", b"[]", b'{"run_dir": 1, "since_s": "x"}']):
        os.pwrite(held.files[number], words.ljust(200), 0)

    shortage = find_shortage(Need(cores=1, gpus=0), POOL, tmp_path)

    assert shortage is not None
    assert [holder.run_dir.name for holder in shortage.holders] == ["a"]
    assert isinstance(shortage.holders[0], Holder)
