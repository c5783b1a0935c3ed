"""A recipe of the user's own runs as shipped ones do: from the scaffold to recorded runs, from a copy of its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcml.commands.new import new_recipe
from hpcml.commands.submit.containers import put_inside
from hpcml.commands.submit.snapshot import foreseen, keep_code
from hpcml.errors import ConfigError
from hpcml.paths import Places
from hpcml.runs.layout import RunDir
from hpcml.runs.plan import Image
from tests.cli.command_line import Hpcml, said_in_one_line
from tests.commands.planning import planned_for


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    cwd = tmp_path / "project"
    cwd.mkdir()
    return Hpcml(environ=hpcml_environ, cwd=cwd)


def test_a_new_recipe_runs_at_once_in_a_native_and_an_emulated_precision(hpcml: Hpcml) -> None:
    made = hpcml("new", "recipe", "mine")
    done = hpcml("run", "-m", "model=mine", "precision=fp32,tf32", "training.steps=60", "training.eval_every=30")

    assert made.stdout.splitlines()[-1] == "then: hpcml run model=mine training.steps=100"
    assert done.returncode == 0, done.stderr
    runs = hpcml.runs()
    assert {(run["precision"], run["precision_effective"]) for run in runs} == {("fp32", "fp32"), ("tf32", "tf32")}
    for run in runs:
        assert run["metrics"]["val_accuracy"]["last"] > 0.5  # 0.1 is chance
    (manifest, _) = hpcml.home.glob("runs/default/*/run.json")
    program = Path(json.loads(manifest.read_text())["plan"]["argv"][1])
    assert program.is_relative_to(hpcml.home / "code")
    assert sorted(path.name for path in program.parent.glob("*.*")) == [
        *("README.md", "recipe.toml", "train.py", "training.py"),
    ]
    assert "exists already" in said_in_one_line(hpcml("new", "recipe", "mine"))


def test_on_a_cluster_it_is_copied_and_seen_in_its_image(tmp_path: Path) -> None:
    new_recipe("mine", tmp_path)
    (tmp_path / "recipes" / "mine" / ".cache").write_text("hidden")
    (item,) = planned_for(tmp_path, "model=mine", "+cluster=karolina", "resources.account=OPEN-1-1")
    places = Places(home=tmp_path / "home", store_url="sqlite://")

    run_dir = RunDir(places.runs / "default" / "RUN")
    kept = keep_code(places)(item, run_dir)
    inside = put_inside(
        kept.plan, item.run, Image(path="/a.sif"), run_dir, folder=tmp_path, code=kept.code, packages=kept.packages
    )

    assert kept.code is not None
    assert kept.plan.argv[1] == str(kept.code / "mine" / "train.py")
    assert not (kept.code / "mine" / ".cache").exists()
    assert f"{kept.code / 'mine'}:{kept.code / 'mine'}:ro" in " ".join(inside.argv)
    assert foreseen([item], places)[0].startswith(f"code: a copy of 4 files of {tmp_path / 'recipes' / 'mine'}")


def test_a_recipe_with_its_data_inside_is_refused(tmp_path: Path) -> None:
    new_recipe("mine", tmp_path)
    with (tmp_path / "recipes" / "mine" / "pictures.npz").open("wb") as file:
        file.truncate(256 << 20)  # without a byte on the disk
    (item,) = planned_for(tmp_path, "model=mine")

    with pytest.raises(ConfigError, match=r"recipes/mine is too large to be copied .*data.path"):
        foreseen([item], Places(home=tmp_path / "home", store_url="sqlite://"))
