"""A data.path that cannot be read is refused while nothing waits for it yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.commands.submit.plan import absent_paths, check_kind
from hpcml.config.compose import compose_from_cli
from hpcml.errors import ConfigError
from hpcml.model.run import Run


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("x")
    (tmp_path / "hollow").mkdir()
    (tmp_path / "nothing").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind"), [("folder", "folder"), ("folder/file", "file"), ("folder", "any"), ("folder/file", "any")]
)
def test_what_is_there_and_of_its_kind_is_let_through(place: Path, name: str, kind: str) -> None:
    check_kind(str(place / name), kind, data="mnist")


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("folder", "file", "is a folder: data=mnist is read from a file"),
        ("folder/file", "folder", "is a file: data=mnist is read from a folder"),
        ("hollow", "folder", "is empty: data=mnist is read from it"),
        ("nothing", "any", "is empty: data=mnist is read from it"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_path(place: Path, name: str, kind: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_kind(str(place / name), kind, data="mnist")
    assert str(refused.value) == f"data.path={place / name} {says}"


def test_data_that_is_read_from_a_path_needs_one() -> None:
    with pytest.raises(ConfigError, match=r"^data=mnist needs data\.path: a file or a folder$"):
        check_kind(None, "any", data="mnist")


@pytest.mark.parametrize("words", [["data=mnist", "data.path={}"], ["+container=sif", "container.path={}"]])
def test_a_path_that_leads_nowhere_takes_one_line(place: Path, words: list[str]) -> None:
    def run_of(name: str) -> Run:
        (point,) = compose_from_cli([word.format(place / name) for word in words], project=place)
        return point.run

    key = words[1].partition("=")[0]
    assert list(absent_paths(run_of("folder"))) == []
    assert list(absent_paths(run_of("gone"))) == [f"{key}={place / 'gone'} does not exist"]
    with pytest.raises(ConfigError, match=rf"^{key}=.* cannot be looked at: File name too long$"):
        list(absent_paths(run_of("x" * 300)))
