from __future__ import annotations

import os
import pwd
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.images.command import (
    RUNTIME_ENVIRONMENT,
    exec_argv,
    wrapped,
)
from hpcml.model.container import Bind, ContainerGpu
from hpcml.model.precision import PrecisionName, environment
from hpcml.runs.journal import Metrics, read_journal
from tests.cluster.slurm.account import USER, Account
from tests.images.inside import (
    OF_THE_IMAGE,
    Inside,
    bind,
    definition,
    make_archive,
    make_tree,
    prefixed,
    session,
    wait_for,
)
from tests.images.user import LONGEST_S

TF32 = environment(PrecisionName.tf32)
FP32 = environment(PrecisionName.fp32)
NASTY = 'it\'s "q" $HOME `id` $(id) \\ \\\\ ; & | a=b \t é'
PRINT_VALUE = ("sh", "-c", 'printf "%s\\n" "$VALUE"')
SHOW = "for n in NVIDIA_TF32_OVERRIDE TORCH_ALLOW_TF32_CUBLAS_OVERRIDE; do eval echo \\${$n-unset}; done"


# A real Apptainer


@pytest.fixture(scope="module")
def tree(account: Account) -> Iterator[Path]:
    folder = account.new_folder()
    make_tree(folder / "tree")
    for path in (folder / "tree", *(folder / "tree").rglob("*")):
        shutil.chown(path, USER, USER) if not path.is_symlink() else None
    yield folder / "tree"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module", params=["%environment", "ENV"])
def inside(
    request: pytest.FixtureRequest, account: Account, tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Inside]:
    """An image that sets the switches itself: in its definition, or as a registry's image does."""
    folder = account.new_folder()
    user = Inside(account=account, folder=folder, image=folder / "image.sif")
    if request.param == "ENV":
        archive = make_archive(tree, tmp_path_factory.mktemp("oci"), OF_THE_IMAGE)
        shutil.copy(archive, folder / "oci.tar")
        base = f"oci-archive://{folder / 'oci.tar'}"
    else:
        (folder / "image.def").write_text(definition(tree, OF_THE_IMAGE))
        base = str(folder / "image.def")
    built = user(["apptainer", "build", str(user.image), base])
    assert built.returncode == 0, built.stderr
    yield user
    user.end_all()
    shutil.rmtree(folder, ignore_errors=True)


def words(inside: Inside, *command: str, **more: object) -> list[str]:
    return [*exec_argv(str(inside.image), "apptainer", **more), *command]  # type: ignore[arg-type]


real = pytest.mark.apptainer


@real
def test_the_image_sets_the_switches_and_the_hosts_environment_does_not_help(inside: Inside) -> None:
    said = inside(words(inside, "sh", "-c", SHOW, cleanenv=False), TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="0")

    assert said.stdout.split() == ["1", "1"]


@real
@pytest.mark.parametrize(("switches", "seen"), [(FP32, ["0", "0"]), (TF32, ["unset", "1"])])
def test_each_arm_has_its_switches_whatever_the_image_says(
    inside: Inside, switches: dict[str, str | None], seen: list[str]
) -> None:
    said = inside(words(inside, *wrapped(["sh", "-c", SHOW], switches)))

    assert said.stdout.split() == seen


