"""The house of docs/architecture.md, held: floors, owners of libraries, sizes, and what a command may load."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS: dict[str, int] = {
    "cli": 4,
    "operations": 3,
    **dict.fromkeys(("config", "images", "schedulers", "agent", "store", "analysis", "report", "interop"), 2),
    **dict.fromkeys(("spec", "workload", "precision", "manifest", "rundir", "journal", "records", "comparison"), 1),
    **dict.fromkeys(
        ("cluster", "states", "places", "codec", "quantities", "causes", "image", "webhook", "lease", "hardware"), 1
    ),
    **dict.fromkeys(("answers", "scaling", "attainment", "strategy", "recipe", "planning", "publication", "live"), 1),
    "strategy_fit": 1,
    "requirement": 1,
    "data_path": 1,
    "record_keys": 1,
    "api": 4,
    "container": 1,
    "errors": 0,
    "resources": 0,
}
OWNERS: dict[str, set[str]] = {
    "sqlalchemy": {"store"},
    "alembic": {"store"},
    "psycopg": {"store"},
    "hydra": {"config"},
    "omegaconf": {"config"},
    "submitit": {"schedulers"},
    "spython": {"images"},
    "pynvml": {"agent/nvml"},
    "click": {"cli"},
    "plotly": {"report"},
    "jinja2": {"report"},
    "scipy": {"analysis"},
    "mlflow": {"interop/mlflow_runs.py"},
    "tensorboard": {"interop/tensorboard_events.py"},
    "prometheus_client": {"interop/openmetrics_text.py"},
    "rocrate": {"interop/process_run_crate.py"},
    "pyarrow": {"interop/parquet_files.py"},
    "torch": set(),
    "tensorflow": set(),
    "keras": set(),
    "jax": set(),
    "horovod": set(),
}
FRAMEWORKS = ("torch", "horovod", "tensorflow", "jax", "numpy", "onnx", "onnxruntime", "onnxscript")
SCHEDULER_WORDS = ("sbatch", "qsub", "sacct", "qstat")


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "hpcml" and parts[1] in FLOORS else None


def own_room(path: Path) -> str:
    relative = path.relative_to(ROOT / "hpcml")
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


@pytest.mark.parametrize("path", modules("hpcml"), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down_and_rooms_of_one_floor_are_strangers(path: Path) -> None:
    room = own_room(path)
    if room == "__init__":
        return
    assert room in FLOORS, f"{room} has no floor"
    for name in imported(path):
        other = room_of(name)
        if other is None or other == room:
            continue
        same_floor_of_words = FLOORS[room] == FLOORS[other] == 1  # words may be made of words
        assert FLOORS[other] < FLOORS[room] or same_floor_of_words, f"{room} must not know {other}"


@pytest.mark.parametrize("path", modules("hpcml"), ids=lambda path: str(path.relative_to(ROOT)))
def test_each_library_has_one_owner(path: Path) -> None:
    relative = path.relative_to(ROOT / "hpcml")
    places = {own_room(path), str(relative), str(relative.parent)}
    for name in imported(path):
        library = name.partition(".")[0]
        if library in OWNERS:
            assert places & OWNERS[library], f"{library} is not for {relative}"


@pytest.mark.parametrize("path", modules("hpcml"), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_schedulers_room_says_a_schedulers_commands(path: Path) -> None:
    if own_room(path) == "schedulers":
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert node.value not in SCHEDULER_WORDS


def test_words_and_ground_use_the_standard_library_only() -> None:
    allowed = set(sys.stdlib_module_names) | {"hpcml"}
    for path in modules("hpcml"):
        if FLOORS.get(own_room(path), 9) <= 1:
            assert {name.partition(".")[0] for name in imported(path)} <= allowed, path


def test_the_client_uses_the_standard_library_and_frameworks_only() -> None:
    for path in modules("hpcml_client"):
        names = {name.partition(".")[0] for name in imported(path)}
        assert names <= set(sys.stdlib_module_names) | {"hpcml_client"} | {*FRAMEWORKS, "PIL"}, path


def test_recipes_use_the_standard_library_their_framework_and_the_client_only() -> None:
    for path in modules("recipes"):
        names = {name.partition(".")[0] for name in imported(path)}
        siblings = {sibling.stem for sibling in path.parent.glob("*.py")}
        assert names <= set(sys.stdlib_module_names) | {"hpcml_client", *FRAMEWORKS} | siblings, path


@pytest.mark.parametrize(
    "path", [*modules("hpcml"), *modules("hpcml_client"), *modules("recipes")], ids=lambda p: str(p.relative_to(ROOT))
)
def test_no_file_is_longer_than_400_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def loaded_by(*words: str, tmp_path: Path) -> set[str]:
    """Return the top-level packages that `hpcml *words*` imports, read from -X importtime."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "from hpcml.cli.main import main; main()", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "HPCML_HOME": str(tmp_path)},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


FOREIGN = {
    "alembic", "hydra", "jinja2", "numpy", "omegaconf", "plotly", "psutil", "pynvml", "rich", "scipy", "sqlalchemy",
    "submitit", "torch", "yaml",
}  # fmt: skip


def test_help_loads_click_and_nothing_else_foreign(tmp_path: Path) -> None:
    loaded = loaded_by("--help", tmp_path=tmp_path)

    assert "click" in loaded
    assert not loaded & FOREIGN


@pytest.mark.parametrize("command", ["runs", "status"])
def test_listing_runs_loads_neither_hydra_nor_scipy_nor_torch(command: str, tmp_path: Path) -> None:
    loaded = loaded_by(command, tmp_path=tmp_path)

    assert "sqlalchemy" in loaded
    assert not loaded & {"hydra", "omegaconf", "scipy", "torch", "submitit"}


def test_a_dry_run_loads_no_database_and_no_framework(tmp_path: Path) -> None:
    loaded = loaded_by("run", "--dry-run", tmp_path=tmp_path)

    assert "hydra" in loaded
    assert not loaded & {"sqlalchemy", "alembic", "scipy", "torch"}
