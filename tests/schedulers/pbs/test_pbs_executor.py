"""submitit on the PBS double: everything a user of submitit knows from other executors."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from submitit.core import utils

from hpcml.schedulers.pbs.submitit_executor import PbsExecutor, PbsJob
from tests.cluster.pbs.double import PbsDouble
from tests.schedulers.pbs.functions import add, die, environment, fail

pytestmark = pytest.mark.usefixtures("plugin")


@pytest.fixture
def executor(tmp_path: Path, pbs: PbsDouble) -> PbsExecutor:  # noqa: ARG001 - it must run
    made = PbsExecutor(tmp_path / "sub it")
    made.update_parameters(name="a test", queue="qgpu", timeout_min=1)
    return made


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not (done := holds()) and time.monotonic() < until:
        time.sleep(0.05)
    return done


def test_a_function_returns_its_result_and_leaves_its_output(executor: PbsExecutor) -> None:
    job = executor.submit(add, 40, 2)

    assert job.result() == 42
    assert "adding 40 2" in (job.stdout() or "")
    assert job.paths.submission_file.exists()
    assert job.job_id == "1"
    assert within(10, lambda: job.get_info()["State"] == "COMPLETED")


def test_an_exception_comes_back_with_its_traceback(executor: PbsExecutor) -> None:
    job = executor.submit(fail)

    with pytest.raises(utils.FailedJobError, match="ZeroDivisionError: on purpose"):
        job.result()
    assert "on purpose" in (job.stderr() or "")


def test_a_process_that_dies_without_a_word_is_reported_with_its_state(executor: PbsExecutor) -> None:
    job = executor.submit(die)
    job._results_timeout_s = 0

    with pytest.raises(utils.UncompletedJobError, match="FAILED"):
        job.result()
    assert "signal 9" in job.get_info()["Reason"]


def test_an_array_keeps_its_order_and_its_limit(executor: PbsExecutor, pbs: PbsDouble) -> None:
    executor.update_parameters(array_parallelism=2)

    jobs = executor.map_array(add, range(5), range(10, 15))

    assert [job.job_id for job in jobs] == [f"1_{index}" for index in range(5)]
    assert [job.result() for job in jobs] == [10, 12, 14, 16, 18]
    (call,) = [words for words in pbs.call_words() if words[0] == "qsub"]
    assert call[call.index("-J") + 1] == "0-4%2"


def test_an_array_of_one_is_a_plain_job_because_pbs_refuses_it(executor: PbsExecutor, pbs: PbsDouble) -> None:
    (job,) = executor.map_array(add, [1], [2])

    assert job.result() == 3
    assert job.job_id == "1"
    assert "-J" not in next(words for words in pbs.call_words() if words[0] == "qsub")


def test_the_states_of_an_array_cost_one_question(executor: PbsExecutor, pbs: PbsDouble) -> None:
    pbs.set(closed=True)
    jobs = executor.map_array(add, range(50), range(50))
    PbsJob.watcher.update()

    assert {job.state for job in jobs} == {"PENDING"}
    assert pbs.calls()["qstat"] <= 2


def test_a_cancelled_job_says_so_and_its_siblings_live(executor: PbsExecutor, pbs: PbsDouble) -> None:
    jobs = executor.map_array(time.sleep, [30, 30, 0])
    assert within(10, lambda: jobs[1].get_info(mode="force").get("State") == "RUNNING")

    jobs[1].cancel()

    assert within(15, lambda: jobs[1].get_info(mode="force")["State"] == "CANCELLED")
    jobs[1]._results_timeout_s = 0
    with pytest.raises(utils.UncompletedJobError, match="CANCELLED"):
        jobs[1].result()
    assert jobs[2].result() is None
    assert jobs[0].state == "RUNNING"
    assert pbs.call_words()[-1] != ["qdel", "1[]"]


def test_cancelling_a_job_that_has_ended_is_no_error(executor: PbsExecutor) -> None:
    job = executor.submit(add, 1, 1)
    job.result()

    assert within(10, lambda: job.get_info(mode="force")["State"] == "COMPLETED")
    job.cancel()

    assert job.state == "COMPLETED"


def test_a_refusal_is_pbs_own_word_and_leaves_no_job(executor: PbsExecutor) -> None:
    executor.update_parameters(queue="nosuch")

    with pytest.raises(utils.FailedSubmissionError, match="PBS refused the job: qsub: Unknown queue"):
        executor.submit(add, 1, 2)


def test_a_job_finds_the_variables_it_was_given_whatever_they_hold(executor: PbsExecutor) -> None:
    odd = {"A": "comma, \"quote\" 'tick' \\ $HOME", "B": '{"json": [1, 2]}', "C": "two\nlines", "D": "ünïcode "}
    executor.update_parameters(env=odd, setup=["export SET_UP='by hand'"])

    found = executor.submit(environment).result()

    assert {name: found[name] for name in odd} == odd
    assert found["SET_UP"] == "by hand"
    assert found["PATH"] == os.environ["PATH"]


def test_a_server_that_is_down_or_hung_does_not_change_what_is_known(executor: PbsExecutor, pbs: PbsDouble) -> None:
    job = executor.submit(time.sleep, 30)
    assert within(10, lambda: job.get_info(mode="force").get("State") == "RUNNING")

    pbs.set(down=["qstat"])

    assert job.get_info(mode="force")["State"] == "RUNNING"
    assert not job.done()


def test_a_forgotten_job_is_lost_only_at_the_third_answer(executor: PbsExecutor, pbs: PbsDouble) -> None:
    job = executor.submit(time.sleep, 30)
    pbs.set(forgotten=[1])

    states = []
    for _ in range(3):
        PbsJob.watcher.update()
        states.append(PbsJob.watcher.get_state(job.job_id, mode="cache"))

    assert states == ["UNKNOWN", "UNKNOWN", "NOT_FOUND"]


def test_folders_by_job_and_folders_beyond_ascii_work(tmp_path: Path, pbs: PbsDouble) -> None:
    executor = PbsExecutor(tmp_path / "ünï 'q' $HOME" / "%A" / "%j")

    jobs = executor.map_array(add, [1, 2], [3, 4])
    single = executor.submit(add, 5, 6)

    assert [job.result() for job in jobs] == [4, 6]
    assert single.result() == 11
    assert jobs[1].paths.stdout.parent == tmp_path / "ünï 'q' $HOME" / "1" / "1_1"
    assert all(words[words.index("-o") + 1] == "/dev/null" for words in pbs.call_words() if words[0] == "qsub")


def test_several_tasks_are_refused_when_they_are_asked_for(executor: PbsExecutor) -> None:
    with pytest.raises(ValueError, match="tasks_per_node must be 1"):
        executor.update_parameters(tasks_per_node=2)


def test_auto_executor_knows_the_cluster_and_its_words(tmp_path: Path, pbs: PbsDouble) -> None:
    program = """
