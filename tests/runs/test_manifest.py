import json
from pathlib import Path

import pytest

from hpcml.commands.submit.plan import Software, build_plan
from hpcml.errors import HpcmlError
from hpcml.model.precision import CPU
from hpcml.runs.manifest import Manifest, read_manifest, write_manifest
from hpcml.runs.run_json import FORMAT
from tests.conftest import ORIGIN, ComposeOne


@pytest.fixture
def manifest(compose_one: ComposeOne, tmp_path: Path) -> Manifest:
    run = compose_one("workload.command=train --lr 0.1", "precision=amp_bf16", "resources.walltime=1h")
    software = Software(python="/usr/bin/python3", recipes=tmp_path, cwd=tmp_path)
    return Manifest(
        format=FORMAT,
        uid="20261121-083015-abcdef",
        spec_hash=run.spec_hash,
        run=run,
        plan=build_plan(run, CPU, software, cpus_per_task=2),
        provenance=ORIGIN,
    )


def test_a_manifest_reads_back_as_itself(manifest: Manifest, tmp_path: Path) -> None:
    write_manifest(tmp_path / "run.json", manifest)

    assert read_manifest(tmp_path / "run.json") == manifest


def test_a_manifest_is_never_overwritten(manifest: Manifest, tmp_path: Path) -> None:
    write_manifest(tmp_path / "run.json", manifest)

    with pytest.raises(FileExistsError):
        write_manifest(tmp_path / "run.json", manifest)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}', "\0" * 100])
def test_a_torn_or_foreign_manifest_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)

    with pytest.raises(HpcmlError, match=r"run\.json"):
        read_manifest(tmp_path / "run.json")


def test_a_manifest_with_an_unknown_key_names_it(manifest: Manifest, tmp_path: Path) -> None:
    write_manifest(tmp_path / "run.json", manifest)
    raw = json.loads((tmp_path / "run.json").read_text())
    raw["plan"]["teleport"] = True
    (tmp_path / "run.json").write_text(json.dumps(raw))

    with pytest.raises(HpcmlError, match=r"plan\.teleport"):
        read_manifest(tmp_path / "run.json")