@real
def test_the_prefix_overrules_the_image_but_cannot_unset(inside: Inside) -> None:
    said = inside(
        words(inside, "sh", "-c", SHOW),
        **prefixed({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0", "NVIDIA_TF32_OVERRIDE": ""}),
    )

    assert said.stdout.splitlines() == ["", "0"]
    assert said.stderr == ""  # both prefixes agree: no warning in the workload's log


@real
@pytest.mark.parametrize("way", ["prefix", "shell"])
def test_a_value_arrives_as_it_is(inside: Inside, way: str) -> None:
    value = NASTY + "\nsecond line"
    if way == "prefix":
        argv = words(inside, *PRINT_VALUE)
        said = inside(argv, **prefixed({"VALUE": value}), **RUNTIME_ENVIRONMENT)
    else:
        said = inside(words(inside, *wrapped([*PRINT_VALUE], {"VALUE": value})))

    assert said.stdout == value + "\n"


@real
def test_the_words_of_a_command_arrive_as_they_are(inside: Inside) -> None:
    said = inside(words(inside, *wrapped(["printf", "<%s>", NASTY, "", "a b", "-x"], FP32)))

    assert said.stdout == f"<{NASTY}><><a b><-x>"


@real
def test_python_finds_ours_first_then_the_images_and_nothing_of_the_users_home(inside: Inside) -> None:
    argv = words(
        inside, *wrapped(["sh", "-c", "echo $PYTHONPATH $PYTHONNOUSERSITE"], {}, python_path=["/run dir", "/b"])
    )

    assert inside(argv, PYTHONPATH="/of/the/host").stdout == "/run dir:/b:/of/the/image 1\n"


@real
def test_the_hosts_environment_stays_outside(inside: Inside) -> None:
    said = inside(words(inside, "env"), LD_PRELOAD="", MINE="x", LD_LIBRARY_PATH="/host", SLURM_JOB_ID="1")

    assert not {"MINE", "SLURM_JOB_ID"} & {line.partition("=")[0] for line in said.stdout.splitlines()}
    assert "/host" not in said.stdout


@real
def test_the_users_library_path_does_not_hide_the_drivers(inside: Inside) -> None:
    said = inside(
        words(inside, "sh", "-c", "echo $LD_LIBRARY_PATH", gpu=ContainerGpu.nv),
        **prefixed({"LD_LIBRARY_PATH": "/mine"}),
    )

    assert said.stdout == "/mine:/.singularity.d/libs\n"


@real
def test_secrets_can_come_from_a_file(inside: Inside) -> None:
    keys = inside.folder / "keys"
    keys.write_text("WANDB_API_KEY=hidden\n")
    shutil.chown(keys, USER, USER)
    keys.chmod(0o600)

    said = inside(words(inside, *wrapped(["sh", "-c", "echo $WANDB_API_KEY"], FP32), options=[f"--env-file={keys}"]))

    assert said.stdout == "hidden\n"


@real
@pytest.mark.parametrize("name", ["plain", "a b", "a,b", "a:b", 'a"b', "a$HOME", "a\\b", "é"])
def test_a_folder_of_any_name_is_bound(inside: Inside, name: str) -> None:
    folder = inside.folder / "mnt" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "file").write_text("here")

    said = inside(words(inside, "cat", "/deep/within/file", binds=[bind(str(folder), "/deep/within", read_only=True)]))

    assert (said.stdout, said.returncode) == ("here", 0), said.stderr


@real
def test_the_program_starts_where_it_should_and_writes_where_it_may(inside: Inside) -> None:
    work = inside.folder / "my work"
    work.mkdir(exist_ok=True)
    shutil.chown(work, USER, USER)
    script = "pwd; echo x > made; touch /in-the-image && echo yes || echo no"

    refused = inside(words(inside, "sh", "-c", script, binds=[bind(str(work))], cwd=str(work)))
    allowed = inside(words(inside, "sh", "-c", script, binds=[bind(str(work))], cwd=str(work), writable_tmpfs=True))

    assert refused.stdout.splitlines() == [str(work), "no"]
    assert allowed.stdout.splitlines() == [str(work), "yes"]
    assert (work / "made").read_text() == "x\n"


@real
def test_an_unpacked_image_is_an_image_too(inside: Inside, tree: Path) -> None:
    argv = exec_argv(str(tree), "apptainer")

    assert inside([*argv, *wrapped(["sh", "-c", SHOW], FP32)]).stdout.split() == ["0", "0"]


@real
def test_the_users_home_is_there_unless_an_option_says_otherwise(inside: Inside) -> None:
    home = pwd.getpwnam(USER).pw_dir
    look = ["sh", "-c", f"test -d {home} && echo there || echo away"]

    assert inside(words(inside, *look), HOME=home).stdout == "there\n"
    assert inside(words(inside, *look, options=["--no-home"]), HOME=home).stdout == "away\n"


# Signals and how it ended


@real
@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 42", 42), ("exit 75", 75), ("exit 255", 255), ("nosuchprogram", 127)]
    + [(f"kill -{name} $$", -getattr(signal, f"SIG{name}")) for name in ("KILL", "TERM", "USR1", "SEGV")],
)
def test_the_programs_end_is_the_end_that_is_seen(inside: Inside, script: str, code: int) -> None:
    assert inside(words(inside, *wrapped(["sh", "-c", script], FP32))).returncode == code


