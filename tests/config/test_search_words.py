from __future__ import annotations

import pytest

from hpcml.config.search_words import read_search
from hpcml.errors import ConfigError

PROGRAM = ["python", "train.py", "--lr", "log(1e-4..1e-1)", "--width={64,128}", "layers=1..4", "--name", "x"]


def test_axes_stand_in_settings_and_in_the_words_of_the_program() -> None:
    words = read_search(["+cluster=karolina", "training.batch_size={32,64}", "args.drop=0.0..0.5"], PROGRAM)

    assert [axis.key for axis in words.axes] == [
        "training.batch_size",
        "workload.args.drop",
        "workload.args.lr",
        "workload.args.width",
        "workload.args.layers",
    ]
    point = dict(zip([axis.key for axis in words.axes], ["64", 0.25, 0.001, "128", 3], strict=True))
    assert words.at(point) == (
        ["+cluster=karolina", "training.batch_size=64", "args.drop=0.25"],
        ["python", "train.py", "--lr", "0.001", "--width=128", "layers=3", "--name", "x"],
    )


def test_a_setting_without_a_value_is_left_to_its_default() -> None:
    words = read_search(["training.learning_rate=0.01..0.1", "seed=3"], None)

    assert words.at({"training.learning_rate": None}) == (["seed=3"], None)


@pytest.mark.parametrize(
    ("settings", "program", "why"),
    [
        (["training.steps=50"], None, "nothing is searched"),
        (["-m", "training.steps=50..60"], None, "-m sweeps a list"),
        (["seed=0..4"], None, "seed: seeds are not searched"),
        ([], ["python", "train.py", "--seed", "0..4"], "seed: seeds are not searched"),
        (["args.lr=0.1..0.2"], PROGRAM, "lr is searched twice"),
        (["training.steps=60..50"], None, "training.steps=60..50: the range is upside down"),
    ],
)
def test_words_that_are_no_search_are_refused(settings: list[str], program: list[str] | None, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_search(settings, program)
