import shlex
from pathlib import Path

import pytest

from hpcml.config.own_multirun import own_multirun

_SCRIPT = "import hydra\n@hydra.main()\ndef main(config): ...\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "prog.py").write_text(_SCRIPT)
    (tmp_path / "plain.py").write_text("import argparse\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(_SCRIPT)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("python prog.py -m lr=0.1,0.01", "python prog.py lr=0.1,0.01"),
        ("python prog.py lr=0.1,0.01 model=small -m", "python prog.py lr=0.1,0.01 model=small"),
        ("python prog.py --multi 'lr=choice(0.1, 0.01)'", "python prog.py lr=0.1,0.01"),
        ("python prog.py -m 'n=range(1,4)' 'k=range(0,9,2)'", "python prog.py n=1..3 k=0..8..2"),
        ("python -m package.train -m lr=1,2", "python -m package.train lr=1,2"),
        ("python plain.py hydra.mode=MULTIRUN lr=1,2", "python plain.py lr=1,2"),
        ("mytrain --multirun lr=1,2", "mytrain lr=1,2"),
        ("mytrain -m hydra.job.name=x lr=1,2", "mytrain hydra.job.name=x lr=1,2"),
    ],
)
def test_a_multirun_of_the_programs_own_is_answered_by_the_sweep_that_makes_a_run_of_each(
    line: str, instead: str, project: Path
) -> None:
    found = own_multirun(shlex.split(line), project)

    assert found is not None
    assert found.is_certain
    assert f"write hpcml run -m -- {instead} for a run of each" in found.said


def test_a_multirun_beside_a_sweep_of_hpcmls_is_said_to_be_of_no_use(project: Path) -> None:
    words = ["python", "prog.py", "-m", "model=small", "lr={lr}"]
    found = own_multirun(words, project, is_swept=True)

    assert found is not None
    assert not found.is_certain
    assert found.said.startswith("-m behind the -- may be left out: hpcml makes a run of each value already")
    for its_own in (own_multirun(words, project), own_multirun([*words, "hydra/sweeper=tpe"], project, is_swept=True)):
        assert its_own is not None
        assert its_own.said.startswith("-m behind the -- is the program's own sweep")


@pytest.mark.parametrize(
    "line",
    [
        "python prog.py -m hparams=optuna",
        "python prog.py -m 'lr=interval(0.1,1)'",
        "python prog.py -m hydra/sweeper=optuna lr=1,2",
        "python plain.py -m layers=64,64",
        "mytrain -m lr=1,2",
        "python plain.py --multi lr=1,2",
    ],
)
def test_what_hpcml_cannot_sweep_or_may_be_no_sweep_is_only_remarked_on(line: str, project: Path) -> None:
    found = own_multirun(shlex.split(line), project)

    assert found is not None
    assert not found.is_certain


@pytest.mark.parametrize(
    "line",
    [
        "python prog.py lr=0.1",
        "python prog.py lr=1,2",
        "python -m package.train lr=1,2",
        "torchrun --nproc_per_node 2 -m package.train lr=1,2",
        "python plain.py -m 0.9 lr=1,2",
        "python plain.py -m",
        "python plain.py --mu 0.9",
        "python plain.py --mu 0.9 betas=0.9,0.99",
        "python plain.py --multi --lr 1",
        "python prog.py --mu 0.9",
        "python plain.py -m 'betas=[0.9,0.99]'",
    ],
)
def test_other_words_are_left_alone(line: str, project: Path) -> None:
    assert own_multirun(shlex.split(line), project) is None