@real
def test_a_program_that_is_not_in_the_image_is_a_shells_127(inside: Inside) -> None:
    said = inside(words(inside, *wrapped(["nosuchprogram"], FP32)))

    assert said.returncode == 127
    assert "nosuchprogram" in said.stderr


TRAPS = "trap 'echo USR1' USR1; trap 'echo TERM; exit 75' TERM; echo ready; while :; do sleep 0.1; done"


@real
@pytest.mark.parametrize("to", ["program", "runtime"])
def test_a_warning_and_the_end_arrive_once_and_75_comes_back(inside: Inside, to: str) -> None:
    process = inside.start(words(inside, *wrapped(["sh", "-c", TRAPS], FP32)))
    wait_for(process, "ready")
    found = session(process.pid)
    target = process.pid if to == "runtime" else found["sh"].pid

    os.kill(target, signal.SIGUSR1)
    wait_for(process, "USR1")
    os.kill(target, signal.SIGTERM)
    rest, _ = process.communicate(timeout=LONGEST_S)

    assert rest.split() == ["TERM"]
    assert process.returncode == 75


@real
def test_the_end_sent_to_the_group_reaches_the_program_and_spares_its_files(inside: Inside) -> None:
    slow = (
        "trap 'sleep 1; cat /etc/passwd >/dev/null && echo read; exit 75' TERM; echo ready; while :; do sleep 0.1; done"
    )
    process = inside.start(words(inside, *wrapped(["sh", "-c", slow], FP32)))
    wait_for(process, "ready")

    os.killpg(process.pid, signal.SIGTERM)
    rest, _ = process.communicate(timeout=LONGEST_S)

    assert "read" in rest.split()  # what serves the image's files is in the session, but in a group of its own
    assert process.returncode == 75


@real
def test_who_catches_the_warning(inside: Inside) -> None:
    process = inside.start(words(inside, *wrapped(["sh", "-c", TRAPS], FP32)))
    wait_for(process, "ready")
    found = session(process.pid)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=LONGEST_S)

    assert found["starter"].pid == process.pid
    assert {name for name, each in found.items() if each.catches_usr1} == {"starter", "sh"}
    assert found["starter"].group == found["sh"].group == process.pid
    assert found["squashfuse_ll"].group != process.pid


@real
def test_a_program_without_a_handler_would_die_of_the_warning_passed_on(inside: Inside) -> None:
    process = inside.start(words(inside, *wrapped(["sh", "-c", "echo ready; exec sleep 60"], FP32)))
    wait_for(process, "ready")
    time.sleep(0.2)

    assert not session(process.pid)["sleep"].catches_usr1
    os.kill(process.pid, signal.SIGUSR1)  # why nobody may send it to the starter
    process.communicate(timeout=LONGEST_S)

    assert process.returncode == -signal.SIGUSR1


