"""Runs in images on this machine, with a real Apptainer: what the program finds, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcml.images.cache import Checksums
from tests.cluster.apptainer.registry import PATH, Registry
from tests.cluster.slurm.account import USER, Account
from tests.images.inside import OF_THE_IMAGE, definition, make_tree
from tests.images.user import LONGEST_S, ImageUser, one_line
from tests.images.watching import await_silence, processes_of

pytestmark = pytest.mark.apptainer
_PAGE = Path(__file__).resolve().parents[2] / "docs" / "containers.md"
SWITCHES = ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE")
_AT = ("resources.account=project", "resources.walltime=1h")
LOOK = """
import json, os, sys, hpcml_client
words = {name: os.environ.get(name) for name in (*sys.argv[1:], "RANK", "HPCML_RUN_ID", "PATH", "HPCML_REQUEUE")}
with hpcml_client.connect() as run:
    run.metrics({"loss": 0.5}, step=1)
open("written-here", "w").close()
print(json.dumps({**words, "cwd": os.getcwd(), "image": os.path.exists("/bin/busybox"), "path": sys.path[1]}))
sys.exit(3)
"""
CHECKPOINT = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
open(os.environ["HPCML_RUN_DIR"] + "/ready", "w").close()
while True:
    signal.pause()
"""
DEAF = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["/bin/sleep", "600"])
open(os.environ["HPCML_RUN_DIR"] + "/ready", "w").close()
while True:
    signal.pause()
