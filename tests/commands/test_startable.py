"""A command of one's own whose program or script cannot start is refused in planning; all else it says itself."""

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.commands.submit.program import check_startable, start_of
from hpcml.errors import ConfigError
from hpcml.model.run import Run
from tests.conftest import ComposeOne


def refused(run: Run, command: str, folder: Path) -> str | None:
    """Return why *command* could not start in *folder*, or None."""
    run = replace(run, workload=replace(run.workload, command=command))
    try:
        check_startable(start_of(shlex.split(command), folder), run)
    except ConfigError as error:
        return str(error)
    return None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with programs of all kinds."""
    for name, mode in (
        *(("ok.py", 0o644), ("plain.sh", 0o644), ("run.sh", 0o755), ("pkg/__main__.py", 0o644)),
        *(("mine/__init__.py", 0o644), ("mine/train.py", 0o644), ("mine/sub/__main__.py", 0o644)),
        *(("loose/fit.py", 0o644), ("grown/__init__.py", 0o644)),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(mode)
    (tmp_path / "grown" / "__init__.py").write_text("__path__ = [*__path__, '/opt/grown']\n")
    return tmp_path


def test_what_cannot_start_is_refused_with_one_thing_to_do(compose_one: ComposeOne, folder: Path) -> None:
    run = compose_one("workload.command=true")
    for command, said in (
        ("python nosuch.py", f"'nosuch.py' is not there, seen from {folder}: mend its name"),
        ("python -u nosuch.py --epochs 3", "'nosuch.py' is not there"),
        ("python -X importtime sub/nosuch.py", "'sub/nosuch.py' is not there"),
        ("python3 nosuch", "'nosuch' is not there"),
        ("bash nosuch.sh", "'nosuch.sh' is not there"),
        ("python /tmp/nosuch-of-hpcml.py", "'/tmp/nosuch-of-hpcml.py' is not there"),
        ("./plain.sh", "./plain.sh is there, and may not be executed: chmod +x"),
        ("./nosuch", "there is no program './nosuch' here"),
        ("run.sh", "there is no program 'run.sh' here"),
        ("./pkg", "./pkg is a folder, not a program"),
        ("pyton ok.py", "there is no program 'pyton' here; activate"),
        ("nosuchprogram ok.py", "here; activate the environment that has it before hpcml run, or write its path"),
        ("'nosuchprogram ok.py && echo'", "it is one word; leave out the quotes"),
        ("SOME_VARIABLE=0 python", "settings stand in front of the --, variables of the program too (workload.env."),
        ("-m python ok.py", "settings stand in front of the --"),
        ("source env/bin/activate", "a shell's own is bash -c '...'"),
        ("sbatch run.sh", "submits another job and ends"),
    ):
        assert said in (refused(run, command, folder) or ""), command


def test_a_program_is_looked_for_on_the_path_that_the_run_gives_it(
    compose_one: ComposeOne, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    said = refused(compose_one("workload.command=true"), "python ok.py", folder)
    assert said is not None
    assert said.startswith("there is no program 'python' here; activate the environment that has it before hpcml run")
    assert refused(compose_one(f"workload.env.PATH={Path(sys.executable).parent}"), "python ok.py", folder) is None


def test_what_can_start_is_left_alone(compose_one: ComposeOne, folder: Path) -> None:
    run = compose_one("workload.command=true")
    (folder / "compiled").write_bytes(b"\x7fELF\0\0")
    (folder / "compiled").chmod(0o755)
    (folder / "app.py").write_bytes(b"PK\3\4\0")
    for command in (
        *("./compiled", f"{os.path.relpath(sys.executable, folder)} -V", "python app.py", "python --version", "bash"),
        *("bash -lc 'python nosuch.py'", "bash -x ./run.sh", "bash +e run.sh", "./run.sh nosuch.py"),
        *("python -c 'print(1); print(2)'", "python -m pkg --x nosuch.py", "python ok.py nosuch.py", "python -"),
        *("sh ls", "python pkg nosuch.py", "sbatch --wait run.sh", f"python -m {'a' * 300}.{'b' * 300}"),
        *("python -m mine.train", "python -um mine.sub", "python -m json.tool", "python -m nosuch.at.all"),
        *("python -m loose.other", "python -m grown.late", "python -m hpcml_client.x", "python ok.py -m mine.trian"),
    ):
        assert refused(run, command, folder) is None, command


def test_a_launcher_that_starts_no_script_is_left_alone(compose_one: ComposeOne, folder: Path) -> None:
    for name in ("torchrun", "accelerate"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    run = compose_one("workload.command=true")

    for command in ("accelerate config", "torchrun --no-python --nproc_per_node 2 echo x", "torchrun -m pkg.train"):
        assert refused(run, f"./{command}", folder) is None, command
    for command in ("accelerate launch nosuch.py", "torchrun --nproc_per_node 2 nosuch.py --x y.py"):
        assert "'nosuch.py' is not there" in (refused(run, f"./{command}", folder) or ""), command


def test_what_came_through_a_shell_is_never_refused_for_its_characters(compose_one: ComposeOne, folder: Path) -> None:
    run = compose_one("workload.command=true")
    for words in (
        ["python", "ok.py", "--languages", "java,python"],
        ["python", "ok.py", "--xlabel", "$T$"],
        ["python", "ok.py", "--pattern", "cost$price", "$HOME", "${HOME}"],
        ["awk", "$NF>0", "f"],
        ["python", "ok.py", "3", ">", "2"],
        ["find", ".", "-exec", "gzip", "{}", ";"],
        ["python", "ok.py", "--sep", "~", "--home=~/x", "~"],
        ["python", "ok.py", "|", "&&", "2>err", "&", "a;"],
    ):
        assert refused(run, shlex.join(words), folder) is None, words


def test_in_an_image_only_what_lies_in_the_project_is_known(compose_one: ComposeOne, folder: Path) -> None:
    run = compose_one("workload.command=true", "+container=sif", "container.path=/image.sif")

    assert refused(run, "/opt/python /opt/x.py", folder) is None
    assert refused(run, "python /opt/nosuch.py", folder) is None
    assert refused(run, "python nosuch.py", folder) is not None


def test_on_a_cluster_paths_are_looked_at_and_programs_are_the_jobs(compose_one: ComposeOne, folder: Path) -> None:
    run = compose_one("workload.command=true", "+cluster=karolina")

    assert refused(run, "python-of-a-module ok.py", folder) is None
    assert refused(run, "/only/on/the/nodes/program", folder) is None
    for command in ("./nosuch", "python nosuch.py", "./plain.sh"):
        assert refused(run, command, folder) is not None


def test_a_script_that_does_not_compile_is_refused_with_the_line(compose_one: ComposeOne, folder: Path) -> None:
    (folder / "wrong.py").write_text("import os\nif os:\nprint(1)\n")
    (folder / "two.py").write_text("print 'of Python 2'\n")
    (folder / "odd.py").write_text("# coding: latin-42\n")
    (folder / "escape.py").write_text("x = '\\d'  # a warning, no error\n")
    on_cluster = compose_one("+cluster=karolina", "cluster.modules=[]")

    assert (refused(compose_one(), "python odd.py", folder) or "").startswith(
        "odd.py: unknown encoding: latin-42, says"
    )
    for run in (compose_one(), on_cluster):
        said = refused(run, f"{sys.executable} wrong.py --lr 1", folder)
        assert said is not None
        assert said.startswith("wrong.py: line 3: expected an indented block")
    assert refused(compose_one(), "python escape.py", folder) is None
    # Who says which Python there will be? An image, a module, uv, another PATH.
    of_module = compose_one("+cluster=karolina", "cluster.modules=[Python/3]")
    assert refused(of_module, "python wrong.py", folder) is None
    assert refused(on_cluster, "uv run python wrong.py", folder) is None
    assert refused(on_cluster, "python2.6 two.py", folder) is None  # which is not here
    assert refused(compose_one(f"workload.env.PATH={os.environ['PATH']}"), "python wrong.py", folder) is None


def test_a_script_that_the_commands_own_python_reads_is_left_alone(compose_one: ComposeOne, folder: Path) -> None:
    (folder / "newer.py").write_text("x = t'{y}' if so else\n")
    newer = folder / "python3"
    newer.write_text("#!/bin/sh\nexit 0\n")
    newer.chmod(0o755)

    assert refused(compose_one(), "./python3 newer.py", folder) is None
