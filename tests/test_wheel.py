"""The package that a user installs, not the checkout: configuration and recipes must be in it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and unpack it, as pip would, into a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT],
        check=True,
        timeout=300,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def hpcml(site: Path, cwd: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from hpcml.cli.main import main; main()", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(site), "HPCML_HOME": str(cwd / "home"), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_brings_its_configuration_and_recipes(installed: Path, tmp_path: Path) -> None:
    said = hpcml(installed, tmp_path, "run", "--dry-run", "+cluster=karolina", "precision=tf32")

    recipe = installed / "hpcml" / "_data" / "recipes" / "image_classification" / "train.py"
    assert str(recipe) in said
    assert (recipe.parent / "training.py").is_file()


def test_a_run_from_the_wheel_records_through_the_client_in_it(installed: Path, tmp_path: Path) -> None:
    program = f"{sys.executable} -c 'import hpcml_client as c; print(c.__file__)'"

    hpcml(installed, tmp_path, "run", f"workload.command={program}")

    (said,) = (tmp_path / "home").glob("runs/*/*/logs/0-rank0.out")
    used = Path(said.read_text().strip()).resolve().parent  # a copy: the installation may change while a job waits
    assert used.is_relative_to(tmp_path / "home" / "code")
    shipped = {path.name: path.read_bytes() for path in (installed / "hpcml_client").glob("*.py")}
    assert {path.name: path.read_bytes() for path in used.glob("*.py")} == shipped


def test_the_wheel_holds_no_tests_and_no_documentation(installed: Path) -> None:
    assert {entry.name.partition("-")[0] for entry in installed.iterdir()} == {"hpcml", "hpcml_client"}
