"""The house of docs/architecture.md, held: levels, no circles or fragments, owners of libraries, what is loaded."""

from __future__ import annotations

import ast
import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.model.precision import PrecisionName
from hpcml.model.run import Precision
from tests.store.building import Journal, make_run_dir

ROOT = Path(__file__).resolve().parent.parent
LEVELS: dict[str, int] = {  # a module knows its own room and the levels below; rooms of one level are strangers
    "__main__": 7,
    **dict.fromkeys(("cli", "api"), 6),
    "commands": 5,
    **dict.fromkeys(("config", "images", "schedulers", "agent", "store", "analysis", "report", "interop"), 4),
    "runs": 3,
    "model": 2,
    **dict.fromkeys(
        ("paths", "mounts", "walltime", "units", "codec", "formulas", "plugins", "search_path", "spelling"), 1
    ),
    "errors": 0,
}
SHOWS = ("report", "analysis")  # what the one may know of its own level: the results that it shows
OWNERS: dict[str, set[str]] = {
    "sqlalchemy": {"store"},
    "alembic": {"store"},
    "psycopg": {"store"},
    "hydra": {"config"},
    "omegaconf": {"config"},
    "submitit": {"api/executor.py", "schedulers"},
    "spython": {"images"},
    "dockerfile_parse": {"images/dockerfile.py"},
    "pathspec": {"images/dockerfile.py"},
    "pynvml": {"agent/nvml"},
    "click": {"cli"},
    "plotly": {"report"},
    "jinja2": {"report"},
    "scipy": {"analysis"},
    "optuna": {"analysis/search.py"},
    "mlflow": {"interop/mlflow_client.py", "interop/mlflow_export.py"},
    "tensorboard": {"interop/tensorboard_export.py"},
    "rocrate": {"interop/crate_export.py"},
    "pyarrow": {"interop/parquet_export.py"},
    "torch": set(),
    "tensorflow": set(),
    "keras": set(),
    "jax": set(),
    "horovod": set(),
}
# A module under 80 lines with one importer, in its own room: the topic that a reader looks for under its name.
SMALL_TOPICS: dict[str, str] = {}
# Public names that stand twice on purpose: what the Python API calls as its users would, and the value behind it.
SAME_NAME: dict[str, str] = {
    "Submission": "the Python API's, which is waited for and cancelled, and what is on the disk before it is made",
    "Column": "of a listing, and of a table that is exported",
    "Curves": "the Python API's, with frames, around the model's",
}
CALLBACKS = {  # modules of the client for those who have the framework; nothing else imports them
    "accelerate": {"accelerate"},
    "keras": {"keras"},
    "call": {"submitit"},
    "lightning": {"lightning", "pytorch_lightning"},
    "transformers": {"transformers"},
}
FRAMEWORKS = ("torch", "horovod", "tensorflow", "jax", "numpy", "mpi4py", "onnx", "onnxruntime", "onnxscript")
LONGEST_FUNCTION = 60  # lines
SCHEDULER_WORDS = ("sbatch", "qsub", "sacct", "qstat")


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_room(path: Path) -> str:
    relative = path.relative_to(ROOT / "hpcml")
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def graph() -> dict[str, set[str]]:
    """Return what each module of hpcml imports of hpcml, at the top or in a function."""
    names = {name_of(path) for path in modules("hpcml")}
    found = {}
    for path in modules("hpcml"):
        known = names & set(
            imported(path)
        )  # `from a import b` gives a and a.b: the longest name that is a module counts
        own = {name for name in known if not any(other.startswith(f"{name}.") for other in known)}
        found[name_of(path)] = own - {name_of(path)}
    return found


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def test_imports_point_down_and_rooms_of_one_level_are_strangers() -> None:
    for module, others in graph().items():
        if room(module) == "__init__":
            continue
        assert room(module) in LEVELS, f"{module} has no level"
        for other in others:
            same_room = room(other) == room(module)
            below = room(other) == "__init__" or LEVELS[room(other)] < LEVELS[room(module)]
            is_shown = (room(module), room(other)) == SHOWS
            assert same_room or below or is_shown, f"{module} must not know {other}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = {module: set(others) for module, others in graph().items() if module != "hpcml"}  # which is lazy
    while leaves := {module for module, others in left.items() if not others & left.keys()}:
        for module in leaves:
            del left[module]
    assert not left, f"a circle among {sorted(left)}"


def test_the_client_and_the_training_library_have_no_circle() -> None:
    paths = {name_of(path): path for package in ("hpcml_client", "hpcml_train") for path in modules(package)}
    left = {}
    for name, path in paths.items():  # within functions and for types too
        nodes = [node for node in ast.walk(tree(path)) if isinstance(node, ast.ImportFrom)]
        found = {each for node in nodes for each in (node.module, *(f"{node.module}.{a.name}" for a in node.names))}
        left[name] = {each for each in found & paths.keys() if each != name}
        assert not (name.startswith("hpcml_client") and any(each.startswith("hpcml_train") for each in found)), name
    while leaves := {name for name, others in left.items() if not others & left.keys()}:
        for name in leaves:
            del left[name]
    assert not left, f"a circle among {sorted(left)}"


