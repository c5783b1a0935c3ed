"""Which precision a run has where nobody has chosen one: a program's is its own, a recipe's is fp32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.config.compose import compose_from_cli
from hpcml.config.program import Program
from hpcml.errors import ConfigError
from tests.conftest import ComposeOne

IN_A_FILE = "# @package _global_\nmodel: {name: legacy, recipe: null}\nworkload: {command: ./train}\n"


@pytest.fixture
def with_file(tmp_path: Path) -> Path:
    file = tmp_path / "conf" / "model" / "legacy.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(IN_A_FILE)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "fp32"),
        (["precision=tf32"], "tf32"),
        (["workload.command=./train"], "own"),
        (["workload.command=./train", "precision=fp32"], "fp32"),
        (["workload.command=./train", "precision.name=fp32"], "fp32"),
        (["workload.command=./train", "precision=amp"], "amp_fp16"),
        (["model=legacy"], "own"),
        (["model=legacy", "precision=fp32"], "fp32"),
    ],
)
def test_a_program_has_its_own_precision_and_a_recipe_fp32(words: list[str], name: str, with_file: Path) -> None:
    (point,) = compose_from_cli(words, project=with_file)

    assert point.run.precision.name.name == name


def test_the_words_behind_two_dashes_are_such_a_program(tmp_path: Path) -> None:
    program = Program(words=("./train", "--lr", "{lr}"), sweeps={"lr": ("1", "2")})
    own = compose_from_cli(["-m", "seed=0,1"], project=tmp_path, program=program)
    swept = compose_from_cli(["-m", "precision=own,fp32,tf32"], project=tmp_path, program=program)

    assert [point.run.precision.name.name for point in own] == ["own"] * 4
    assert [point.run.precision.name.name for point in swept] == ["own", "own", "fp32", "fp32", "tf32", "tf32"]


def test_what_is_printed_of_the_configuration_is_what_would_run(
    with_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*words: str, program: Program | None = None) -> str:
        assert not compose_from_cli([*words, "--cfg", "job"], project=with_file, program=program)
        return capsys.readouterr().out

    program = Program(words=("./train", "a b", "${x}", 'it"s', "{seed}", "c\\"))

    assert "name: fp32" in printed("-p", "precision")
    assert "name: own" in printed("-p", "precision", "model=legacy")
    assert "name: own" in printed("--package", "precision", program=program)
    assert "name: tf32" in printed("precision=tf32", "-p", "precision", program=program)
    assert f"command: {program.command}\n" in printed("-p", "workload", "--resolve", program=program)
    assert "command: null" in printed("-p", "workload")


def test_a_recipe_cannot_be_left_to_itself_behind_the_configurations_back(compose_one: ComposeOne) -> None:
    own = compose_one("workload.command=./train")
    with pytest.raises(ConfigError, match="precision=own leaves the arithmetic to a program of your own"):
        replace(compose_one(), precision=own.precision)
