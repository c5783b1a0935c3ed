import json
from pathlib import Path

from tests.cli.command_line import Hpcml


def verdicts(hpcml: Hpcml, *words: str, **variables: str) -> tuple[int, dict[str, tuple[str, str]]]:
    done = hpcml("doctor", "--json", *words, **variables)
    return done.returncode, {entry["check"]: (entry["verdict"], entry["found"]) for entry in json.loads(done.stdout)}


def test_a_healthy_machine_is_ok_and_nothing_is_made(hpcml: Hpcml) -> None:
    code, found = verdicts(hpcml)

    assert code == 0, found
    assert {name: verdict for name, (verdict, _) in found.items() if verdict == "fail"} == {}
    assert found["preflight"] == ("ok", "a default run would be accepted")
    assert not hpcml.home.exists()


def test_a_cluster_without_its_scheduler_and_account_fails_and_says_why(hpcml: Hpcml, tmp_path: Path) -> None:
    code, found = verdicts(hpcml, "--cluster", "karolina", PATH=str(tmp_path))

    assert code == 1
    assert found["sbatch"] == ("fail", "not on PATH")
    assert found["account"][0] == "fail"
    assert verdicts(hpcml, "--cluster", "karolina", HPCML_ACCOUNT="OPEN-1-1")[1]["account"] == ("ok", "OPEN-1-1")


def test_an_unknown_cluster_and_a_broken_store_are_failed_checks(hpcml: Hpcml, tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("notes, not a database " * 100)

    code, found = verdicts(hpcml, "--cluster", "atlantis", HPCML_STORE=str(tmp_path / "store.db"))

    assert code == 1
    assert found["store"][0] == "fail"
    assert "Could not find 'cluster/atlantis'" in found["profile atlantis"][1]


def test_the_table_is_for_people(hpcml: Hpcml) -> None:
    done = hpcml("doctor")

    assert done.stdout.splitlines()[0].split() == ["check", "verdict", "found"]
    assert not any(line.endswith(" ") for line in done.stdout.splitlines())