def test_no_module_is_a_fragment_of_its_one_importer() -> None:
    importers: dict[str, set[str]] = {}
    for module, others in graph().items():
        for other in others:
            importers.setdefault(other, set()).add(module)
    for path in modules("hpcml"):
        module, lines = name_of(path), len(path.read_text(encoding="utf-8").splitlines())
        by = importers.get(module, set())
        alone = len(by) == 1 and room(next(iter(by))) == room(module)
        if path.stem != "__init__" and alone and lines < 80:
            assert module in SMALL_TOPICS, f"{module} ({lines} lines) belongs into {by}"


def test_no_public_class_name_stands_twice() -> None:
    places: dict[str, list[str]] = {}
    for path in modules("hpcml"):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name_of(path))
    twice = {name: where for name, where in places.items() if len(where) > 1 and name not in SAME_NAME}
    assert not twice


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{name_of(path)}.{node.name}": lines
        for package in ("hpcml", "hpcml_client", "hpcml_train")
        for path in modules(package)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > LONGEST_FUNCTION
    }
    assert not long


def test_each_library_has_one_owner() -> None:
    for path in modules("hpcml"):
        relative = path.relative_to(ROOT / "hpcml")
        places = {own_room(path), str(relative), str(relative.parent)}
        for name in imported(path):
            library = name.partition(".")[0]
            if library in OWNERS:
                assert places & OWNERS[library], f"{library} is not for {relative}"


def test_only_the_schedulers_room_says_a_schedulers_commands() -> None:
    for path in modules("hpcml"):
        if own_room(path) != "schedulers":
            texts = {node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant)}
            assert not texts.intersection(SCHEDULER_WORDS), path


def test_the_model_and_the_run_directories_use_the_standard_library_and_the_client_only() -> None:
    allowed = set(sys.stdlib_module_names) | {"hpcml", "hpcml_client"}
    for path in modules("hpcml"):
        if LEVELS.get(own_room(path), 9) <= 3:
            assert {name.partition(".")[0] for name in imported(path)} <= allowed, path


def test_the_client_uses_the_standard_library_only() -> None:
    allowed = set(sys.stdlib_module_names) | {"hpcml_client"}
    for path in modules("hpcml_client"):
        lazy = {"hpcml_train"} if path.stem == "client" else set()  # apply_precision opens it
        assert {name.partition(".")[0] for name in imported(path)} <= allowed | lazy | CALLBACKS.get(
            path.stem, set()
        ), path
        assert not {f"hpcml_client.{name}" for name in CALLBACKS} & set(imported(path)), path


def test_the_training_library_uses_the_standard_library_frameworks_and_the_client_only() -> None:
    allowed = set(sys.stdlib_module_names) | {"hpcml_client", "hpcml_train", *FRAMEWORKS, "PIL"}
    for path in modules("hpcml_train"):
        assert {name.partition(".")[0] for name in imported(path)} <= allowed, path


def test_recipes_use_the_standard_library_their_framework_and_the_client_only() -> None:
    for path in modules("recipes"):
        names = {name.partition(".")[0] for name in imported(path)}
        siblings = {sibling.stem for sibling in path.parent.glob("*.py")}
        assert names <= set(sys.stdlib_module_names) | {"hpcml_client", "hpcml_train", *FRAMEWORKS} | siblings, path


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


@pytest.mark.parametrize("line", ["runs", "status", "sync", "compare", "run --dry-run", "run workload.command=true"])
def test_no_command_loads_torch(line: str, tmp_path: Path) -> None:
    for seed, name in itertools.product(range(3), (PrecisionName.fp32, PrecisionName.tf32)):
        uid = f"20260528-202640-{name.name}aa{'abc'[seed]}"
        run_dir = make_run_dir(tmp_path / "runs", uid, precision=Precision(name=name), seed=seed)
        Journal(run_dir).metrics(1, 5.0, val_accuracy=0.9 + seed / 100)
        agent = Journal(run_dir, writer="agent")
        agent.event("attempt_started", 1.0)
        agent.event("attempt_ended", 9.0, state="COMPLETED", exit_code=0)
    words = ["compare", "--by", "precision"] if line == "compare" else line.split()

    assert "torch" not in loaded_by(*words, tmp_path=tmp_path)


def test_no_two_files_of_tests_have_one_name() -> None:
    # pytest imports them by their names alone: of two, one is not collected
    names = sorted(path.name for path in (ROOT / "tests").rglob("test_*.py"))

    assert [name for name, after in itertools.pairwise(names) if name == after] == []
