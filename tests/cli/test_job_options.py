"""Options of a job that a site, or a user, has beside those that hpcml knows."""

from __future__ import annotations

import pytest

from tests.cli.command_line import Hpcml

MARKS = {"slurm": "#SBATCH", "pbs": "#PBS"}


def script(hpcml: Hpcml, scheduler: str, *words: str) -> str:
    done = hpcml("run", "--dry-run=script", f"+cluster={scheduler}", *words, "--", "true")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("scheduler", MARKS)
def test_an_option_may_be_written_as_a_line_of_a_script(hpcml: Hpcml, scheduler: str) -> None:
    mark = MARKS[scheduler]

    written = script(hpcml, scheduler, f"resources.extra_directives=['{mark} --hold', ' -l a=1']")

    assert f"\n{mark} --hold\n{mark} -l a=1\n" in written


@pytest.mark.parametrize("scheduler", MARKS)
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("resources.extra_directives=['mail-type=END']", "resources.extra_directives: 'mail-type=END' is no option of"),
        ("cluster.directives=['## -l a=1']", "cluster.directives: '## -l a=1' is no option of"),
    ],
)
def test_what_is_no_option_is_refused(hpcml: Hpcml, scheduler: str, word: str, said: str) -> None:
    done = hpcml("run", "--dry-run=script", f"+cluster={scheduler}", word, "--", "true")

    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("scheduler", "option"),
    [
        ("slurm", "--array=0-3"),
        ("slurm", "--arr 0-3"),
        ("slurm", "#SBATCH -a 0-3"),
        ("slurm", "--hold -a0-3"),
        ("pbs", "-J 0-3"),
        ("summit", '-J "name[1-3]"'),
    ],
)
def test_an_array_of_one_run_is_refused(hpcml: Hpcml, scheduler: str, option: str) -> None:
    words = [f"+cluster={scheduler}", f"resources.extra_directives=['{option}']"]

    done = hpcml("run", "--dry-run=script", *words, "--", "true")

    assert done.returncode == 2
    assert f"resources.extra_directives: '{option}' would start each run several times" in done.stderr


@pytest.mark.parametrize(
    ("scheduler", "option"),
    [
        ("slurm", '--comment="grid -a 3 --array"'),
        ("slurm", "--hold # no -a here"),
        ("slurm", "--acctg-freq=30"),
        ("pbs", "-J n"),
        ("pbs", '-v "TEXT=see -J 3"'),
        ("summit", "-J name"),
        ("summit", '-R "rusage[mem=1]"'),
    ],
)
def test_what_only_looks_like_an_array_is_not_refused(hpcml: Hpcml, scheduler: str, option: str) -> None:
    script(hpcml, scheduler, f"resources.extra_directives=['{option}']")