@real
def test_the_program_ends_with_the_runtime_and_what_it_started_is_left_in_its_session(inside: Inside) -> None:
    process = inside.start(words(inside, *wrapped(["sh", "-c", "sleep 61 & echo ready; wait"], FP32)))
    wait_for(process, "ready")

    process.kill()
    deadline = time.monotonic() + LONGEST_S
    while "sh" in session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = session(process.pid)
    for each in left.values():
        os.kill(each.pid, signal.SIGKILL)
    process.communicate(timeout=LONGEST_S)

    assert "sh" not in left  # asked of the kernel: PR_SET_PDEATHSIG
    assert {"sleep", "squashfuse_ll"} <= set(left)  # which only who knows the session can end


# A Python that knows nothing of hpcml

CLIENT = """
import sys, hpcml_client
print(sys.version_info[0], sys.version_info[1], hpcml_client.__file__)
with hpcml_client.connect() as run:
    run.metrics({"loss": 0.5}, step=1)
foreign = {name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "hpcml", "click"}
assert not foreign, foreign
"""
LIBRARIES = ("/lib64", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu")


@pytest.fixture(scope="module", params=["3.8", "of the host"])
def python(request: pytest.FixtureRequest, account: Account) -> Iterator[tuple[str, list[Bind], str]]:
    """A Python to bind, its binds, and its version."""
    libraries = [bind(path, read_only=True) for path in LIBRARIES if Path(path).exists()]
    if request.param == "of the host":
        version = next(Path("/usr/lib").glob("python3.*"), None)
        if version is None or not Path("/usr/bin", version.name).exists():
            pytest.skip("no Python in /usr")
        yield f"/usr/bin/{version.name}", [*libraries, bind("/usr/bin"), bind(str(version))], version.name[6:]
        return
    found = next((Path.home() / ".pyenv" / "versions").glob("3.8.*"), None)
    if found is None:
        pytest.skip("no Python 3.8 of pyenv's on this machine")
    folder = account.new_folder()
    (folder / "bin").mkdir()
    shutil.copy(found / "bin" / "python3.8", folder / "bin")
    unused = shutil.ignore_patterns("test", "tests", "site-packages", "__pycache__", "config-*", "idlelib", "lib2to3")
    shutil.copytree(found / "lib" / "python3.8", folder / "lib" / "python3.8", ignore=unused, symlinks=True)
    for library in (found / "lib").glob("libpython3.8.so.*"):
        shutil.copy(library, folder / "lib")
    folder.chmod(0o755)
    yield "/opt/python38/bin/python3.8", [*libraries, bind(str(folder), "/opt/python38", read_only=True)], "3.8"
    shutil.rmtree(folder, ignore_errors=True)


@real
def test_the_client_works_in_an_image_that_knows_nothing_of_hpcml(
    inside: Inside, python: tuple[str, list[Bind], str]
) -> None:
    program, binds, version = python
    run_dir, client = inside.folder / "run dir", inside.account.sources / "hpcml_client"
    shutil.rmtree(run_dir, ignore_errors=True)
    (run_dir / "client").mkdir(parents=True)
    (run_dir / "client" / "hpcml_client").symlink_to(client)  # as the agent leaves it
    for path in (run_dir, run_dir / "client"):
        shutil.chown(path, USER, USER)
    argv = exec_argv(
        str(inside.image),
        "apptainer",
        binds=[bind(str(run_dir)), bind(str(client), read_only=True), *binds],
        cwd=str(run_dir),
    )
    variables = {"HPCML_RUN_DIR": str(run_dir), "LD_LIBRARY_PATH": "/opt/python38/lib"}

    said = inside(
        [*argv, *wrapped([program, "-W", "error", "-c", CLIENT], FP32, python_path=[str(run_dir / "client")])],
        **prefixed(variables),
        **RUNTIME_ENVIRONMENT,
    )

    assert said.returncode == 0, said.stderr
    assert said.stdout.split(maxsplit=2) == [*version.split("."), f"{run_dir}/client/hpcml_client/__init__.py\n"]
    (path,) = (run_dir / "journal").iterdir()
    assert Metrics in [type(record) for record in read_journal(path).records]
