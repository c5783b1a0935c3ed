"""What becomes of a run whose job warns, stops, shares or loses it: real agents, real programs, real signals."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.agent.node import (
    LEAVES,
    LEAVES_ONCE,
    ON_SLURM,
    WAITS,
    MakeRun,
    Requeue,
    agent,
    agents_of,
    began,
    is_gone,
    start_agent,
    told,
    told_with_attempts,
    wait_for,
)
from tests.cluster.disk.building import build_failing_disk


def test_a_run_that_left_at_a_checkpoint_is_queued_again_under_its_new_name(
    make_run: MakeRun, requeue: Requeue, tmp_path: Path
) -> None:
    run_dir = make_run(LEAVES_ONCE)
    said = {"scheduler": "pbs", "job_id": "12.srv", "array_index": None, "job_name": "x.y"}
    command = requeue(f"echo some words; echo {shlex.quote(json.dumps(said))}")

    first = agent(str(run_dir.path), HPCML_REQUEUE=command)
    second = agent(str(run_dir.path), HPCML_REQUEUE=command)

    assert (first.returncode, second.returncode) == (75, 0)
    (left, done) = told_with_attempts(run_dir, "attempt_ended")
    assert (left[0], left[1]["state"], left[1]["checkpointed"], left[1]["cause"]) == (0, "TIMEOUT", True, "time_limit")
    assert (done[0], done[1]["state"], done[1]["cause"]) == (1, "COMPLETED", None)
    wish, ticket = told_with_attempts(run_dir, "submitted")
    assert wish == (1, {"why": "left at a checkpoint", "by": "agent"})
    assert ticket == (1, {"why": "left at a checkpoint", "by": "agent", **said})
    assert (tmp_path / "asked").read_text() == f"two words {run_dir.manifest}\n"


def test_the_wish_is_written_down_before_the_scheduler_is_asked(
    make_run: MakeRun, requeue: Requeue, tmp_path: Path
) -> None:
    run_dir = make_run(LEAVES)
    journals = shlex.quote(str(run_dir.journals))

    agent(str(run_dir.path), HPCML_REQUEUE=requeue(f'cat {journals}/* > "{tmp_path}/seen"; kill -9 $PPID; exit 1'))

    seen = (tmp_path / "seen").read_text()
    assert '"attempt_ended"' in seen
    assert '"submitted"' in seen
    assert told(run_dir, "submission_failed") == []


def test_on_slurm_the_agent_waits_for_the_end_of_its_job(make_run: MakeRun, requeue: Requeue) -> None:
    run_dir = make_run(LEAVES, *ON_SLURM)
    command = requeue("true")

    process = start_agent(str(run_dir.path), HPCML_REQUEUE=command, SLURM_JOB_ID="4711", SLURM_JOB_NAME="a.b")
    wait_for(lambda: told(run_dir, "submitted"), "the wish to be queued again")
    time.sleep(1)
    waited = process.poll() is None
    process.send_signal(signal.SIGTERM)

    assert waited
    assert process.wait(300) == 75
    assert told(run_dir, "attempt_interrupted") == []
    (started,) = told(run_dir, "attempt_started")
    assert (started["job_id"], started["job_name"], started["pack"]) == ("4711", "a.b", None)


def test_a_scheduler_that_ends_the_job_before_its_answer_has_queued_it(make_run: MakeRun, requeue: Requeue) -> None:
    run_dir = make_run(LEAVES, *ON_SLURM)

    done = agent(str(run_dir.path), HPCML_REQUEUE=requeue("kill -TERM $PPID $$; sleep 5"), SLURM_JOB_ID="4711")

    assert done.returncode == 75
    assert told(run_dir, "submission_failed") == []


def test_requeues_come_to_an_end(make_run: MakeRun, requeue: Requeue) -> None:
    run_dir = make_run(LEAVES, "schedule.max_requeues=2")
    command = requeue("""echo '{"scheduler": "local", "job_id": "1-2", "array_index": 0, "job_name": null}'""")

    statuses = [agent(str(run_dir.path), HPCML_REQUEUE=command).returncode for _ in range(3)]

    assert statuses == [75, 75, 1]
    reasons = [end["reason"] for end in told(run_dir, "attempt_ended")]
    assert reasons[:2] == ["left at a checkpoint"] * 2
    assert "schedule.max_requeues=2 is used up" in reasons[2]


def test_a_job_is_put_back_once_its_other_nodes_have_told_their_ends(
    make_run: MakeRun, requeue: Requeue, tmp_path: Path
) -> None:
    code = (
        "import os, pathlib, sys, time\n"
        "began = pathlib.Path(os.environ['HPCML_RUN_DIR'], 'began')\n"
        "if os.environ['RANK'] == '1': began.touch(), time.sleep(2)\n"
        "while not began.exists(): time.sleep(0.02)\n"
        "sys.exit(75)\n"
    )
    run_dir = make_run(code, *ON_SLURM, "strategy=ddp", "strategy.processes_per_node=1", "resources.nodes=2")
    command = requeue(f'cat {run_dir.journals}/* > "{tmp_path}/seen"; exit 1')

    other = start_agent(str(run_dir.path), HPCML_NODE_RANK="1", SLURM_JOB_ID="1")
    agent(str(run_dir.path), HPCML_REQUEUE=command, HPCML_NODE_RANK="0", SLURM_JOB_ID="1")

    assert other.wait(60) == 0
    assert (tmp_path / "seen").read_text().count('"attempt_ended"') == 2


def test_without_a_queue_it_is_a_timeout_that_names_the_way_on(make_run: MakeRun) -> None:
    run_dir = make_run(LEAVES)

    assert agent(str(run_dir.path)).returncode == 1
    (end,) = told(run_dir, "attempt_ended")
    assert (end["state"], end["checkpointed"]) == ("TIMEOUT", True)
    assert "hpcml retry" in end["reason"]
    assert told(run_dir, "submitted") == []


def test_the_agent_of_another_node_leaves_the_requeue_to_the_first(make_run: MakeRun, requeue: Requeue) -> None:
    run_dir = make_run(LEAVES, *ON_SLURM, "strategy=ddp", "strategy.processes_per_node=1", "resources.nodes=2")

    agent(str(run_dir.path), HPCML_NODE_RANK="0", SLURM_JOB_ID="1")
    done = agent(str(run_dir.path), HPCML_REQUEUE=requeue("true"), HPCML_NODE_RANK="1", SLURM_JOB_ID="1")

    assert done.returncode == 0
    assert [end["checkpointed"] for end in told(run_dir, "attempt_ended")] == [True, True]
    assert told(run_dir, "submitted") == []


@pytest.mark.parametrize(("steps", "attempts"), [("7 7 7", 3), ("7 8 8 8", 4), ("7 7 8 8", 5), ("7 - - 8", 3), ("", 5)])
def test_a_run_that_comes_no_further_is_queued_again_no_more(
    make_run: MakeRun, requeue: Requeue, steps: str, attempts: int
) -> None:
    code = f"""
