import json
import stat
import subprocess
from pathlib import Path

import pytest

from tests.cli.command_line import Hpcml

SINFO = "qcpu*|up|2-00:00:00|1:00:00|NO|1|8|8000|(null)\nqgpu|up|2-00:00:00|1:00:00|NO|2|8|8000|gpu:v100:4\n"


def said_in_one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.fixture
def login_node(tmp_path: Path) -> str:
    """The PATH of a machine with Slurm: programs that answer as recorded."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, answer in (
        ("sinfo", SINFO),
        ("scontrol", "ClusterName             = hpcml\nMaxArraySize            = 1001\n"),
    ):
        program = folder / name
        program.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{answer}END\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(folder)


def test_the_list_names_every_cluster_with_its_status(hpcml: Hpcml) -> None:
    done = hpcml("cluster", "list", COLUMNS="160")

    assert done.returncode == 0, done.stderr
    line = {words[0]: words for words in (text.split() for text in done.stdout.splitlines()) if words}
    assert line["anselm"][:4] == ["anselm", "pbs", "IT4Innovations", "decommissioned"]
    assert line["karolina"][-3:] == ["A100-SXM4-40GB", "8.0", "qgpu"]


def test_the_list_as_json_holds_all_that_show_would_say(hpcml: Hpcml) -> None:
    listed = json.loads(hpcml("cluster", "list", "--json").stdout)

    karolina = json.loads(hpcml("cluster", "show", "karolina", "--json").stdout)
    assert karolina in listed
    assert (karolina["gpus_per_node"], karolina["resources"]["partition"]) == (8, "qgpu")
    assert karolina["file"].endswith("karolina.yaml")


def test_show_says_where_it_is_from_and_how_to_use_it(hpcml: Hpcml) -> None:
    said = hpcml("cluster", "show", "karolina").stdout

    assert "It4innovations/braas-hpc@81a3879" in said
    assert "hpcml run +cluster=karolina resources.account=YOUR-ACCOUNT --dry-run" in said


def test_show_has_the_words_of_its_own_scheduler_as_far_as_the_profile_says_them(hpcml: Hpcml) -> None:
    said = {name: hpcml("cluster", "show", name).stdout for name in ("karolina", "polaris")}

    assert [word for word in ("slurm", "lsf", "pbs") if f"\n  {word} " in said["karolina"]] == []
    assert "\n  lsf " not in said["polaris"]
    assert "null" not in said["polaris"]
    assert "filesystems=home:eagle" in said["polaris"]


def test_show_tells_the_limits_of_each_queue_that_a_run_is_held_to(hpcml: Hpcml) -> None:
    said = " ".join(hpcml("cluster", "show", "polaris").stdout.split())

    assert "prod GPUs; from 5m; up to 24:00:00; nodes of a job: 10 or more, 496 at most;" in said
    assert "debug GPUs; from 5m; up to 01:00:00; nodes of a job: 2 at most" in said


def test_show_of_a_cluster_that_is_gone_offers_no_submission(hpcml: Hpcml) -> None:
    said = hpcml("cluster", "show", "salomon").stdout

    assert "decommissioned" in said
    assert [line for line in said.splitlines() if "hpcml run" in line and "--dry-run" not in line] == []


def test_an_unknown_cluster_is_one_line(hpcml: Hpcml) -> None:
    done = hpcml("cluster", "show", "atlantis")

    assert done.returncode == 2
    assert "cluster=atlantis is not known" in said_in_one_line(done)


def test_clusters_of_a_folder_given_are_listed_too(hpcml: Hpcml, tmp_path: Path) -> None:
    (tmp_path / "site" / "cluster").mkdir(parents=True)
    (tmp_path / "site" / "cluster" / "theirs.yaml").write_text("name: theirs\nscheduler: pbs\n")

    assert "theirs" in hpcml("cluster", "list", "-cd", str(tmp_path / "site")).stdout
    assert "theirs" in hpcml("cluster", "show", "theirs", "--config-dir", str(tmp_path / "site")).stdout


def test_a_profile_is_made_by_asking_the_scheduler_and_composes(hpcml: Hpcml, login_node: str) -> None:
    done = hpcml("cluster", "new", "mine", PATH=login_node)

    assert done.returncode == 0, done.stderr
    assert "cluster.gpu_model" in done.stdout
    composed = hpcml("run", "+cluster=mine", "--cfg", "job", "-p", "cluster")
    assert "gpu_type: v100" in composed.stdout
    assert "max_array_size: 1001" in composed.stdout


def test_a_profile_that_is_there_is_not_overwritten(hpcml: Hpcml, login_node: str) -> None:
    hpcml("cluster", "new", "mine", PATH=login_node)
    file = hpcml.cwd / "conf" / "cluster" / "mine.yaml"
    file.write_text("# mine\n")

    done = hpcml("cluster", "new", "mine", PATH=login_node)

    assert done.returncode == 2
    assert "mine.yaml exists already" in said_in_one_line(done)
    assert file.read_text() == "# mine\n"


def test_a_profile_elsewhere_says_how_it_is_reached(hpcml: Hpcml, login_node: str) -> None:
    done = hpcml("cluster", "new", "mine", "--output", "site/cluster", PATH=login_node)

    assert "hpcml run -cd site +cluster=mine --dry-run" in done.stdout
    assert (hpcml.cwd / "site" / "cluster" / "mine.yaml").is_file()


def test_without_a_scheduler_nothing_is_written(hpcml: Hpcml, tmp_path: Path) -> None:
    done = hpcml("cluster", "new", "mine", PATH=str(tmp_path))

    assert done.returncode == 2
    assert "no scheduler here" in said_in_one_line(done)
    assert list(hpcml.cwd.iterdir()) == []


def test_the_name_of_a_shipped_cluster_is_refused(hpcml: Hpcml, login_node: str) -> None:
    done = hpcml("cluster", "new", "karolina", PATH=login_node)

    assert done.returncode == 2
    assert "ships with hpcml" in said_in_one_line(done)