import submitit, sys
executor = submitit.AutoExecutor(sys.argv[1], cluster="pbs", pbs_max_pickle_size_gb=2)
executor.update_parameters(timeout_min=1, gpus_per_node=1, cpus_per_task=2, mem_gb=1, pbs_queue="qgpu",
                           pbs_account="OPEN-1", pbs_additional_parameters=["-p 5"], slurm_partition="ignored")
from submitit.core import plugins
print(plugins.get_executors()["pbs"].affinity(), executor.submit(divmod, 7, 3).result())
try:
    executor.update_parameters(pbs_nonsense=1)
except NameError as error:
    print(str(error).splitlines()[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "auto")], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "2 (2, 1)"
    assert "Unknown argument 'nonsense' for executor 'pbs'" in done.stdout
    (words,) = [words for words in pbs.call_words() if words[0] == "qsub"]
    said = " ".join(words)
    assert "-q qgpu -A OPEN-1 -l select=1:ncpus=2:ngpus=1:mem=1024mb -l walltime=00:01:00" in said
    assert "-p 5 -N submitit-" in said


def test_the_plugin_is_light_to_import() -> None:
    modules = "hpcml.schedulers.pbs.submitit_executor, hpcml.schedulers.pbs.submitit_environment"
    program = f"import sys, {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert not set(done.stdout.split()) & {"numpy", "torch", "psutil", "sqlalchemy", "hydra", "omegaconf", "click"}


@pytest.mark.usefixtures("pbs")
@pytest.mark.parametrize("there", [None, 0o755], ids=["new", "open to readers"])
@pytest.mark.parametrize("place", ["sub it", "sub it/%j"])
def test_nobody_else_may_write_what_is_executed_or_unpickled(tmp_path: Path, there: int | None, place: str) -> None:
    base = tmp_path / "sub it"
    if there is not None:
        base.mkdir()
        base.chmod(there)
    before = os.umask(0o002)
    try:
        executor = PbsExecutor(tmp_path / place)
        jobs = [executor.submit(add, 40, 2), *executor.map_array(add, [1, 2], [3, 4])]
        assert [job.result() for job in jobs] == [42, 4, 6]
    finally:
        os.umask(before)

    left = [path for path in [base, *base.rglob("*")] if not path.is_symlink()]
    assert {path.name for path in left if path.stat().st_mode & 0o022} == set()
    assert base.stat().st_mode & 0o777 == (there or 0o700)
    ours = [path for path in left if path.name.endswith(("_submitted.pkl", "_submission.sh"))]
    assert [oct(path.stat().st_mode & 0o777) for path in ours] == [oct(0o600)] * 5


@pytest.mark.usefixtures("pbs")
def test_a_folder_in_which_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sub it").mkdir()
    (tmp_path / "sub it").chmod(0o775)

    with pytest.raises(utils.FailedSubmissionError, match="sub it may be written by others"):
        PbsExecutor(tmp_path / "sub it").submit(add, 40, 2)

    assert list((tmp_path / "sub it").iterdir()) == []