import os, hpcml_client
run, steps = hpcml_client.connect(), {[None if step == "-" else int(step) for step in steps.split()]}
attempt = int(os.environ["HPCML_ATTEMPT"])
step = steps[min(attempt, len(steps) - 1)] if steps else None
if step is not None:
    run.event("checkpoint", path="/x/c", step=step)
os._exit(75 if attempt < 4 else 0)
"""
    run_dir = make_run(code, "schedule.max_requeues=9")
    command = requeue('echo \'{"scheduler": "pbs", "job_id": "12.srv"}\'')

    statuses = []
    while not statuses or statuses[-1] == 75:
        statuses.append(agent(str(run_dir.path), HPCML_REQUEUE=command).returncode)

    assert len(statuses) == attempts
    end = told(run_dir, "attempt_ended")[-1]
    if attempts < 5:
        assert end["state"] == "TIMEOUT"
        last = max(int(step) for step in steps.split()[:attempts] if step != "-")
        reason = f"it comes no further: no checkpoint behind step {last} since attempt {attempts - 3}"
        assert reason in end["reason"]


def test_a_signal_from_outside_is_for_the_scheduler_to_explain(make_run: MakeRun) -> None:
    run_dir = make_run(WAITS, *ON_SLURM)
    process = start_agent(str(run_dir.path), SLURM_JOB_ID="4711", HPCML_REQUEUE="false")
    wait_for(lambda: began(run_dir), "the program")

    process.send_signal(signal.SIGTERM)

    assert process.wait(300) == 128 + signal.SIGTERM
    (end,) = told(run_dir, "attempt_interrupted")
    assert (end["state"], end["signal"], end["checkpointed"]) == ("CANCELLED", signal.SIGTERM, False)
    assert told(run_dir, "attempt_ended") == []


def test_the_end_is_written_first_since_pbs_kills_before_the_grace_is_over(make_run: MakeRun) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS
    run_dir = make_run(deaf, *ON_SLURM)
    process = start_agent(str(run_dir.path), SLURM_JOB_ID="4711")
    wait_for(lambda: began(run_dir), "the program")

    process.send_signal(signal.SIGTERM)
    wait_for(lambda: bool(told(run_dir, "attempt_ending")), "the end")
    process.kill()

    process.wait(300)
    (end,) = told(run_dir, "attempt_ending")
    assert (end["state"], end["reason"], end["exit_code"]) == ("CANCELLED", "cancelled by SIGTERM", None)
    assert end["wall_s"] > 0
    assert told(run_dir, "attempt_interrupted") == []


def test_a_checkpoint_left_on_preemption_is_kept_in_mind_and_not_queued_by_us(make_run: MakeRun) -> None:
    code = "import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n" + WAITS
    run_dir = make_run(code, *ON_SLURM)
    process = start_agent(str(run_dir.path), SLURM_JOB_ID="4711", HPCML_REQUEUE="false")
    wait_for(lambda: began(run_dir), "the program")

    process.send_signal(signal.SIGTERM)

    assert process.wait(300) == 1
    assert told(run_dir, "attempt_interrupted")[0]["checkpointed"] is True
    assert told(run_dir, "submitted") == []


@pytest.mark.parametrize("scheduler", [(), ON_SLURM])
def test_on_this_machine_or_by_our_own_wish_a_signal_is_a_cancellation(
    make_run: MakeRun, scheduler: tuple[str, ...]
) -> None:
    run_dir = make_run(WAITS, *scheduler)
    process = start_agent(str(run_dir.path))
    wait_for(lambda: began(run_dir), "the program")
    if scheduler:
        run_dir.cancel_mark.touch()

    process.send_signal(signal.SIGTERM)

    process.wait(300)
    (end,) = told(run_dir, "attempt_ended")
    assert (end["state"], end["cause"]) == ("CANCELLED", "cancelled")


def test_the_mark_alone_ends_a_running_program(make_run: MakeRun) -> None:
    run_dir = make_run(WAITS, *ON_SLURM)
    process = start_agent(str(run_dir.path))
    wait_for(lambda: began(run_dir), "the program")

    run_dir.cancel_mark.touch()

    assert process.wait(300) != 0
    assert told(run_dir, "attempt_ended")[0]["state"] == "CANCELLED"


def test_what_is_called_like_the_mark_and_is_no_file_is_none(make_run: MakeRun) -> None:
    run_dir = make_run("pass", *ON_SLURM)
    run_dir.cancel_mark.mkdir()

    assert agent(str(run_dir.path)).returncode == 0

    assert told(run_dir, "attempt_ended")[0]["state"] == "COMPLETED"
    assert run_dir.cancel_mark.is_dir()


@pytest.mark.parametrize("wrap", [None, ["timeout", "600"], ["setsid", "--wait"]], ids=str)
def test_a_killed_agent_takes_its_workload_along(make_run: MakeRun, tmp_path: Path, wrap: list[str] | None) -> None:
    inner = "import os, time; open('pid', 'w').write(str(os.getpid())); os.rename('pid', 'ready'); time.sleep(600)"
    words = ["--home", "/scratch/me/hpcml"]  # a folder, and none of our commands
    behind = f"import subprocess, sys; subprocess.run([*{wrap}, sys.executable, '-c', {inner!r}, *{words}])"
    run_dir = make_run(behind if wrap else inner)
    process = start_agent(str(run_dir.path))
    wait_for((tmp_path / "ready").exists, "the program")
    pid = int((tmp_path / "ready").read_text())

    process.kill()
    process.wait()

    wait_for(lambda: is_gone(pid), "the end of the program")


IN_ANOTHER_JOB = """
import os, subprocess, sys, time
code = "import os, time; open('pid', 'w').write(str(os.getpid())); os.rename('pid', 'other'); time.sleep(600)"
environ = {**os.environ, "SLURM_JOB_ID": "4712"}
subprocess.Popen([sys.executable, "-c", code], env=environ, start_new_session=True)
while not os.path.exists("other"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("job", [{}, {"SLURM_JOB_ID": "4711"}], ids=["on this machine", "in a job"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["ended", "killed"])
def test_a_job_that_the_program_has_submitted_lives_on(
    make_run: MakeRun, tmp_path: Path, job: dict[str, str], *, is_killed: bool
) -> None:
    own = "import os, time; open('pid', 'w').write(str(os.getpid())); os.rename('pid', 'own'); time.sleep(600)"
    start_own = f"subprocess.Popen([sys.executable, '-c', {own!r}], start_new_session=True)\n"
    wait = "while not os.path.exists('own') or os.path.exists('stay'): time.sleep(0.01)\n"
    run_dir = make_run(IN_ANOTHER_JOB + start_own + wait)
    stay = tmp_path / "stay"
    stay.touch()
    process = start_agent(str(run_dir.path), **job)
    wait_for((tmp_path / "own").exists, "the program")
    others, ours = (int((tmp_path / name).read_text()) for name in ("other", "own"))

    if is_killed:
        process.kill()
    else:
        stay.unlink()
    process.wait()

    try:
        wait_for(lambda: is_gone(ours), "the end of what the program has left behind")
        assert not is_gone(others)
    finally:
        os.kill(others, signal.SIGKILL)


def marked(variable: str) -> list[str]:
    """Return the processes that have inherited the variable."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text())
    return found


def test_a_retry_is_carried_out_as_its_own_manifest_says(make_run: MakeRun) -> None:
    run_dir = make_run("import os; print(os.environ['HPCML_CONFIG'])")
    run_dir.retry_manifest(1).parent.mkdir()
    run_dir.retry_manifest(1).write_text(run_dir.manifest.read_text())

    assert agent(str(run_dir.retry_manifest(1))).returncode == 0
    assert run_dir.stdout(0, 0).read_text() == f"{run_dir.retry_manifest(1)}\n"
    assert (run_dir.path / "retries" / "logs").exists() is False


def test_the_ranks_find_what_torchrun_would_set(make_run: MakeRun) -> None:
    names = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK")
    names = (*names, "GROUP_RANK", "HPCML_CLUSTER", "HPCML_REQUEUE")
    code = f"import os; print([os.environ.get(name) for name in {names}])"
    run_dir = make_run(code, *ON_SLURM, "strategy=ddp", "strategy.processes_per_node=2", "resources.nodes=2")
    node = {"HPCML_MASTER_ADDR": "cn1", "SLURM_JOB_ID": "7", "HPCML_REQUEUE": "false"}

    assert agents_of(run_dir, 2, **node) == [0, 0]

    seen = [eval(run_dir.stdout(0, rank).read_text()) for rank in range(4)]  # noqa: S307 - our own print
    ports = {found[1] for found in seen}
    assert len(ports) == 1
    assert 20_000 <= int(ports.pop()) < 30_000
    assert [found[2:8] for found in seen] == [
        ["0", "0", "4", "2", "0", "0"],
        ["1", "1", "4", "2", "0", "0"],
        ["2", "0", "4", "2", "1", "1"],
        ["3", "1", "4", "2", "1", "1"],
    ]
    assert {found[0] for found in seen} == {"cn1"}
    assert {tuple(found[8:]) for found in seen} == {("testslurm", None)}


TWO_NODES = ("strategy=ddp", "strategy.processes_per_node=1", "resources.nodes=2")


@pytest.mark.parametrize(("first", "found"), [("jwb0001", "jwb0001i"), ("cn1.site.org", "cn1i.site.org")])
def test_ranks_meet_at_the_name_that_a_node_has_on_the_fast_network(make_run: MakeRun, first: str, found: str) -> None:
    code = "import os; print(os.environ['MASTER_ADDR'])"
    run_dir = make_run(code, *ON_SLURM, "cluster.rendezvous_suffix=i", *TWO_NODES)

    agents_of(run_dir, 2, SLURM_JOB_ID="7", HPCML_REQUEUE="false", HPCML_MASTER_ADDR=first)

    assert run_dir.stdout(0, 0).read_text().strip() == found


def test_a_rank_whose_connections_broke_off_is_not_the_cause(make_run: MakeRun) -> None:
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "time.sleep(1.0 + int(os.environ['RANK']))\n"
        "if os.environ['RANK'] == '1': sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB')\n"
        "sys.exit('RuntimeError: [/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.1]:28048')\n"
    )
    run_dir = make_run(code, "strategy=ddp", "strategy.processes_per_node=2")

    agent(str(run_dir.path))

    assert told(run_dir, "attempt_ended")[0]["cause"] == "gpu_memory"


_FILLS_ITS_DISK = """
import contextlib, os
with contextlib.suppress(OSError):
    while os.write(1, b"loss 0.5\\n" * 99): pass
os._exit({status})
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs to mount a small disk")
@pytest.mark.parametrize(("status", "state", "told_first"), [(1, "FAILED", "exit status 1; "), (0, "COMPLETED", "")])
def test_a_run_whose_disk_is_full_at_its_end_says_so(
    make_run: MakeRun, status: int, state: str, told_first: str
) -> None:
    """The words that would tell why it failed had no room, nor had the last values of one that takes no notice."""
    run_dir = make_run(_FILLS_ITS_DISK.format(status=status))
    run_dir.logs.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "hpcml-test", str(run_dir.logs)], check=True)
    try:
        agent(str(run_dir.path))
    finally:
        subprocess.run(["umount", "-l", str(run_dir.logs)], check=True)

    (end,) = told(run_dir, "attempt_ended")
    assert (end["state"], end["exit_code"], end.get("cause")) == (state, status, "disk" if status else None)
    assert end["reason"].startswith(
        f"{told_first}no room is left on the disk of {run_dir.logs}: what it printed last may"
    )


