from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.cli.command_line import Hpcml
from tests.interop.exchanging import EVIL, ODD, OPEN, PLAIN, real


def crate_of(hpcml: Hpcml, *words: str) -> Any:  # noqa: ANN401 - of a library without types
    done = hpcml("export", "--to", "rocrate", "-o", "crate", *words)
    assert done.returncode == 0, done.stderr
    return real("rocrate.rocrate").ROCrate(str(hpcml.cwd / "crate"))


def actions_of(crate: Any) -> dict[str, Any]:  # noqa: ANN401
    return {entity.id.removeprefix("#"): entity for entity in crate.get_by_type("CreateAction")}


def told(values: Any) -> dict[str, Any]:  # noqa: ANN401
    several = values if isinstance(values, list) else [values]
    return {value["name"]: value["value"] for value in several if value.type == "PropertyValue"}


def files(values: Any) -> set[str]:  # noqa: ANN401
    return {value.id for value in values if value.type == "File"}


def test_a_crate_says_who_ran_what_with_what_and_what_came_of_it(hpcml: Hpcml) -> None:
    crate = crate_of(hpcml)

    actions = actions_of(crate)
    assert set(actions) == {PLAIN, ODD, OPEN}
    plain = actions[PLAIN]
    assert plain["instrument"].type == "SoftwareApplication"
    assert (plain["instrument"]["name"], plain["instrument"]["softwareVersion"]) == ("torch_classification", "c0ffee")
    assert (plain["agent"].type, plain["agent"]["name"]) == ("Person", "ada")
    assert (plain["startTime"], plain["endTime"]) == ("2026-05-28T20:26:40.000+00:00", "2026-05-28T20:26:50.000+00:00")
    assert plain["actionStatus"] == "http://schema.org/CompletedActionStatus"
    assert told(plain["object"])["training.steps"] == 300
    assert files(plain["object"]) == {f"runs/{PLAIN}/run.json", f"runs/{PLAIN}/git.diff"}
    assert told(plain["result"]) == {"loss": 0.2, "val/accuracy": 0.4}
    used = {"gpu_s": 10.0, "energy_j": 2500.0, "energy_method": "counter", "energy_scope": "gpu", "cpu_s": 4.0}
    hardware = {"hostname": "n1", "cores": 8, "gpu_model": "NVIDIA A100"}
    assert told(plain["resourceUsage"]) == {**hardware, "wall_s": 10.0, "mean_power_w": 250.0, **used}
    odd = actions[ODD]
    assert odd["actionStatus"] == "http://schema.org/FailedActionStatus"
    assert odd["error"] == f"FAILED: program: {EVIL}"
    assert told(odd["result"])["loss"] == "nan"
    assert actions[OPEN]["actionStatus"] == "http://schema.org/ActiveActionStatus"
    assert "endTime" not in actions[OPEN].properties()


def test_its_root_says_what_the_profile_demands(hpcml: Hpcml) -> None:
    crate = crate_of(hpcml, PLAIN, "--license", "https://creativecommons.org/licenses/by/4.0/")

    root = crate.root_dataset
    assert root["conformsTo"].id == "https://w3id.org/ro/wfrun/process/0.5"
    assert root["license"].id == "https://creativecommons.org/licenses/by/4.0/"
    assert root["mentions"][0].id == f"#{PLAIN}"
    assert {"name", "description", "datePublished", "author"} <= set(root.properties())
    metadata = json.loads((hpcml.cwd / "crate" / "ro-crate-metadata.json").read_text(encoding="utf-8"))
    assert metadata["@context"] == [
        "https://w3id.org/ro/crate/1.1/context",
        "https://w3id.org/ro/terms/workflow-run/context",
    ]


def test_every_file_is_there_with_the_hash_and_size_that_the_crate_tells(hpcml: Hpcml) -> None:
    crate = crate_of(hpcml, "--artifacts")

    described = {entity.id: entity for entity in crate.get_by_type("File") if entity.id != "ro-crate-metadata.json"}
    for name, entity in described.items():
        content = (hpcml.cwd / "crate" / name).read_bytes()
        assert entity["sha256"] == hashlib.sha256(content).hexdigest()
        assert entity["contentSize"] == str(len(content))
    on_disk = {str(path.relative_to(hpcml.cwd / "crate")) for path in (hpcml.cwd / "crate").glob("runs/**/*.*")}
    assert set(described) == on_disk
    assert {f"runs/{PLAIN}/files/model.txt", f"runs/{PLAIN}/files/logs/0-rank0.out"} <= set(described)
    points = (hpcml.cwd / "crate" / "runs" / PLAIN / "points.csv").read_text().splitlines()
    assert points[:2] == ["uid,metric,step,t_s,value", f"{PLAIN},loss,0,1.0,1.0"]


def test_an_artifact_outside_of_the_run_stays_outside(hpcml: Hpcml, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("key")
    run_dir = hpcml.home / "runs" / "default" / OPEN
    (run_dir / "link.txt").symlink_to(secret)
    with (run_dir / "journal" / "0-node7-rank0.jsonl").open("a") as journal:
        for number, name in enumerate((str(secret), "../../../../secret.txt", "link.txt", "run.json\0")):
            line = {"k": "e", "s": number + 1, "t": 1.0, "n": "artifact", "d": {"path": name}}
            journal.write(json.dumps(line) + "\n")

    crate = crate_of(hpcml, OPEN, "--artifacts")

    assert files(actions_of(crate)[OPEN]["result"]) == {f"runs/{OPEN}/points.csv", f"runs/{OPEN}/events.jsonl"}


def test_the_image_of_a_run_is_told_with_its_digest(hpcml: Hpcml) -> None:
    manifest = hpcml.home / "runs" / "default" / PLAIN / "run.json"
    asked = json.loads(manifest.read_text())
    asked["plan"]["image"] = {"path": "/images/abc/pytorch.sif", "sha256": "ab" * 32, "key": "abc"}
    manifest.write_text(json.dumps(asked))

    image = actions_of(crate_of(hpcml, PLAIN))[PLAIN]["containerImage"]

    assert (image["name"], image["sha256"]) == ("pytorch.sif", "ab" * 32)
    assert image["additionalType"] == "https://w3id.org/ro/terms/workflow-run#SIFImage"


def test_a_run_whose_directory_is_gone_is_told_as_the_store_has_it(hpcml: Hpcml) -> None:
    hpcml.runs()
    (hpcml.home / "runs" / "default" / PLAIN).rename(hpcml.cwd / "elsewhere")

    plain = actions_of(crate_of(hpcml, PLAIN))[PLAIN]

    assert plain["agent"]["name"] == "unknown"
    assert told(plain["result"])["loss"] == 0.2
