"""A command line of one's own that cannot start is refused in planning, with what to write instead."""

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.commands.submit.startable import PythonStart, check_startable
from hpcml.commands.submit.workload import Software, build_plan
from hpcml.errors import ConfigError
from hpcml.model.precision import CPU
from hpcml.model.run import Run
from tests.conftest import ComposeOne


def check(run: Run, command: str, folder: Path, *, is_exact: bool = False, is_inside: bool = False) -> None:
    """Plan *command* in *folder* and look at it; *is_exact*: as words behind ``--``."""
    workload = replace(run.workload, command=command, args={} if is_exact else None)
    run = replace(run, workload=workload)
    software = Software(python=sys.executable, recipes=folder, cwd=folder)
    check_startable(build_plan(run, CPU, software, cpus_per_task=1), run, PythonStart(), is_inside=is_inside)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with programs of all kinds."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "ok.py").write_text("print('ok')\n")
    for name, text, mode in (
        ("plain.sh", "#!/bin/bash\n", 0o644),
        ("run.sh", "#!/bin/bash\n", 0o755),
        ("bare.sh", "echo hello\n", 0o755),
        ("numactl", "#!/bin/sh\n", 0o755),
        ("likwid-pin", "#!/bin/sh\n", 0o755),
        ("dos.sh", "#!/bin/bash\r\necho\r\n", 0o755),
        ("lost.sh", "#!/opt/nowhere/bash\n", 0o755),
        ("spaced.py", "#!/usr /own python\n", 0o755),
        ("unread.sh", "#!/etc/passwd\n", 0o755),
        ("nb.ipynb", "{}\n", 0o644),
        ("other.py", "#!/usr/bin/env nosuchpython\n", 0o755),
    ):
        (tmp_path / name).write_bytes(text.encode())
        (tmp_path / name).chmod(mode)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python nosuch.py", "'nosuch.py' is not there, seen from .*: mend its name"),
        ("python -u nosuch.py --epochs 3", "'nosuch.py' is not there"),
        ("python -X importtime nosuch.py", "'nosuch.py' is not there"),
        ("python3.12 sub/nosuch.py", "'sub/nosuch.py' is not there"),
        ("python -m torch.distributed.launch --nproc_per_node=2 nosuch.py", "'nosuch.py' is not there"),
        ("python nosuch", "'nosuch' is not there"),
        ("bash nosuch.sh", "'nosuch.sh' is not there"),
        ("env A=1 nice -n 5 python nosuch.py", "'nosuch.py' is not there"),
        ("env taskset -c 0 python nosuch.py", "'nosuch.py' is not there"),
        ("./numactl -C 0 python nosuch.py", "'nosuch.py' is not there"),
        ("./likwid-pin -c 0 python nosuch.py", "'nosuch.py' is not there"),
        ("torchrun --nproc_per_node 2 nosuch.py", "'nosuch.py' is not there|no program 'torchrun'"),
        ("python /tmp/nosuch-of-hpcml.py", "'/tmp/nosuch-of-hpcml.py' is not there"),
        ("python ok.py && echo done", r"'&&' in .*: no shell reads this.*: write bash -c 'python ok.py && echo done'"),
        ("python ok.py --verbose | tee log", r"'\|' in .* no shell reads this"),
        ("python ok.py ; rm x", "';' in .* no shell reads this"),
        ("python ok.py; rm x", "'ok.py;' in .* no shell reads this"),
        ("python ok.py > log", "'>' in .* no shell reads this"),
        ("python ok.py >log 2>&1", "'>log' in .* no shell reads this"),
        ("python ok.py 2>err", "'2>err' in .* no shell reads this"),
        ("python ok.py &", "'&' in .* no shell reads this"),
        ("python ~/ok.py", r"'~/ok.py': no shell is there to replace ~: write /\S*/ok.py"),
        ("python ok.py --data=~/data", r"replace ~: write --data=/\S*/data"),
        ("python ok.py --data $HOME/data", r"no shell is there to replace \$HOME: write /\S*/data"),
        ("python ok.py ${HOME}", r"no shell is there to replace \$\{HOME\}"),
        ("python ok.py $NO_SUCH_VARIABLE", "it is not set here; if the job sets it, write bash -c"),
        ("python ok.py --a 1,python ok.py --a 2", "is one command, whatever its commas: sweep its own flags"),
        ("./run.sh,./bare.sh", r"no program './run.sh,./bare.sh' here: the program itself is not swept"),
        ("./plain.sh", r"is there, and may not be executed: chmod \+x ./plain.sh, or write bash ./plain.sh"),
        ("./bare.sh", "does not begin with #!, so nothing says what reads it: write bash ./bare.sh"),
        ("./dos.sh", "has the line ends of Windows"),
        ("./lost.sh", "is to be read by '/opt/nowhere/bash', as its first line says, which is not here"),
        (
            "./spaced.py",
            "is to be read by '/usr', .* which is a folder: a path in a first line ends at its first space",
        ),
        ("./unread.sh", r"is to be read by '/etc/passwd', .* which may not be executed"),
        ("./other.py", "is to be read by 'nosuchpython', as its first line says, which is not here"),
        ("./nosuch", "there is no program './nosuch' here"),
        ("run.sh", "no program 'run.sh' here: the file of that name is started by ./run.sh"),
        ("./pkg", "is a folder, not a program"),
        ("pyton ok.py", "there is no program 'pyton' here; did you mean python?"),
        ("nosuchprogram ok.py", "here; activate the environment that has it before hpcml run, or write its path"),
        ("ok.py --lr 1", "the file of that name is started by python ok.py"),
        ("python", "python alone reads what is typed, and nobody is there to type"),
        ("bash", "write what it is to run"),
        ("python nb.ipynb", "nb.ipynb is a notebook, and no program: write jupyter nbconvert .*--execute nb.ipynb, or"),
        ("nb.ipynb", "nb.ipynb is a notebook, .* or papermill nb.ipynb done.ipynb -p NAME VALUE, which gives it"),
        ("./nb.ipynb --lr 1", "./nb.ipynb is a notebook, and no program"),
        ("sbatch run.sh", "submits another job and ends.*: hpcml run .cluster=NAME -- bash run.sh"),
        ("qsub -q gpu", "submits another job and ends"),
        ("tmux new -d python ok.py", "leaves the program behind and ends.*: leave it out; hpcml run --detach"),
        ("hpcml run -- python ok.py", "write the program itself behind the --"),
        ("source env/bin/activate", "word of the shell, and no program: activate .* or write env/bin/python train.py"),
        ("cd pkg", "word of the shell.* write workload.cwd=pkg in front of the --"),
        ("export A_B=1", "write workload.env.A_B=1 in front of the --"),
        ("module load CUDA/12", r"load it before hpcml run; .*'cluster.modules=\[CUDA/12\]' in front"),
        ("ulimit -n 9", "give the whole line to bash -c"),
        ("conda activate me", "do it before hpcml run, or write conda run -n me python"),
    ],
)
def test_what_cannot_start_is_refused_with_what_to_write_instead(
    compose_one: ComposeOne, folder: Path, command: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check(compose_one("workload.command=true"), command, folder)


def test_an_interpreter_that_is_not_here_is_not_taken_for_misspelt(
    compose_one: ComposeOne, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(ConfigError, match="no program 'python' here; activate the environment that has it"):
        check(compose_one("workload.command=true"), "python ok.py", folder)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["python ok.py && echo"], "it is one word; leave out the quotes"),
        (["CUDA_VISIBLE_DEVICES=0", "python"], "by workload.env.CUDA_VISIBLE_DEVICES=0"),
        (["-m", "python", "ok.py"], "options of hpcml run stand in front of the --"),
        (["precision=a,b"], "settings of the run stand in front of the --"),
        (["seed=3", "python"], "no program 'seed=3' here: settings of the run stand in front of the --"),
        (["python", "ok.py", "&&", "echo"], "'&&' would be an argument, since no shell reads this"),
        (["python", "ok.py", "|", "tee"], r"'\|' would be an argument"),
        (["python", "$HOME/ok.py"], r"no shell is there to replace \$HOME"),
        (["python", "nosuch.py"], "'nosuch.py' is not there"),
    ],
)
def test_words_behind_the_dashes_are_looked_at_too(
    compose_one: ComposeOne, folder: Path, words: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check(compose_one("workload.command=true"), shlex.join(words), folder, is_exact=True)


@pytest.mark.parametrize(
    "command",
    [
        "python ok.py --sep '|' --end ';' --token <eos>",
        "python ok.py --url http://h/?a=1&b=2 --pattern foo$ ~trainer.logger a.b=${c} 0.9,0.999",
        "bash -c 'cd ~ && python nosuch.py > $HOME/log; true'",
        "bash -lc 'python nosuch.py'",
        "bash -x ./run.sh",
        "bash +e run.sh",
        "python -c 'print(1); print(2)'",
        "python -m pkg.train --x nosuch.py",
        "python ok.py nosuch.py",
        "python pkg nosuch.py",
        "python - ",
        "env -C pkg python nosuch.py",
        "taskset -c 0 env -C pkg python nosuch.py",
        "awk '{print $NF}' ok.py",
        "./run.sh nosuch.py",
    ],
)
def test_what_can_start_is_left_alone(compose_one: ComposeOne, folder: Path, command: str) -> None:
    check(compose_one("workload.command=true"), command, folder)


def test_words_that_were_quoted_on_purpose_are_the_programs_own(compose_one: ComposeOne, folder: Path) -> None:
    words = ["awk", "-F", "|", "{print $1; x = $HOME}", "ok.py", "--sep", ";"]

    check(compose_one("workload.command=true"), shlex.join(words), folder, is_exact=True)


def test_in_an_image_only_what_lies_in_the_project_is_known(compose_one: ComposeOne, folder: Path) -> None:
    run = compose_one("workload.command=true")

    check(run, "/opt/python /opt/x.py", folder, is_inside=True)
    check(run, "python /opt/nosuch.py", folder, is_inside=True)
    with pytest.raises(ConfigError, match=r"'nosuch.py' is not there"):
        check(run, "python nosuch.py", folder, is_inside=True)


def test_on_a_cluster_paths_are_looked_at_and_programs_are_the_jobs(compose_one: ComposeOne, folder: Path) -> None:
    run = compose_one("workload.command=true", "+cluster=karolina")

    check(run, "python-of-a-module ok.py", folder)
    check(run, "/only/on/the/nodes/program", folder)
    for command in ("./nosuch", "python nosuch.py", "./plain.sh"):
        with pytest.raises(ConfigError, match=r"no program|not there|may not be executed"):
            check(run, command, folder)


def test_a_program_that_is_no_text_is_left_to_the_kernel(compose_one: ComposeOne, folder: Path) -> None:
    program = folder / "compiled"
    program.write_bytes(b"\x7fELF\0\0")
    program.chmod(0o755)

    check(compose_one("workload.command=true"), "./compiled", folder)
    check(compose_one("workload.command=true"), f"{os.path.relpath(sys.executable, folder)} -V", folder)


@pytest.fixture
def package(folder: Path) -> Path:
    """A project with a package that has modules, one that can be run, and a folder that is none."""
    (folder / "train.py").write_text("")
    for name in ("mine/__init__.py", "mine/train.py", "mine/sub/__init__.py", "mine/sub/__main__.py", "loose/fit.py"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text("")
    (folder / "grown").mkdir()
    (folder / "grown" / "__init__.py").write_text("__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n")
    return folder


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("python -m trian --lr 1", "there is no module trian here, seen from .*; did you mean train?"),
        ("python -u -m mine.trian", "there is no trian in mine, seen from .*; did you mean train?"),
        ("python -m mine.sub.fit", "there is no fit in mine/sub"),
        ("python -m mine", "mine is a package without a __main__.py, which cannot be run: name a module in it"),
        ("python3 -m nosuchmoduleatall", "there is no module nosuchmoduleatall here"),
    ],
)
def test_a_module_that_is_not_there_is_refused(compose_one: ComposeOne, package: Path, command: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check(compose_one(), command, package, is_exact=True)


@pytest.mark.parametrize(
    "command",
    [
        *(
            "python -m train",
            "python -m mine.train",
            "python -m mine.sub",
            "python -m pytest -x",
            "python -m json.tool",
        ),
        *("python -m loose.other", "python -m grown.late", "python -m hpcml_client.x", "python ok.py -m trian"),
        *("python -W ignore -m train", "python -um train", "mpirun -n 2 python -m trian", "python -c pass -m trian"),
        f"python -m {'a' * 300}",
    ],
)
def test_a_module_that_may_be_there_is_left_alone(compose_one: ComposeOne, package: Path, command: str) -> None:
    check(compose_one(), command, package, is_exact=True)


def test_of_a_cluster_and_an_image_only_the_projects_own_modules_are_known(
    compose_one: ComposeOne, package: Path
) -> None:
    on_cluster = compose_one("+cluster=karolina", "resources.partition=qcpu", "resources.gpus_per_node=0")

    check(on_cluster, "python -m nosuchmoduleatall", package, is_exact=True)
    check(compose_one(), "python -m nosuchmoduleatall", package, is_exact=True, is_inside=True)
    for command in ("python -m trian", "python -m mine.trian"):
        with pytest.raises(ConfigError, match="did you mean train"):
            check(on_cluster, command, package, is_exact=True)
    with pytest.raises(ConfigError, match="did you mean train"):
        check(compose_one(), "python -m mine.trian", package, is_exact=True, is_inside=True)


def test_a_script_that_is_no_python_is_refused_with_the_line(compose_one: ComposeOne, folder: Path) -> None:
    (folder / "wrong.py").write_text("import os\nif os:\nprint(1)\n")
    (folder / "wrong.py").chmod(0o755)
    (folder / "two.py").write_text("print 'of Python 2'\n")
    (folder / "odd.py").write_text("# coding: latin-42\n")
    (folder / "ok.py").write_text("x = '\\d'  # a warning, no error\n")
    on_cluster = compose_one("+cluster=karolina", "cluster.modules=[]")

    with pytest.raises(ConfigError, match=r"^odd.py: unknown encoding: latin-42, says Python 3"):
        check(compose_one(), "python odd.py", folder)
    for run in (compose_one(), on_cluster):
        with pytest.raises(ConfigError, match=r"^wrong.py, line 3: expected an indented block .*, says Python 3"):
            check(run, f"{sys.executable} wrong.py --lr 1", folder, is_exact=True)
    # Who says which Python there will be? An image, a module, uv, another PATH.
    check(compose_one(), "python wrong.py", folder, is_exact=True, is_inside=True)
    check(compose_one("+cluster=karolina", "cluster.modules=[Python/3]"), "python wrong.py", folder, is_exact=True)
    check(on_cluster, "uv run python wrong.py", folder, is_exact=True)
    check(on_cluster, "python2.6 two.py", folder, is_exact=True)  # which is not here
    check(compose_one("workload.env.PATH=/opt/bin"), "python wrong.py", folder, is_exact=True)
    check(compose_one(), "python ok.py", folder, is_exact=True)


def test_a_script_that_the_commands_own_python_reads_is_left_alone(compose_one: ComposeOne, folder: Path) -> None:
    (folder / "newer.py").write_text("x = t'{y}' if so else\n")
    newer = folder / "python3"
    newer.write_text("#!/bin/sh\nexit 0\n")
    newer.chmod(0o755)

    check(compose_one(), "./python3 newer.py", folder, is_exact=True)
