"""Settings that are texts, as people write them: Hydra's grammar would refuse them, or read numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.config.compose import compose_from_cli
from hpcml.errors import ConfigError
from hpcml.model.container import Container


def container(word: str, tmp_path: Path) -> Container:
    (point,) = compose_from_cli(["+container=ngc_pytorch", word], project=tmp_path, most=1)
    return point.run.container


@pytest.mark.parametrize(
    ("typed", "packages"),
    [
        ("[timm==1.0.9]", ["timm==1.0.9"]),
        ("[jax[cuda]>=0.4,einops]", ["jax[cuda]>=0.4", "einops"]),
        ("[-r requirements.txt,timm==1]", ["-r requirements.txt", "timm==1"]),
        ("[timm==1,'a>=1,<2']", ["timm==1", "a>=1,<2"]),
    ],
)
def test_packages_are_written_as_for_pip(tmp_path: Path, typed: str, packages: list[str]) -> None:
    assert container(f"container.pip={typed}", tmp_path).pip == packages


@pytest.mark.parametrize("value", ["true", "1e3", "1.10", "007", "0x10", "nan"])
def test_values_of_variables_keep_their_spelling(tmp_path: Path, value: str) -> None:
    assert container(f"+container.environment.A={value}", tmp_path).environment == {"A": value}
    assert container(f"container.environment={{A:{value},B:x}}", tmp_path).environment == {"A": value, "B": "x"}


def test_a_sweep_of_variables_keeps_their_spelling(tmp_path: Path) -> None:
    points = compose_from_cli(["-m", "+workload.env.A=true,1.10,x"], project=tmp_path)

    assert [point.run.workload.env["A"] for point in points] == ["true", "1.10", "x"]


@pytest.mark.parametrize("value", ["true", "1e3", "3.10", "007", "0x10", "nan", "inf", "1e400", "2026_11_25", "12"])
def test_texts_keep_their_spelling(tmp_path: Path, value: str) -> None:
    (point,) = compose_from_cli([f"name={value}", f"++resources.account={value}"], project=tmp_path)

    assert (point.run.name, point.run.resources.account) == (value, value)
    assert container(f"container.tag={value}", tmp_path).tag == value


def test_a_sweep_of_texts_keeps_their_spelling(tmp_path: Path) -> None:
    points = compose_from_cli(["-m", "experiment=2026_1,2026_2", "name=null,x"], project=tmp_path)

    assert [(point.run.experiment, point.run.name) for point in points] == [
        ("2026_1", None),
        ("2026_1", "x"),
        ("2026_2", None),
        ("2026_2", "x"),
    ]


@pytest.mark.parametrize(
    ("typed", "name"), [('"a,1e3,b"', "a,1e3,b"), ("'a, 1.10'", "a, 1.10"), ("'1.10'", "1.10"), ("'${seed}'", "5")]
)
def test_texts_in_quotes_are_what_stands_in_them(tmp_path: Path, typed: str, name: str) -> None:
    (point,) = compose_from_cli([f"name={typed}", "seed=5"], project=tmp_path)

    assert point.run.name == name


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("data.path=/x/a,b é/im", """write 'data.path="/x/a,b é/im"' for one"""),
        ('data.path="/x","/y"', """write 'data.path="/x,/y"' for one"""),
    ],
)
def test_one_value_with_a_comma_is_advised_in_quotes_that_can_be_typed(word: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_from_cli([word], project=tmp_path)

    assert str(caught.value).endswith(says)