"""


@pytest.fixture(scope="module")
def image(account: Account) -> Iterator[Path]:
    """An image of Busybox that sets the switches for itself, as NVIDIA's do; it has no Python."""
    folder = account.new_folder()
    make_tree(folder / "tree")
    for path in (folder / "tree", *(folder / "tree").rglob("*")):
        shutil.chown(path, USER, USER) if not path.is_symlink() else None
    (folder / "image.def").write_text(definition(folder / "tree", OF_THE_IMAGE))
    environ = {"PATH": PATH, "HOME": str(folder)}
    built = account.run(["apptainer", "build", "image.sif", "image.def"], cwd=folder, environ=environ)
    assert built.returncode == 0, built.stderr
    yield folder / "image.sif"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def python() -> list[str]:
    """The binds that bring the host's Python into an image; /usr/bin/python3 is its name there."""
    version = next(Path("/usr/lib").glob("python3.*"), None)
    if version is None or not Path("/usr/bin", version.name).exists():
        pytest.skip("no Python in /usr")
    libraries = ("/lib64", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu")
    return [f"{path}:{path}:ro" for path in (*libraries, "/usr/bin", str(version)) if Path(path).exists()]


def write(user: ImageUser, name: str, text: str) -> None:
    user.account.run(["tee", str(user.folder / name)], cwd=user.folder, input=text.encode())


def run(user: ImageUser, image: Path, python: list[str], *words: str, **variables: str) -> dict[str, Any]:
    """Run to the end; return the record of the one run."""
    binds = f"container.binds=[{','.join(python)}]"
    done = user("run", "+container=sif", f"container.path={image}", binds, *words, **variables)
    found = json.loads(user("runs", "--json").stdout)
    assert len(found) == 1, done.stderr
    return {**found[0], "said": done.stderr}


def started(user: ImageUser, image: Path, python: list[str], *words: str) -> tuple[dict[str, Any], Path]:
    """Submit, and return the run and its folder once its program is ready."""
    binds = f"container.binds=[{','.join(python)}]"
    done = user("run", "--json", "--detach", "+container=sif", f"container.path={image}", binds, *words)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    folder = Path(found["path"])
    deadline = time.monotonic() + LONGEST_S
    while not (folder / "ready").exists():
        assert time.monotonic() < deadline, [path.read_text() for path in (folder / "logs").glob("*")]
        time.sleep(0.1)
    return found, folder


def ended(user: ImageUser) -> dict[str, Any]:
    done = user("wait", "--timeout", f"{LONGEST_S}s")
    found = json.loads(user("runs", "--json").stdout)
    assert [run["state"] in ("PENDING", "RUNNING") for run in found] == [False], done.stderr
    record: dict[str, Any] = found[0]
    return record


def agent_of(folder: Path) -> int:
    for path in (folder / "journal").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record.get("n") == "attempt_started":
                return int(record["d"]["pid"])
    raise AssertionError("no agent")


def test_the_program_finds_hpcmls_switches_its_client_and_its_way(
    user: ImageUser, image: Path, python: list[str]
) -> None:
    write(user, "look.py", LOOK)
    link = user.folder / "by another name"
    user.account.run(["mkdir", "hpcml"], cwd=user.folder)
    link.symlink_to("hpcml")
    nasty = "$(id) `id` it's"

    found = run(
        user,
        image,
        python,
        "precision=fp32",
        f"workload.command=/usr/bin/python3 look.py {' '.join(SWITCHES)} OF_THE_HOST OF_MINE NCCL_DEBUG",
        "+workload.env.OF_MINE='mine $HOME'",
        HPCML_HOME=str(link),
        OF_THE_HOST="1",
        NCCL_DEBUG=nasty,
    )

    folder = Path(found["path"])
    assert (found["state"], found["exit_code"]) == ("FAILED", 3), found["said"]
    said = json.loads((folder / "logs" / "0-rank0.out").read_text())
    assert [said[name] for name in SWITCHES] == ["0", "0"]
    assert said["image"]
    assert said["RANK"] is None  # of one process nothing is said
    assert said["HPCML_RUN_ID"] == found["uid"]
    assert said["OF_THE_HOST"] is None
    assert said["HPCML_REQUEUE"] is None
    assert said["NCCL_DEBUG"] == nasty
    assert str(user.account.python.parent) not in said["PATH"]
    assert said["OF_MINE"] == "mine $HOME"
    assert said["path"] == str(link / folder.relative_to(user.folder / "hpcml") / "pythonpath")
    assert found["metrics"]
    assert found["facts"]["image_sha256"] == subprocess.check_output(["sha256sum", image], text=True).split()[0]
    assert Path(said["cwd"], "written-here").exists()


def test_the_warning_reaches_the_program_which_leaves_at_a_checkpoint(
    user: ImageUser, image: Path, python: list[str]
) -> None:
    write(user, "checkpoint.py", CHECKPOINT)
    _, folder = started(
        user, image, python, "workload.command=/usr/bin/python3 checkpoint.py", "schedule.max_requeues=0"
    )

    os.kill(agent_of(folder), signal.SIGUSR1)
    found = ended(user)

    assert (found["state"], found["exit_code"]) == ("TIMEOUT", 75)
    assert "left at a checkpoint" in found["reason"]
    await_silence(user)


def test_a_cancelled_run_leaves_nothing_behind(user: ImageUser, image: Path, python: list[str]) -> None:
    write(user, "deaf.py", DEAF)
    submitted, _ = started(user, image, python, "workload.command=/usr/bin/python3 deaf.py", "workload.stop_grace=1s")
    assert any("sleep 600" in words for words in processes_of(user).values())

    cancelled = user("cancel", "-y", submitted["uid"])
    found = ended(user)

    assert cancelled.returncode == 0, cancelled.stderr
    assert found["state"] == "CANCELLED"
    await_silence(user)


def test_nothing_is_left_of_a_run_whose_agent_is_killed(user: ImageUser, image: Path, python: list[str]) -> None:
    write(user, "deaf.py", DEAF)
    _, folder = started(user, image, python, "workload.command=/usr/bin/python3 deaf.py")

    os.kill(agent_of(folder), signal.SIGKILL)

    await_silence(user)
    assert ended(user)["state"] == "LOST"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["+container=sif", "container.path=/nowhere/a.sif"], "container.path=/nowhere/a.sif does not exist"),
        (["+container=sif", "container.path=/tmp"], "is a folder: choose container=sandbox"),
        (["+container=sif", "container.path=/bin/sh", "container.runtime=singularity"], "there is no singularity"),
        (["+container=sif", "container.path=/bin/sh"], "is no image that Apptainer can start"),
        (
            ["+container=sandbox", "container.path=/usr", "container.binds=['/etc:/tmp']", "workload.cwd=/tmp"],
            "is to show /etc",
        ),
        (["+container=ngc_pytorch", "container.tag=25.01-py3", *_AT, "cluster=barbora"], "24.12 is the last for V100"),
        (["+container=ngc_pytorch", *_AT, "cluster=lumi_g"], "is for GPUs of NVIDIA, and lumi_g has AMD's"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_happens(user: ImageUser, words: list[str], answer: str) -> None:
    done = user("run", *words)

    assert done.returncode == 2, done.stderr
    assert answer in one_line(done)
    assert not (user.folder / "hpcml" / "runs").exists()


def test_an_image_that_is_cut_off_is_refused_before_anything_is_submitted(user: ImageUser, image: Path) -> None:
    part = user.folder / "part.sif"
    part.write_bytes(image.read_bytes()[:-5000])

    done = user("run", "+container=sif", f"container.path={part}", "--", "true")

    assert done.returncode == 2
    assert "part.sif is cut off: 5000 bytes are missing at its end: copy it again" in one_line(done)
    assert not (user.folder / "hpcml" / "runs").exists()


def test_a_run_is_called_after_its_program_and_not_after_what_starts_the_image(user: ImageUser, image: Path) -> None:
    done = user("run", "+container=sif", f"container.path={image}", "--", "echo", "of the program")

    shown = user("show", ended(user)["uid"])

    assert "  echo 'of the program'  COMPLETED" in done.stdout
    rows = dict(line.strip().split(maxsplit=1) for line in shown.stdout.splitlines() if len(line.split()) > 1)
    assert rows["command"] == "echo 'of the program'"
    assert rows["image"] == str(image)


def test_a_folder_is_an_image_too_and_every_rank_finds_its_place(user: ImageUser, image: Path) -> None:
    done = user(
        "run",
        "+container=sandbox",
        f"container.path={image.parent / 'tree'}",
        "container.writable_tmpfs=true",
        "strategy=ddp",
        "strategy.processes_per_node=2",
        "resources.cpus_per_task=1",
        "workload.command=\"sh -c 'echo of $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR && touch /bin/new'\"",
    )

    (found,) = json.loads(user("runs", "--json").stdout)
    said = [(Path(found["path"]) / "logs" / f"0-rank{rank}.out").read_text() for rank in (0, 1)]
    assert found["state"] == "COMPLETED", done.stderr
    assert said == ["of 0 0 2 127.0.0.1\n", "of 1 1 2 127.0.0.1\n"]
    assert found["facts"]["image"] == str(image.parent / "tree")
    assert "image_sha256" not in found["facts"]
    assert not (image.parent / "tree" / "bin" / "new").exists()


@pytest.mark.parametrize("snapshot", ["copy", "none"])
def test_in_an_image_a_run_writes_into_its_own_copy_and_reads_what_is_shared(
    user: ImageUser, image: Path, snapshot: str
) -> None:
    project = user.folder / "hpcml-project"
    user.account.run(["git", "init", "-q", str(project)], cwd=user.folder)
    user.account.run(["mkdir", "data"], cwd=project)
    for name, text in {
        ".gitignore": "small\ndata\n",
        "small": "yours\n",
        "data/numbers": "42\n",
        "look.sh": "pwd; cat small data/numbers; echo own > small; echo x > data/new && echo written || echo refused\n",
    }.items():
        write(user, f"hpcml-project/{name}", text)
    words = [f"workload.cwd={project}", "workload.command=sh look.sh", f"schedule.snapshot={snapshot}"]

    found = run(user, image, [], *words)

    assert found["state"] == "COMPLETED", found["said"]
    where, *said = (Path(found["path"]) / "logs" / "0-rank0.out").read_text().splitlines()
    is_own = snapshot == "copy"
    assert Path(where) == (Path(found["path"]) / "work" / "hpcml-project" if is_own else project)
    assert said == ["yours", "42", "refused" if is_own else "written"]
    assert (Path(where) / "small").read_text() == "own\n"
    assert (project / "small").read_text() == ("yours\n" if is_own else "own\n")


def test_an_image_that_was_changed_is_not_used(user: ImageUser, registry: Registry) -> None:
    assert user.build(registry).returncode == 0
    (listed,) = user.listed()
    path = Path(listed["path"])
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size // 2)
        file.write(b"!")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    done = user("run", *user.build_words(registry), "workload.command=true")

    assert done.returncode == 4, done.stderr
    assert f"image {listed['key'][:12]} has SHA-256" in one_line(done)
    assert not (user.folder / "hpcml" / "runs").exists()


def test_an_image_is_read_once_and_again_when_it_has_changed(user: ImageUser, image: Path) -> None:
    own = user.folder / "own.sif"
    user.account.run(["cp", str(image), str(own)], cwd=user.folder)
    words = ["run", "+container=sif", f"container.path={own}", "workload.command=true"]
    memory = user.folder / "hpcml" / "checksums"

    first = user(*words)  # of a file that is too young to be remembered
    remembered = Checksums(memory, young_s=-1e9).take(own)
    subprocess.run(["chown", "-R", f"{USER}:", memory], check=True)
    second = user(*words)
    status = own.stat()
    with own.open("r+b") as file:
        file.seek(status.st_size - 1)
        file.write(b"!")
    os.utime(own, ns=(status.st_atime_ns, status.st_mtime_ns))
    third = user(*words)

    assert [done.returncode for done in (first, second)] == [0, 0], first.stderr + second.stderr
    assert [f"{own}: checking" in done.stderr for done in (first, second, third)] == [True, False, True]
    runs = json.loads(user("runs", "--json").stdout)
    sums = [run["facts"]["image_sha256"] for run in sorted(runs, key=lambda run: run["uid"])]
    assert sums[:2] == [remembered] * 2
    assert sums[2] == subprocess.check_output(["sha256sum", own], text=True).split()[0] != remembered


def test_an_image_that_is_replaced_before_the_run_starts_is_told_as_what_it_is(user: ImageUser, image: Path) -> None:
    own, other, go = (user.folder / name for name in ("own.sif", "other.sif", "go"))
    for path in (own, other):
        user.account.run(["cp", str(image), str(path)], cwd=user.folder)
    with other.open("ab") as file:
        file.write(b"!")
    first = user("run", "--detach", "--", "sh", "-c", f"while [ ! -e {go} ]; do sleep 0.1; done")
    words = ["+container=sif", f"container.path={own}", "workload.command=true", "resources.dependency=afterany:@1"]
    second = user("run", "--json", "--detach", *words)
    user.account.run(["mv", str(other), str(own)], cwd=user.folder)
    go.touch()
    user("wait", "--timeout", f"{LONGEST_S}s")

    assert [first.returncode, second.returncode] == [0, 0], first.stderr + second.stderr
    (found,) = [run for run in json.loads(user("runs", "--json").stdout) if "image" in run["facts"]]
    before, now = found["facts"]["image_sha256_at_submission"], found["facts"]["image_sha256"]
    assert now == subprocess.check_output(["sha256sum", own], text=True).split()[0]
    assert before == subprocess.check_output(["sha256sum", image], text=True).split()[0] != now


def test_what_an_image_was_made_of_stays_with_the_run_and_a_retry_says_that_it_is_gone(
    user: ImageUser, registry: Registry
) -> None:
    failed = user("run", *user.build_words(registry), "workload.command=false")
    (found,) = json.loads(user("runs", "--json").stdout)
    (listed,) = user.listed()
    removed = user("images", "rm", "-y", listed["key"])

    retried = user("retry", "-y", "--cause", "program", found["uid"])

    assert failed.returncode == 1, failed.stderr
    assert found["state"] == "FAILED"
    assert removed.returncode == 0, removed.stderr
    assert "is gone: submit the run again" in retried.stdout + retried.stderr
    kept = json.loads((Path(found["path"]) / "image.json").read_text())
    for name in ("definition", "sha256", "packages", "base_digest"):
        assert kept[name] == listed[name]
    assert (found["facts"]["image_base"], found["facts"]["image_base_digest"]) == (kept["base"], kept["base_digest"])


def typed() -> list[str]:
    found = re.findall(r"^\$ hpcml (run\b.*)$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [line.partition("#")[0].strip() for line in found]


@pytest.mark.parametrize("line", typed())
def test_every_run_of_the_page_would_be_submitted(user: ImageUser, image: Path, registry: Registry, line: str) -> None:
    places = {"/scratch/me/tensorflow.sif": str(image), "/scratch/me/tensorflow/": str(image.parent / "tree")}
    places |= {
        "/scratch/me/dev": str(image.parent / "tree"),
        "/home/me/project/Dockerfile": f"{user.folder}/Dockerfile",
        "/home/me/project/train.def": f"{user.folder}/train.def",
    }
    words = [re.sub(r"/(scratch|home)/me/.*", lambda match: places[match[0]], word) for word in shlex.split(line)]
    write(user, "train.def", f"Bootstrap: docker\nFrom: {registry.host}/nvidia/pytorch:24.12-py3\n")
    write(user, "Dockerfile", f"FROM {registry.host}/nvidia/pytorch:24.12-py3\nLABEL of=mine\n")
    if (
        "+container=ngc_pytorch" in words and "container.runtime=pyxis" not in words
    ):  # of which there is one release here
        words += [f"container.registry={registry.url}", "container.tag=24.12-py3"]
    write(user, "train.py", "")

    done = user("run", *([] if "-n" in words else ["-n"]), *words[1:])

    assert done.returncode == 0, done.stderr
    assert "image: " in done.stdout
    assert ("exec srun" if "container.runtime=pyxis" in words else "apptainer exec") in done.stdout
