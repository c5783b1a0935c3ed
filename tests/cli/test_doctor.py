import json
import socket
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(("silent", "verdict"), [("sacct", "warn"), ("squeue", "fail")])
def test_an_accounting_that_is_away_is_told_from_a_scheduler_that_is(
    hpcml: Hpcml, tmp_path: Path, silent: str, verdict: str
) -> None:
    for name in ("sbatch", "squeue", "sacct", "scancel"):
        path = tmp_path / name
        fails = f"echo '{name}: error: Connection refused' >&2; exit 1" if name == silent else ""
        path.write_text(f"#!/bin/sh\n{fails}\n")
        path.chmod(0o755)

    _, found = verdicts(hpcml, "--cluster", "karolina", PATH=f"{tmp_path}:/usr/bin:/bin")

    assert found["slurm answers"][0] == verdict
    assert f"{silent}: Connection refused" in found["slurm answers"][1]


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


def test_what_images_need_is_looked_at_once_there_is_a_runtime(hpcml: Hpcml, tmp_path: Path) -> None:
    program = tmp_path / "apptainer"
    program.write_text("#!/bin/sh\necho apptainer version 1.4.5\n")
    program.chmod(0o755)
    mirror = f"127.0.0.1:{closed_port()}"

    _, without = verdicts(hpcml, PATH="/usr/bin:/bin")
    code, found = verdicts(
        hpcml,
        "--network",
        PATH=f"{tmp_path}:/usr/bin:/bin",
        HPCML_IMAGES=str(tmp_path / "images"),
        HPCML_NGC_REGISTRY=mirror,
        NGC_API_KEY="nvapi-x",
    )

    assert without["containers"][0] == "warn"
    assert "user namespaces" not in without
    assert code == 0, found
    assert found["containers"] == ("ok", f"apptainer 1.4.5, {program}")
    assert {"user ids", "user namespaces", "fuse"} <= set(found)
    assert found["images"][1].startswith(f"{tmp_path / 'images'}, ")
    assert found[f"login of {mirror}"] == ("ok", "there is one")
    assert found[mirror][0] == "warn"
    assert "cannot be reached" in found[mirror][1]
    assert not (tmp_path / "images").exists()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port
