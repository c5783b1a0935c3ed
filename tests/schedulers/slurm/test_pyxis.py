"""Runs by pyxis through a real Slurm. Pyxis itself is a double, made from its sources (args.c): never the real one.

The double is an ``srun`` that takes pyxis's options off, hands the rest to the real srun, and enters the image in the
step's task as the plugin would: namespaces, mounts, working directory, and which of two values of a variable wins.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.slurm.account import Account
from tests.images.inside import make_tree
from tests.parts import require
from tests.schedulers.slurm.user import Hpcml, events

pytestmark = pytest.mark.slurm
PROBE = """
echo "node $SLURM_NODEID of $SLURM_JOB_NUM_NODES rank ${RANK:-none} image $OF_IMAGE word $WORD shell ${OF_SHELL:-none}"
echo "cores $(grep Cpus_allowed_list /proc/self/status | cut -f 2) gpus ${CUDA_VISIBLE_DEVICES:-none}"
touch /etc/changed 2>/dev/null && echo changed-the-image
touch $HPCML_RUN_DIR/said-${RANK:-0}; n=0  # a rank that fails ends the others: first all have their say
while [ $n -lt ${WORLD_SIZE:-1} ]; do if [ -e $HPCML_RUN_DIR/said-$n ]; then n=$((n + 1)); else sleep 1; fi; done
touch written-$RANK && test -x /bin/busybox && exit ${STATUS:-0}
"""


@pytest.fixture(scope="module")
def squashfs(account: Account) -> Path:
    """An image of busybox that every node sees."""
    programs = ("/usr/bin/unshare", "/usr/bin/mksquashfs", "/usr/bin/unsquashfs", "/usr/bin/python3", "/bin/busybox")
    missing = [path for path in programs if not Path(path).exists()]
    require("squashfs", f"not installed: {', '.join(missing)}" if missing else None)
    folder = account.new_folder()
    tree = make_tree(folder / "tree")
    (tree / "etc" / "environment").write_text("OF_IMAGE=yes\nWORD=of the image\n")
    options = ["-quiet", "-no-progress", "-all-root"]  # the user of a namespace may give files to nobody else
    subprocess.run(["mksquashfs", tree, folder / "image.sqsh", *options], check=True)
    return folder / "image.sqsh"


@pytest.fixture
def hpcml(slurm: Account, folder: Path) -> Hpcml:
    """A user for whom srun knows pyxis's options."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "srun").symlink_to(slurm.sources / "tests" / "cluster" / "runtimes" / "doubles.py")
    path = f"{programs}:{slurm.environ['PATH']}"
    found = Hpcml(slurm, folder, environ={"HPCML_POLL_INTERVAL_S": "0", "PATH": path, "OF_SHELL": "outside"})
    found.write("probe.sh", PROBE)
    return found


def words(squashfs: Path, *more: str) -> list[str]:
    chosen = ["cluster.container_runtime=pyxis", "+container=sif", f"container.path={squashfs}"]
    return [*chosen, "precision=fp32", "+workload.env.WORD=mine", "workload.command='sh probe.sh'", *more]


def printed(path: str, rank: int) -> list[str]:
    return (Path(path) / "logs" / f"0-rank{rank}.out").read_text().splitlines()


def test_a_program_is_a_step_of_its_job_in_the_image(hpcml: Hpcml, squashfs: Path) -> None:
    hpcml.submit(*words(squashfs, "resources.cpus_per_task=2"))
    (run,) = hpcml.runs_once_ended()

    said = (Path(run["path"]) / "logs" / "0-rank0.err").read_text()
    assert run["state"] == "COMPLETED", (run["reason"], said)
    first, second = printed(run["path"], 0)
    assert first == "node 0 of 1 rank none image yes word mine shell none"
    cores = second.split()[1]
    assert "-" in cores or "," in cores, second  # both of the job's, not one
    (started,) = events(run, "workload_started")
    assert any(word == f"--container-image={squashfs}" for word in started["argv"])
    assert not any("mine" in word for word in started["argv"])


def test_each_node_of_a_job_has_its_own_step_and_a_status_comes_back(hpcml: Hpcml, squashfs: Path) -> None:
    many = ["resources.nodes=2", "resources.partition=qgpu", "resources.gpus_per_node=1", "strategy=ddp"]

    hpcml.submit(*words(squashfs, *many, "+workload.env.STATUS=7"))
    (run,) = hpcml.runs_once_ended()

    lines = [printed(run["path"], rank) for rank in (0, 1)]
    assert (run["state"], run["exit_code"]) == ("FAILED", 7), lines
    for rank in (0, 1):
        assert lines[rank][0] == f"node {rank} of 2 rank {rank} image yes word mine shell none"
        assert lines[rank][1].endswith("gpus 0")


def test_a_cancelled_run_ends_its_step(hpcml: Hpcml, squashfs: Path) -> None:
    hpcml.submit(*words(squashfs)[:-1], "workload.command='sh -c \"echo up; sleep 600\"'")
    hpcml.until(lambda runs: any(path.read_text() for path in Path(runs[0]["path"]).glob("logs/0-rank0.out")))
    (run,) = hpcml.runs()

    done = hpcml("cancel", run["uid"], "-y")

    assert done.returncode == 0, done.stderr
    (ended,) = hpcml.runs_once_ended()
    assert ended["state"] == "CANCELLED"
    steps = hpcml.account.run(["squeue", "--steps", "--noheader"], cwd=hpcml.project).stdout.decode()
    assert str(run["job_id"]) not in steps
