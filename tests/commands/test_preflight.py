import os
import shutil
from pathlib import Path

import pytest

from hpcml.commands.machine import Machine
from hpcml.commands.submit.preflight import all_warnings, warnings
from hpcml.commands.submit.validate import plan_all
from hpcml.config.compose import compose_command, compose_from_cli
from hpcml.config.program import read_program
from hpcml.mounts import file_system_of
from hpcml.paths import Places

MACHINE = Machine(cores=2, gpus=[])


def warned(tmp_path: Path, *words: str) -> list[str]:
    (item,) = plan_all(compose_from_cli(words, project=tmp_path), MACHINE)
    return list(warnings(item, Places(home=tmp_path / "home", store_url="")))


def test_runs_on_this_machine_need_no_warning(tmp_path: Path) -> None:
    assert warned(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (("workload.env.OMP_NUM_THREADS=2",), 1),
        (("workload.env.OPENBLAS_NUM_THREADS=4", "resources.cpus_per_task=2"), 1),
        (("workload.env.OMP_NUM_THREADS=2", "resources.cpus_per_task=2"), 0),
        (("workload.env.OMP_NUM_THREADS=1",), 0),
        (("workload.env.OMP_NUM_THREADS='2,1'",), 0),
    ],
)
def test_more_threads_than_cores_are_warned_about(tmp_path: Path, words: tuple[str, ...], lines: int) -> None:
    found = warned(tmp_path, "workload.command=true", *words)

    assert len(found) == lines
    assert all("its threads take turns; resources.cpus_per_task=" in line for line in found)


SLURM_SITE = ("cluster=slurm", "resources.walltime=5m", "resources.partition=q", "resources.gpus_per_node=0")


def warned_of_script(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, *words: str) -> list[str]:
    monkeypatch.chdir(folder)
    (folder / "job.sh").write_text(text)
    return [line for line in warned(folder, *words, "workload.command='bash job.sh'") if line.startswith("job.sh ")]


def test_what_a_job_script_asks_for_and_the_run_does_not_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "#!/bin/bash\n#SBATCH -J lulesh -t 5\n#SBATCH -N 2 --ntasks-per-node 4 # all\n\n#SBATCH --array=1-3\nsrun x\n"
    )

    (line,) = warned_of_script(tmp_path, monkeypatch, text, *SLURM_SITE)

    assert line.startswith("job.sh asks for --nodes=2 --ntasks-per-node=4 --array=1-3 in lines that are comments here")
    assert "resources.nodes, strategy=mpi strategy.processes_per_node=... workload.launcher=none, values in" in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#SBATCH --nodes=1 --ntasks=1 --time=5 --job-name=-N4 -J a1-3\n#SBATCH --output=o\n", SLURM_SITE),
        ("#SBATCH --mem=4G\n#SBATCH -c 4\n", (*SLURM_SITE, "resources.mem=4G", "resources.cpus_per_task=4")),
        (
            "#SBATCH -N2\n#SBATCH -n8\n",
            (
                *SLURM_SITE,
                "resources.nodes=2",
                "strategy=mpi",
                "strategy.processes_per_node=4",
                "workload.launcher=none",
            ),
        ),
        ("cat > job <<EOF\n#SBATCH --nodes=2\nEOF\n", SLURM_SITE),
        ("#SBATCH 'open\n", SLURM_SITE),
        (
            "#SBATCH -A my-account -p my-cluster\n#SBATCH -o out-N5.log -C gpu-a100\n#SBATCH --comment '-n 8'\n",
            SLURM_SITE,
        ),
        ("#SBATCH --nodes=2 --mem=4G\n", ()),
        (
            "#PBS -N 3d-model\n#PBS -q gpu-a100\n#PBS -l select=1:ncpus=4\n",
            ("cluster=pbs", "resources.walltime=5m", "resources.queue=q"),
        ),
    ],
)
def test_a_job_script_whose_wishes_the_run_has_needs_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: tuple[str, ...]
) -> None:
    assert warned_of_script(tmp_path, monkeypatch, f"#!/bin/bash\n{text}echo\n", *words) == []


@pytest.mark.parametrize("text", ["#SBATCH --exclusive -a 0-9%2", "#PBS -J 0-9", "#PBS -t 0-9"])
def test_an_array_of_a_job_script_is_none_on_this_machine_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (line,) = warned_of_script(tmp_path, monkeypatch, f"#!/bin/bash\n{text}\necho\n")

    assert "--array=0-9" in line
    assert line.endswith("values in place of the array's index are a list behind the --, with -m")


