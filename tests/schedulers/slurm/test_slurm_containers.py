"""From an image in a registry to metrics with its digest: built, submitted to a real Slurm, and run inside."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.apptainer import registry as registries
from tests.cluster.apptainer.registry import KEY, PATH, Registry
from tests.cluster.slurm.account import Account
from tests.parts import require
from tests.schedulers.slurm.user import Hpcml, events, torch_folder

pytestmark = [pytest.mark.slurm, pytest.mark.apptainer]
LIBRARIES = ("/lib64", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu")
CHECKPOINT = """
import hpcml_client, time
with hpcml_client.connect() as run:
    checkpoints = run.checkpoints()
    found = checkpoints.latest()
    done = int(open(found).read()) if found else 0
    print("from", done, flush=True)
    for step in range(done + 1, 400):
        time.sleep(0.1)
        run.metric("count", step, step=step)
        if done and step > done + 20:
            break
        if checkpoints.asked:
            checkpoints.save(step, lambda path: open(path, "w").write(str(step)))
            checkpoints.leave()
"""


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory, account: Account) -> Path:  # noqa: ARG001 - the cluster runs
    require("Apptainer", registries.missing())
    return registries.make_base(tmp_path_factory.mktemp("base"), words="the base of a run\n")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, layout: Path) -> Iterator[Registry]:
    with registries.running(tmp_path_factory.mktemp("registry"), needs_login=False) as found:
        found.push(layout, "base", "nvidia/pytorch:24.12-py3")
        yield found


@pytest.fixture(scope="module")
def closed_registry(tmp_path_factory: pytest.TempPathFactory, layout: Path) -> Iterator[Registry]:
    with registries.running(tmp_path_factory.mktemp("closed"), needs_login=True) as found:
        found.push(layout, "base", "nvidia/pytorch:24.12-py3")
        yield found


@pytest.fixture
def hpcml(slurm: Account, folder: Path) -> Hpcml:
    places = {"HPCML_IMAGES": str(folder / "images"), "PATH": f"{slurm.python.parent}:{PATH}"}
    return Hpcml(slurm, folder, environ={"HPCML_POLL_INTERVAL_S": "0", "HOME": str(folder / "me"), **places})


def words(registry: Registry, *binds: str) -> list[str]:
    """Return what asks for the image, and brings a Python into it; no tag is named."""
    version = next(Path("/usr/lib").glob("python3.*"), None)
    if version is None or not Path("/usr/bin", version.name).exists():
        pytest.skip("no Python in /usr")
    python = [f"/usr/bin/{version.name}:/bin/python3:ro", f"{version}:{version}:ro", *binds]
    libraries = [f"{path}:{path}:ro" for path in LIBRARIES if Path(path).exists()]
    return [
        "+container=ngc_pytorch",
        f"container.registry={registry.url}",
        f"container.binds=[{','.join([*python, *libraries])}]",
    ]


def images(hpcml: Hpcml) -> list[dict[str, Any]]:
    listed = hpcml("images", "--json")
    assert listed.returncode == 0, listed.stderr
    found: list[dict[str, Any]] = json.loads(listed.stdout)
    return found


def test_a_recipe_runs_in_an_image_that_was_built_for_it(hpcml: Hpcml, registry: Registry) -> None:
    torch = torch_folder(hpcml.account)
    small = ["-m", "model=mnist_mlp", "precision=fp32,amp_bf16", "training.steps=10"]

    submitted = hpcml.submit(
        *words(registry, f"{torch}:/opt/torch:ro"), *small, "+workload.env.PYTHONPATH=/opt/torch", "resources.mem=2G"
    )
    waiting = images(hpcml)
    runs = hpcml.runs_once_ended()

    assert len(submitted) == 2
    assert len(waiting) == 1  # for both
    (image,) = images(hpcml)
    actual = subprocess.run(["sha256sum", image["path"]], capture_output=True, text=True, check=True).stdout.split()[0]
    for run in runs:
        assert run["state"] == "COMPLETED", (run["reason"], hpcml("logs", "--err", run["uid"]).stdout)
        assert run["metrics"]["loss"]["n"] == 10
        assert run["facts"]["image_sha256"] == actual
        assert run["facts"]["image_key"] == image["key"]
        assert run["params"]["container.tag"] == "24.12-py3"  # the last for a V100
        (started,) = events(run, "workload_started")
        assert started["argv"][:2] == ["apptainer", "exec"]
        assert image["path"] in started["argv"]
    assert sorted(image["runs"]) == sorted(run["uid"] for run in runs)


def test_a_run_in_an_image_is_warned_requeued_and_goes_on(hpcml: Hpcml, registry: Registry) -> None:
    program = hpcml.write("count.py", CHECKPOINT)
    hpcml.submit(*words(registry), f"workload.command=python3 {program}")
    (run,) = hpcml.until(lambda runs: (runs[0]["metrics"].get("count") or {"n": 0})["n"] > 5)

    warned = hpcml.account.run(["scancel", "--signal=USR1", "--batch", run["job_id"]], cwd=hpcml.project)

    assert warned.returncode == 0, warned.stderr
    (run,) = hpcml.runs_once_ended()
    assert (run["state"], run["attempt"]) == ("COMPLETED", 1), run["reason"]
    assert (Path(run["path"]) / "logs" / "1-rank0.out").read_text() not in ("", "from 0\n")


def test_an_image_that_nobody_may_build_is_asked_for_by_its_command(hpcml: Hpcml, registry: Registry) -> None:
    refused = hpcml.run(*words(registry), "container.build=never", "workload.command=true")

    said = refused.stderr.decode()
    assert refused.returncode == 2, said
    assert "container.build=never: there is no image of " in said
    assert images(hpcml) == []
    assert hpcml.runs() == []
    command = shlex.split(said.partition("asked for: hpcml ")[2])
    conf = hpcml.account.sources / "tests" / "schedulers" / "slurm" / "conf"
    built = hpcml(command[0], "--config-dir", str(conf), *command[1:])
    assert built.returncode == 0, built.stderr
    assert hpcml.submit(*words(registry), "container.build=never", "workload.command=true")


def test_a_job_builds_the_image_of_later_runs(hpcml: Hpcml, registry: Registry) -> None:
    refused = hpcml.run(*words(registry), "container.build=never", "workload.command=true").stderr.decode()
    command = shlex.split(refused.partition("asked for: hpcml ")[2])
    conf = hpcml.account.sources / "tests" / "schedulers" / "slurm" / "conf"
    hpcml.submit("--", str(hpcml.account.python), "-m", "hpcml", command[0], "--config-dir", str(conf), *command[1:])
    (built,) = hpcml.runs_once_ended()
    assert built["state"] == "COMPLETED", hpcml("logs", built["uid"]).stdout

    hpcml.submit(*words(registry), "container.build=never", "workload.command='test -e /etc/words'")

    assert [run["state"] for run in hpcml.runs_once_ended()] == ["COMPLETED"] * 2


def test_no_job_finds_the_login_of_a_registry(hpcml: Hpcml, closed_registry: Registry) -> None:
    login = {"NGC_API_KEY": KEY, "HPCML_NGC_REGISTRY": closed_registry.host, "OF_MINE": "kept"}

    done = hpcml.run("--json", "workload.command=env", **login)
    (run,) = hpcml.runs_once_ended()

    assert done.returncode == 0, done.stderr
    printed = hpcml("logs", run["uid"]).stdout.decode()
    assert "OF_MINE=kept" in printed
    assert KEY not in printed
    written = [path for path in hpcml.project.rglob("*") if path.is_file()]
    assert not [path for path in written if KEY.encode() in path.read_bytes()]