@pytest.mark.skipif(
    os.getuid() != 0 or not os.access("/sys/fs/cgroup/memory", os.W_OK), reason="needs a memory cgroup to make"
)
def test_a_rank_that_the_kernel_killed_for_memory_is_out_of_memory(make_run: MakeRun) -> None:
    group = Path("/sys/fs/cgroup/memory") / f"hpcml-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(200 << 20))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    run_dir = make_run("held = bytearray(400 << 20)\nfor at in range(0, len(held), 4096): held[at] = 1")
    inside = f"echo $$ > {group}/cgroup.procs && exec {sys.executable} -m hpcml.agent.main {run_dir.path}"
    try:
        subprocess.run(["bash", "-c", inside], check=False, timeout=60)
        (end,) = told(run_dir, "attempt_ended")
    finally:
        wait_for(lambda: (group / "cgroup.procs").read_text() == "", "the end of the group")
        group.rmdir()

    assert (end["state"], end["cause"], end["signal"]) == ("OUT_OF_MEMORY", "host_memory", signal.SIGKILL)


def test_a_file_system_that_fails_for_a_moment_does_not_end_the_program(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run("import time; time.sleep(2)")
    library = build_failing_disk(tmp_path)

    done = agent(str(run_dir.path), LD_PRELOAD=str(library), FAILS_STAT=str(run_dir.claim(1)))

    assert (done.returncode, done.stderr) == (0, "")
    assert [end["state"] for end in told(run_dir, "attempt_ended")] == ["COMPLETED"]


def test_what_an_agent_cannot_read_at_the_start_is_the_end_that_it_tells(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run("pass")
    library, place = build_failing_disk(tmp_path), run_dir.client_path

    done = agent(str(run_dir.path), LD_PRELOAD=str(library), FAILS_STAT=str(place))

    assert done.returncode == 1
    (end,) = told(run_dir, "attempt_ended")
    why = f"its agent could not carry it out: {place}: Input/output error"
    assert (end["state"], end["reason"], end["cause"]) == ("FAILED", why, "unknown")


def test_an_agent_that_cannot_see_its_run_says_so_in_one_line(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run("pass")

    done = agent(str(run_dir.path), LD_PRELOAD=str(build_failing_disk(tmp_path)), FAILS_STAT=str(run_dir.path))

    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith("hpcml agent: ")


SUSPENDABLE = """
import os, time
open(os.environ['HPCML_RUN_DIR'] + '/began', 'w').close()
until = time.monotonic() + 120
while not os.path.exists(os.environ['HPCML_RUN_DIR'] + '/go') and time.monotonic() < until: time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("left_s", "state"),
    [(9, "COMPLETED"), (3, "TIMEOUT"), (None, "TIMEOUT")],
    ids=["not-counted", "counted", "not-told"],
)
def test_a_job_that_was_suspended_has_the_time_that_its_scheduler_says_is_left(
    make_run: MakeRun, tmp_path: Path, left_s: int | None, state: str
) -> None:
    """Slurm does not count the time for which a job is suspended; the 5 s of this run are over when it wakes."""
    run_dir = make_run(SUSPENDABLE, *ON_SLURM, "resources.walltime=10s", "workload.stop_grace=5")
    ask = tmp_path / "ask"
    ask.write_text(f"#!/bin/sh\necho '{json.dumps({'limit_s': 10, 'left_s': left_s})}'\n")
    ask.chmod(0o755)
    process = start_agent(str(run_dir.path), SLURM_JOB_ID="5", HPCML_TIME_LIMIT=str(ask))
    wait_for(lambda: began(run_dir), "the program")

    process.send_signal(signal.SIGSTOP)
    time.sleep(8)
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: process.poll() is not None or told(run_dir, "time_limit"), "the answer")
    if process.poll() is None:
        time.sleep(1.5)  # in which it would be stopped
        (run_dir.path / "go").touch()

    process.wait(300)
    (end,) = told(run_dir, "attempt_ended")
    assert end["state"] == state
    assert [7 <= limit["suspended_s"] <= 9 for limit in told(run_dir, "time_limit")] == [True] * (state == "COMPLETED")
    assert 7 <= end["stood_still_s"] <= min(9, end["wall_s"])
