from pathlib import Path

import pytest

from hpcml.config.compose import Composed, compose_from_cli
from hpcml.config.user import with_accounts
from hpcml.errors import ConfigError


@pytest.fixture
def points(tmp_path: Path) -> list[Composed]:
    return compose_from_cli(["-m", "cluster=karolina,local"], project=tmp_path)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def nobody(question: str) -> str | None:
    assert question
    return None


def accounts(points: list[Composed]) -> list[str | None]:
    return [point.run.resources.account for point in points]


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_the_environment_gives_the_account_where_a_site_wants_one(
    points: list[Composed], environ: dict[str, str], tmp_path: Path
) -> None:
    given = with_accounts(points, {**environ, "HPCML_ACCOUNT": "OPEN-1-2"}, tmp_path, ask=nobody)

    assert accounts(given) == ["OPEN-1-2", None]


def test_the_project_goes_before_the_user_and_a_clusters_own_before_the_general(
    points: list[Composed], environ: dict[str, str], tmp_path: Path
) -> None:
    write(tmp_path / "config/hpcml/config.yaml", "account: general\naccounts: {karolina: mine}\n")
    assert accounts(with_accounts(points, environ, tmp_path, ask=nobody))[0] == "mine"

    write(tmp_path / "hpcml.yaml", "account: project\n")
    assert accounts(with_accounts(points, environ, tmp_path, ask=nobody))[0] == "project"


def test_what_was_said_on_the_command_line_stays(environ: dict[str, str], tmp_path: Path) -> None:
    points = compose_from_cli(["cluster=karolina", "resources.account=said"], project=tmp_path)

    given = with_accounts(points, {**environ, "HPCML_ACCOUNT": "other"}, tmp_path, ask=nobody)

    assert accounts(given) == ["said"]


def test_without_any_one_line_names_all_the_ways(
    points: list[Composed], environ: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refusal:
        with_accounts(points, environ, tmp_path, ask=nobody)

    said = str(refusal.value)
    assert "\n" not in said
    for way in ("resources.account", "HPCML_ACCOUNT", "hpcml.yaml", str(tmp_path / "config/hpcml/config.yaml")):
        assert way in said


def test_a_person_is_asked_once_and_told_where_an_account_is_kept(environ: dict[str, str], tmp_path: Path) -> None:
    points = compose_from_cli(["-m", "cluster=karolina", "seed=0,1"], project=tmp_path)
    questions: list[str] = []

    def person(question: str) -> str:
        questions.append(question)
        return "OPEN-7-7"

    assert accounts(with_accounts(points, environ, tmp_path, ask=person)) == ["OPEN-7-7", "OPEN-7-7"]
    file = tmp_path / "config/hpcml/config.yaml"
    assert questions == [f"Account to charge on karolina ('accounts: {{karolina: ...}}' in {file} sets it)"]
    assert not file.exists()  # what was typed may be wrong


def test_a_dry_run_shows_a_placeholder_and_asks_nobody(
    points: list[Composed], environ: dict[str, str], tmp_path: Path
) -> None:
    def nosy(question: str) -> str | None:
        raise AssertionError(question)

    given = with_accounts(points, environ, tmp_path, ask=nosy, placeholder="YOUR-ACCOUNT")

    assert accounts(given) == ["YOUR-ACCOUNT", None]


@pytest.mark.parametrize("text", ["accout: x\n", "[1]\n", "accounts: x\n", "a: [\n", "\xff"])
def test_a_broken_file_is_named(points: list[Composed], environ: dict[str, str], tmp_path: Path, text: str) -> None:
    (tmp_path / "hpcml.yaml").write_bytes(text.encode("latin-1"))

    with pytest.raises(ConfigError, match=r"hpcml\.yaml"):
        with_accounts(points, environ, tmp_path, ask=nobody)