@pytest.mark.parametrize("sweep", ["--lr 0.1,0.2", "--seed 0,1"])
@pytest.mark.parametrize(
    ("uses", "lines"),
    [
        ("$1  # was $SLURM_ARRAY_TASK_ID", 0),
        ("$1\n# SLURM_ARRAY_TASK_ID", 0),
        ("$SLURM_ARRAY_TASK_ID", 2),
        ("$(( SLURM_ARRAY_TASK_ID % ${#RATES[@]} ))", 2),
        ("of ${#RATES[@]}: ${RATES[$SLURM_ARRAY_TASK_ID]}", 2),
    ],
)
def test_an_array_whose_values_have_become_a_sweep_needs_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sweep: str, uses: str, lines: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --array=0-1\necho {uses}\n")
    program, words = read_program(["bash", "job.sh", *sweep.split()], ["-m"])

    items = plan_all(compose_from_cli(words, project=tmp_path, program=program), MACHINE)

    found = [line for item in items for line in warnings(item, Places(home=tmp_path / "home", store_url=""))]
    assert sum("asks for --array=0-1" in line for line in found) == lines


def test_a_decommissioned_site_is_said(tmp_path: Path) -> None:
    assert "cluster=salomon is decommissioned according to its profile" in warned(tmp_path, "cluster=salomon")


def test_an_account_that_looks_wrong_is_only_warned_about(tmp_path: Path) -> None:
    words = ("cluster=karolina", "cluster.account_pattern='[A-Z]+-[0-9]+-[0-9]+'")

    assert any("looks like no account" in line for line in warned(tmp_path, *words, "resources.account=typo"))
    assert not any("looks like no account" in line for line in warned(tmp_path, *words, "resources.account=OPEN-1-2"))


def test_a_run_directory_on_a_file_system_of_this_machine_is_said(tmp_path: Path) -> None:
    kind = file_system_of(tmp_path)
    lines = warned(tmp_path, "cluster=karolina")

    assert kind is not None
    assert any(f"HPCML_HOME ({tmp_path / 'home'}) is on {kind}" in line for line in lines)


@pytest.mark.parametrize(("kind", "lines"), [("jfs", 2), ("bcachefs", 2), ("lustre", 0), (None, 0)])
def test_what_is_local_is_what_it_is_for_the_store(tmp_path: Path, kind: str | None, lines: int) -> None:
    (item,) = plan_all(compose_from_cli(["cluster=karolina"], project=tmp_path), MACHINE)
    found = warnings(item, Places(home=tmp_path / "home", store_url=""), lambda _: kind)

    assert sum(f"is on {kind}, a file system of this machine" in line for line in found) == lines


def test_a_job_without_a_walltime_is_said(tmp_path: Path) -> None:
    lines = warned(tmp_path, "cluster=karolina", "resources.walltime=null")

    assert any("no resources.walltime" in line for line in lines)


