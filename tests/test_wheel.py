"""The package that a user installs, not the checkout: configuration and recipes must be in it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from hpcml_client.journal import VERSION
from tests.client.test_old_python import find_python310

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel."""
    return _wheel_of(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def client_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the client's own distribution and unpack it, as pip would, into a folder of its own."""
    folder = tmp_path_factory.mktemp("client")
    return _unpacked(_wheel_of(ROOT / "hpcml_client", folder), folder)


def _wheel_of(project: Path, folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, project],
        check=True,
        timeout=300,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    """Unpack the wheel, as pip would, into a folder of its own."""
    return _unpacked(built, built.parent)


def _unpacked(wheel: Path, folder: Path) -> Path:
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


def test_a_profile_that_a_site_adds_to_its_installation_is_everybodys(installed: Path, tmp_path: Path) -> None:
    site = shutil.copytree(installed, tmp_path / "site")
    profile = site / "hpcml" / "_data" / "conf" / "cluster" / "oursite.yaml"
    profile.write_text("# @package _global_\ncluster:\n  name: oursite\n  scheduler: slurm\n")

    assert "oursite" in hpcml(site, tmp_path, "cluster", "list")
    assert "oursite (slurm, active)" in hpcml(site, tmp_path, "run", "-n", "+cluster=oursite", "--", "true")


def test_the_wheel_holds_no_tests_and_no_documentation(installed: Path) -> None:
    assert {entry.name.partition("-")[0] for entry in installed.iterdir()} == {"hpcml", "hpcml_client", "hpcml_train"}


def test_the_client_alone_is_file_by_file_what_hpcml_brings(client_alone: Path, installed: Path) -> None:
    alone, brought = (
        {path.name: path.read_bytes() for path in (site / "hpcml_client").iterdir() if path.is_file()}
        for site in (client_alone, installed)
    )

    assert alone == brought
    names = {entry.name for site in (client_alone, installed) for entry in site.glob("*.dist-info")}
    assert names == {f"hpcml_client-{VERSION}.dist-info", f"hpcml-{VERSION}.dist-info"}


def test_the_client_alone_reports_on_python_3_10(client_alone: Path, tmp_path: Path) -> None:
    python = find_python310()
    if python is None:
        pytest.skip("no python3.10 on this machine")
    report = "import hpcml_client\nwith hpcml_client.connect() as run: run.metric('loss', 0.5)\n"
    # what only hpcml brings is said to be missing in a line that names the cure
    missing = "try: run.apply_precision()\nexcept ModuleNotFoundError as error: print(error)"
    env = {"PYTHONPATH": str(client_alone), "HPCML_RUN_DIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}

    done = subprocess.run(
        [python, "-c", report + missing], env=env, cwd=tmp_path, check=True, capture_output=True, text=True
    )

    (path,) = (tmp_path / "journal").iterdir()
    assert '"loss":0.5' in path.read_text().replace(" ", "")
    assert done.stdout == "apply_precision is hpcml's: start the program with hpcml, or pip install hpcml\n"


def _pythons() -> list[str]:
    """Return each Python from 3.11 on that is here and works, besides the one of the tests."""
    found: dict[str, str] = {}
    places = [*(Path.home() / ".pyenv" / "versions").glob("3.*/bin"), *map(Path, os.get_exec_path())]
    for path in (place / f"python3.{minor}" for minor in range(11, 20) for place in places):
        if path.name in found or not path.exists():
            continue
        asked = [str(path), "-c", "import sys, venv, ensurepip; print(sys.version_info >= (3, 11))"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
        if done.stdout.strip() == "True":
            found[path.name] = str(path)
    return [path for name, path in sorted(found.items()) if name != f"python3.{sys.version_info.minor}"]


_WITHOUT_LIBRARIES = """
import compileall, importlib, json, pathlib, sys

site = pathlib.Path(importlib.import_module("hpcml").__file__).parents[1]
assert site.is_relative_to(sys.prefix), site
assert all(compileall.compile_dir(site / name, quiet=1) for name in json.loads(sys.argv[1]))
imported, lacking = [], set()
for path in sorted((site / "hpcml").rglob("*.py")):
    if "_data" in path.parts or "migrations" in path.parts or path.stem == "__main__":
        continue
    name = ".".join(path.relative_to(site).with_suffix("").parts).removesuffix(".__init__")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name.partition(".")[0] not in ("hpcml", "hpcml_client"), name
        lacking.add(error.name.partition(".")[0])
    else:
        imported.append(name)
print(json.dumps([imported, sorted(lacking)]))
"""
_CLIENT = """
import os, sys
from hpcml_client import connect

with connect({"HPCML_RUN_DIR": sys.argv[1], "HPCML_ATTEMPT": "0"}) as run:
    run.metrics({"loss": 0.5}, 1)
"""


@pytest.mark.parametrize("python", _pythons() or [pytest.param("", marks=pytest.mark.skip("no other Python here"))])
def test_the_wheel_is_whole_on_every_python_at_hand(built: Path, python: str, tmp_path: Path) -> None:
    """Without a network its libraries are missing there: what needs the standard library alone must work."""
    subprocess.run([python, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=300)
    inside = tmp_path / "venv" / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", str(built)]
    pip = [sys.executable, "-m", "pip", "--python", str(inside)]
    subprocess.run([*pip, *install], check=True, timeout=300)

    packages = json.dumps(["hpcml", "hpcml_client"])
    done = asked(inside, tmp_path, _WITHOUT_LIBRARIES, packages)
    imported, lacking = json.loads(done)

    assert set(lacking) <= required()
    assert {"hpcml.agent.supervise", "hpcml.model.run", "hpcml.runs.layout", "hpcml.runs.journal"} <= set(imported)
    (tmp_path / "run" / "journal").mkdir(parents=True)
    asked(inside, tmp_path, _CLIENT, str(tmp_path / "run"))
    (journal,) = (tmp_path / "run" / "journal").iterdir()
    assert '"loss":0.5' in journal.read_text()


def required() -> set[str]:
    """Return the names under which hpcml's dependencies are imported."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        names = [re.split(r"[^\w-]", word)[0] for word in tomllib.load(file)["project"]["dependencies"]]
    others = {"hydra-core": "hydra", "pyyaml": "yaml", "nvidia-ml-py": "pynvml"}
    return {others.get(name, name) for name in names} | {"markupsafe"}  # which jinja2 brings


def asked(python: Path, cwd: Path, code: str, *words: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HPCML_"))}
    done = subprocess.run(
        [str(python), "-W", "error", "-c", code, *words],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