@pytest.mark.parametrize("name", ["there", "not/yet/there"])
def test_the_file_system_of_a_path_is_that_of_its_nearest_parent(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").touch()

    assert file_system_of(tmp_path / name) == file_system_of(tmp_path)


def test_proc_is_told_from_a_disk() -> None:
    assert file_system_of(Path("/proc/self")) == "proc"


@pytest.mark.parametrize(
    ("text", "command", "said"),
    [
        ("#!/bin/bash\necho go\nfor i in 1 2; do\n  echo $i\n", "bash job.sh", "job.sh: line 5: syntax error"),
        ("#!/bin/bash\necho 'never closed\n", "./job.sh", "./job.sh: line 2: unexpected EOF while looking for"),
        ("#!/usr/bin/env bash\nif true; then echo; fi fi\n", "./job.sh", "./job.sh: line 2: syntax error near"),
        ("#!/bin/bash\nx=(1 2)\nshopt -s extglob\nrm -f !(a|b)\n", "bash job.sh", None),
        ("#!/bin/bash\nexit 0\n\0(((", "bash job.sh", None),
        ("#!/usr/bin/perl\nif (1) { print 1 }\n", "./job.sh", None),
        ('#!/bin/bash\n#=\nexec julia "${BASH_SOURCE[0]}" "$@"\n=#\nf(x) = x\n', "./job.sh", None),
        ("#!/bin/sh\n''''exec python3 \"$0\" \"$@\" # '''\ndef f(x):\n    pass\n", "./job.sh", None),
        ('#!/bin/sh\n# \\\nexec tclsh "$0" "$@"\nproc f {x} { puts ( }\n', "./job.sh", None),
        ("#!/bin/sh\neval 'exec perl -x -S $0 ${1+\"$@\"}'\n  if 0;\nforeach my $x (1) {}\n", "./job.sh", None),
        ("#!/bin/sh\nif true; then\nexit 1\nfi\ntail -n 1 $0\nexit 0\n)((`\n", "./job.sh", None),
        ("#!/bin/bash\nexec >log 2>&1\nfor i in 1; do\n", "./job.sh", "./job.sh: line 4: syntax error"),
        ("#!/bin/bash\nif true; then\n  echo\nexit 0\n", "./job.sh", "./job.sh: line 5: syntax error"),
    ],
)
def test_a_shell_script_that_its_shell_cannot_read_to_the_end_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, command: str, said: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "job.sh"))
    (tmp_path / "job.sh").write_text(text)
    (tmp_path / "job.sh").chmod(0o755)
    planned = plan_all(compose_from_cli((f"workload.command='{command}'",), project=tmp_path), MACHINE)

    found = all_warnings(planned, Places(home=tmp_path / "home", store_url=""), MACHINE)

    lines = [line for line in found if "ends there, once what stands before has run" in line]
    assert len(lines) == (said is not None)
    assert all(line.startswith(str(said)) for line in lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\n\tb: 2\n", "c.yaml, line 2: found character '\\t' that cannot start any token: indent with spaces"),
        ("a: [1, 2\nb: 3\n", "c.yaml, line 2: "),
        ("a: !include b.yaml\nb: !!python/tuple [1]\n---\nc: 1\n", None),
        ("{% if x %}\n\ta: {{ x }}\n", None),
        ("[" * 100_000, None),  # which PyYAML's own parser takes minutes for
        ('a: "\\UFFFFFFFF"\n', "c.yaml: Python int too large"),
        (f"%YAML {'9' * 5000}.1\n---\na: 1\n", "c.yaml: Exceeds the limit"),
    ],
)
def test_a_file_of_settings_that_cannot_be_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(text)
    command = "workload.command='cat --config=c.yaml c.yaml absent.yaml'"
    planned = plan_all(compose_from_cli((command,), project=tmp_path), MACHINE)

    found = all_warnings(planned, Places(home=tmp_path / "home", store_url=""), MACHINE)

    lines = [line for line in found if line.startswith("c.yaml")]
    assert len(lines) == (said is not None)
    assert all(line.startswith(str(said)) for line in lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--config cnof.yaml", "cnof.yaml is not there, seen from {}: did you mean conf.yaml?"),
        ("--config=sub/basee.toml", "sub/basee.toml is not there, seen from {}: did you mean sub/base.toml?"),
        ("sbu/base.toml", "sbu/base.toml is not there, seen from {}: did you mean sub/base.toml?"),
        ("--deepspeed dss.json", "dss.json is not there, seen from {}: did you mean ds.json?"),
        ("--config conf.yaml --deepspeed=ds.json sub/base.toml", None),
        ("--config other.yaml", None),  # nothing is like it
        ("--config conf.yml", None),  # another kind of file
        ("sbu/other.toml", None),
        ("--out cnof.yaml", None),
        ("--log-config=cnof.yaml", None),
        ("--predictions dss.json dss.json", None),
        ("--config /sbu/base.toml", None),
    ],
)
def test_a_file_of_settings_that_is_not_there_is_said_where_another_may_be_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("conf.yaml", "ds.json", "sub/base.toml"):
        (tmp_path / name).write_text("{}")
    planned = plan_all(compose_from_cli((f"workload.command='cat {words}'",), project=tmp_path), MACHINE)

    found = all_warnings(planned, Places(home=tmp_path / "home", store_url=""), MACHINE)

    assert [line for line in found if "is not there" in line] == ([] if said is None else [said.format(tmp_path)])


def test_git_is_asked_no_more_often_for_many_runs_than_for_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = shutil.which("git"), tmp_path / "asked"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(f'#!/bin/sh\necho "$@" >> {asked}\nexec {real} "$@"\n')
    (tmp_path / "bin" / "git").chmod(0o755)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def questions(seeds: str) -> list[str]:
        points, _ = compose_command(["-m"], ["true", "--seed", seeds], project=Path(), is_literal=False, most=100)
        asked.write_text("")
        all_warnings(plan_all(points, MACHINE), Places(home=tmp_path / "home", store_url=""), MACHINE)
        return asked.read_text().splitlines()

    assert len(questions("0..59")) == len(questions("0..1")) > 0


def test_a_python_is_asked_once_for_all_runs_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, python = tmp_path / "asked", tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
    python.chmod(0o755)
    (tmp_path / "newer.py").write_text("what only a newer Python compiles\n")
    monkeypatch.chdir(tmp_path)

    points, _ = compose_command(
        ["-m"], [str(python), "newer.py", "--seed", "0..19"], project=Path(), is_literal=False, most=100
    )
    plan_all(points, MACHINE)

    assert len(points) == 20
    assert asked.read_text().count("compile(") == 1
