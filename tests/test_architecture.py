"""The house of docs/architecture.md, held: levels, no circles or fragments, owners of libraries, what is loaded."""

from __future__ import annotations

import ast
import functools
import itertools
import json
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
    **dict.fromkeys(("model", "bundled_commands"), 2),
    **dict.fromkeys(("paths", "mounts", "units", "moments", "codec", "formulas", "plugins", "bundled", "spelling"), 1),
    "errors": 0,
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
    "mlflow": {"interop/mlflow_client.py", "interop/mlflow_export.py"},
    "tensorboard": {"interop/tensorboard_export.py"},
    "rocrate": {"interop/crate_export.py"},
    "orjson": {"store/parse.py"},
    "pyarrow": {"interop/parquet_export.py"},
    "torch": set(),
    "tensorflow": set(),
    "keras": set(),
    "jax": set(),
    "horovod": set(),
}
# Imports of hpcml inside a function: (where, what), and why it is not at the top. The commands of cli/ are exempt.
LATE: dict[tuple[str, str], str] = {
    ("hpcml", "hpcml.api.store"): "`import hpcml` costs an agent nothing",
    ("hpcml", "hpcml.api.submission"): "as above",
    ("hpcml.api.submission", "hpcml.commands.submit.looks"): "loads the statistics, for planned looks alone",
    ("hpcml.api.store", "hpcml.commands.best"): "loads the statistics: half a second",
    ("hpcml.api.store", "hpcml.commands.compare"): "as above",
    ("hpcml.agent.main", "hpcml.agent.turns"): "after it is known where modules are found: hpcml.bundled",
    ("hpcml.agent.main", "hpcml.agent.mpi.rank"): "as above",
    ("hpcml.agent.main", "hpcml.paths"): "for names of files in ASCII alone",
    ("hpcml.schedulers.local.start", "hpcml.schedulers.local.queue"): "as above",
    ("hpcml.agent.bundle", "hpcml.runs.atomic"): "what dataclasses write is noted before",
    (
        "hpcml.agent.turns",
        "hpcml.agent.attempt",
    ): "loaded while the sampler, which is another process, loads what it needs",
    ("hpcml.agent.telemetry.control", "hpcml.agent.telemetry.summary"): "loaded once the program runs",
    ("hpcml.agent.supervise", "hpcml.model.secrets"): "as above",
    ("hpcml.agent.processes", "hpcml.model.secrets"): "for processes that are left behind alone",
    (
        "hpcml.agent.telemetry.control",
        "hpcml.agent.telemetry.host",
    ): "where the agent reads itself what a sampler would",
    ("hpcml.agent.telemetry.control", "hpcml.agent.telemetry.sampler"): "in the sampler's own process",
    ("hpcml.agent.attempt", "hpcml.agent.other_nodes"): "as the next, and for runs on several nodes alone",
    ("hpcml.agent.attempt", "hpcml.agent.ending"): "loaded once the program runs, which would wait for it",
    ("hpcml.runs.orders", "hpcml.runs.manifest"): "for webhooks, and for what another version has written",
    (
        "hpcml.agent.attempt",
        "hpcml.agent.metrics.follow",
    ): "once the program runs, unless files are followed",
    ("hpcml.agent.attempt", "hpcml.agent.metrics.printed"): "as above",
    ("hpcml.agent.attempt", "hpcml.agent.staging"): "for runs with a working directory of their own",
    ("hpcml.agent.attempt", "hpcml.agent.history"): "for attempts that go on from another",
    ("hpcml.agent.turns", "hpcml.model.failure_causes"): "for an agent that cannot be loaded",
    ("hpcml.agent.turns", "hpcml.agent.lanes"): "for jobs of several runs alone",
    ("hpcml.agent.metrics.numbers", "hpcml.model.metric_goal"): "for numbers in groups of three digits",
    ("hpcml.agent.metrics.printed", "hpcml.model.metric_goal"): "for losses that are no number, and rules of one name",
    ("hpcml.agent.metrics.follow", "hpcml.agent.metrics.json_files"): "for files with metrics, as where one is found",
    ("hpcml.agent.metrics.follow", "hpcml.agent.metrics.tables"): "as above",
    ("hpcml.agent.metrics.reading", "hpcml.model.metric_goal"): "for metrics whose last rows have no value",
    ("hpcml.agent.metrics.trainings", "hpcml.model.metric_goal"): "for metrics whose steps begin anew",
    ("hpcml.agent.metrics.sources", "hpcml.agent.metrics.event_files"): "for the first file with metrics",
    ("hpcml.agent.metrics.sources", "hpcml.agent.metrics.json_files"): "as above",
    ("hpcml.agent.metrics.sources", "hpcml.agent.metrics.tables"): "as above",
    ("hpcml.agent.metrics.sources", "hpcml.agent.metrics.wandb_log"): "as above",
    ("hpcml.agent.attempt", "hpcml.agent.mpi.job"): "for ranks that MPI starts alone",
    (
        "hpcml.agent.telemetry.sampler",
        "hpcml.agent.telemetry.others",
    ): "looks for packages that add samplers, which few runs ask for",
    ("hpcml.agent.notify", "hpcml.agent.webhook"): "HTTP and TLS would cost every run tens of milliseconds",
    ("hpcml.commands.collect", "hpcml.commands.ends"): "loads the schedulers, for runs that have not ended alone",
    ("hpcml.commands.collect", "hpcml.store.ingest"): "loads what reads run directories, for those with news alone",
    ("hpcml.commands.collect", "hpcml.store.manifest_rows"): "as above: for a run that is asked for and is not there",
    ("hpcml.commands.compare", "hpcml.analysis.compare.checklist"): "for the few who ask for it",
    ("hpcml.commands.machine", "hpcml.agent.host"): "loads psutil and NVML, for those who submit to this machine",
    ("hpcml.commands.machine", "hpcml.agent.nvml.inventory"): "as above",
    ("hpcml.commands.machine", "hpcml.agent.telemetry.gpus"): "as above",
    ("hpcml.commands.retry", "hpcml.commands.image_uses"): "loads what submits runs, for those that are retried alone",
    ("hpcml.commands.retry", "hpcml.commands.ends"): "loads what judges runs, for those that are retried alone",
    ("hpcml.commands.retry", "hpcml.commands.status"): "as above",
    ("hpcml.commands.retry", "hpcml.commands.submit.dependencies"): "as above",
    ("hpcml.commands.retry", "hpcml.commands.submit.launch"): "as above",
    ("hpcml.commands.retry", "hpcml.commands.submit.queues"): "as above",
    ("hpcml.commands.retry", "hpcml.commands.submit.workload"): "as above",
    ("hpcml.commands.retry", "hpcml.store.ingest"): "as above",
    ("hpcml.commands.ends", "hpcml.store.ingest"): "loads SQLAlchemy, for runs whose end nobody recorded",
    ("hpcml.commands.ends", "hpcml.store.scheduler_polls"): "as above",
    ("hpcml.commands.submit.recover", "hpcml.store.rows"): "for interrupted submissions alone",
    ("hpcml.commands.status", "hpcml.commands.submit.recover"): "loads what submits runs, for queues that are there",
    ("hpcml.commands.status", "hpcml.schedulers.local.waiting"): "loads the queue, for runs that wait in one",
    ("hpcml.commands.submit.backends", "hpcml.schedulers.local.slots"): "loads what jobs are made of: few submit any",
    ("hpcml.commands.submit.backends", "hpcml.schedulers.local.submitter"): "as above",
    ("hpcml.commands.submit.backends", "hpcml.schedulers.registry"): "loads all schedulers, for those that are asked",
    ("hpcml.commands.sync", "hpcml.commands.rm"): "for interrupted removals alone",
    ("hpcml.commands.sync", "hpcml.commands.submit.recover"): "for interrupted submissions alone",
    ("hpcml.commands.sync", "hpcml.commands.wait"): "loads what submits runs, for those that are retried alone",
    ("hpcml.commands.sync", "hpcml.schedulers.registry"): "loads all schedulers, for files that their jobs left",
    ("hpcml.report.status", "hpcml.report.render.data"): "loads all kinds of documents, which a table has no use for",
    ("hpcml.commands.sync", "hpcml.commands.submit.looks"): "loads the statistics, for planned looks alone",
    ("hpcml.commands.ends", "hpcml.agent.notify"): "loads what an agent needs, for a few runs that ended unseen",
    ("hpcml.commands.ends", "hpcml.agent.assignment"): "as above",
    ("hpcml.commands.submit.preflight", "hpcml.commands.submit.walltimes"): "loads the database, which few runs need",
    (
        "hpcml.commands.submit.dry_run",
        "hpcml.commands.submit.dependencies",
    ): "loads the database, for runs that wait for others alone",
    (
        "hpcml.commands.submit.dry_run",
        "hpcml.commands.submit.images",
    ): "loads the database, for runs in containers alone",
    (
        "hpcml.commands.submit.dry_run",
        "hpcml.commands.submit.look_plan",
    ): "loads the statistics, for planned looks alone",
    ("hpcml.commands.submit.walltimes", "hpcml.commands.estimate"): "loads the statistics",
    ("hpcml.commands.submit.run", "hpcml.commands.submit.look_plan"): "loads the statistics, for planned looks alone",
    ("hpcml.commands.submit.run", "hpcml.commands.submit.looks"): "as above",
    ("hpcml.report.runs", "hpcml.report.render.data"): "loads all kinds of documents, which a table has no use for",
    ("hpcml.report.runs", "hpcml.report.render.markdown"): "as above",
    ("hpcml.schedulers.slurm.submitter", "hpcml.schedulers.slurm.submission"): "loads submitit, for submissions alone",
    ("hpcml.schedulers.slurm.rehearsal", "hpcml.schedulers.slurm.submission"): "as above",
    ("hpcml.store.opening", "hpcml.store.postgres"): "most stores are files",
    ("hpcml.store.opening", "hpcml.store.sqlite.published"): "most stores are used by one host",
    ("hpcml.store.opening", "hpcml.store.sqlite.read_only"): "most stores are one's own",
    ("hpcml.store.sqlite.file", "hpcml.store.sqlite.engine"): "loads SQLAlchemy, which who only reads has no use for",
    ("hpcml.store.sqlite.published", "hpcml.store.sqlite.engine"): "as above",
    ("hpcml.commands.collect", "hpcml.store.rest_rows"): "as above",
    ("hpcml.commands.status", "hpcml.store.scheduler_polls"): "as above",
    ("hpcml.commands.sync", "hpcml.store.rest_rows"): "as above",
    ("hpcml.store.postgres", "hpcml.store.create"): "loads Alembic, for a store that is to be made",
    ("hpcml.store.sqlite.engine", "hpcml.store.create"): "as above",
}
# A module under 80 lines with one importer, in its own room: the topic that a reader looks for under its name.
SMALL_TOPICS: dict[str, str] = {
    "hpcml.cli.start": "what begins a command before its modules are loaded, and so loads none itself",
    "hpcml.cli.numerics": "what is kept from libraries of numbers, which main need not be read with",
    "hpcml.config.once": "a class in place of Hydra's own, which compose need not be read with",
    "hpcml.commands.submit.walltimes": "loads the database, and so only where a walltime has to be judged (LATE)",
    "hpcml.commands.submit.launchers": "what starts MPI programs at which scheduler: a new one adds its line there",
    "hpcml.schedulers.pbs.rehearsal": "the counterpart of slurm/rehearsal: a scheduler's folders have the same files",
    "hpcml.schedulers.flux.site": "every backend has the same files, and a site is looked for here",
    "hpcml.schedulers.lsf.site": "as above",
    "hpcml.agent.lanes": "packed runs side by side on MIG slices: why the agent starts itself again",
    "hpcml.commands.submit.import_paths": "asks a program's own Python from where it imports",
}
# Public names that stand twice on purpose: what the Python API calls as its users would, and the value behind it.
SAME_NAME: dict[str, str] = {
    "Curves": "the Python API's, with frames, around the model's",
}
CALLBACKS = {  # modules of the client for those who have the framework; nothing else imports them
    "accelerate": {"accelerate"},
    "keras": {"keras"},
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
        own = set()
        for name in imported(path):  # `from a import b` gives a and a.b: the longest name that is a module counts
            if name in names and not any(other.startswith(f"{name}.") for other in names & set(imported(path))):
                own.add(name)
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
            assert same_room or below, f"{module} must not know {other}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = {module: set(others) for module, others in graph().items() if module != "hpcml"}  # which is lazy: LATE
    while leaves := {module for module, others in left.items() if not others & left.keys()}:
        for module in leaves:
            del left[module]
    assert not left, f"a circle among {sorted(left)}"


def test_the_client_and_the_training_library_load_no_circle() -> None:
    paths = {name_of(path): path for package in ("hpcml_client", "hpcml_train") for path in modules(package)}
    left = {}
    for name, path in paths.items():  # what stands at the top: the client asks for hpcml_train where it is called for
        nodes = [node for node in tree(path).body if isinstance(node, ast.ImportFrom)]
        found = {each for node in nodes for each in (node.module, *(f"{node.module}.{a.name}" for a in node.names))}
        left[name] = {each for each in found & paths.keys() if each != name}
        assert not (name.startswith("hpcml_client") and any(each.startswith("hpcml_train") for each in found)), name
    while leaves := {name for name, others in left.items() if not others & left.keys()}:
        for name in leaves:
            del left[name]
    assert not left, f"a circle among {sorted(left)}"


def test_imports_stand_at_the_top_but_for_the_listed_ones() -> None:
    seen = set()
    for path in modules("hpcml"):
        if own_room(path) == "cli":  # a command imports what it calls: `hpcml --help` stays fast
            continue
        for function in ast.walk(tree(path)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hpcml"):
                    names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                    (target,) = {max(names & graph().keys(), key=len)}
                    assert (name_of(path), target) in LATE, f"{name_of(path)} imports {target} inside {function.name}"
                    seen.add((name_of(path), target))
    assert seen == LATE.keys(), "no longer needed in LATE"


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


def test_the_model_and_the_run_directories_use_the_standard_library_only() -> None:
    allowed = set(sys.stdlib_module_names) | {"hpcml"}
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


def modules_after(*words: str, tmp_path: Path) -> set[str]:
    """Return all modules that are loaded once `hpcml *words*` has ended."""
    told = tmp_path / "modules.json"
    program = (
        "import atexit, json, sys\n"
        f"atexit.register(lambda: open({str(told)!r}, 'w').write(json.dumps(list(sys.modules))))\n"
        "from hpcml.cli.main import main; main()"
    )
    (tmp_path / "runtime").mkdir(mode=0o700, exist_ok=True)  # whose cores nobody else claims
    environ = {**os.environ, "HPCML_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60, check=False, env=environ
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return set(json.loads(told.read_text(encoding="utf-8")))


def test_a_list_of_runs_without_news_loads_nothing_that_reads_judges_or_submits_them(tmp_path: Path) -> None:
    loaded = {name for name in modules_after("runs", tmp_path=tmp_path) if name.startswith("hpcml")}

    assert "hpcml.store.news" in loaded
    unwanted = ("hpcml.schedulers", "hpcml.agent", "hpcml.analysis", "hpcml_client", "hpcml_train", "hpcml.model.run")
    assert not {name for name in loaded if name.startswith(unwanted)}
    assert not loaded & {"hpcml.store.ingest", "hpcml.store.postgres", "hpcml.commands.ends", "hpcml.report.document"}


# What reading commands do without on a store in which nothing is new, and no run is going on.
_FOREIGN_TO_READING = {"alembic", "hydra", "jinja2", "numpy", "omegaconf", "plotly", "psutil", "psycopg", "pynvml"}
_FOREIGN_TO_READING |= {"scipy", "spython", "sqlalchemy", "submitit", "torch", "yaml"}
_OF_SUBMITTING = (
    *("hpcml.agent", "hpcml.images", "hpcml.schedulers.local", "hpcml.schedulers.registry", "hpcml.store.ingest"),
    *("hpcml.commands.submit.launch", "hpcml.commands.submit.recover", "hpcml.commands.retry_policy"),
    "hpcml.config",
)
_OF_RUN_JSON = ("hpcml.model.run", "hpcml.runs.manifest")
UNWANTED = {
    "runs": ("hpcml.commands.status", *_OF_SUBMITTING, *_OF_RUN_JSON),
    "status": ("hpcml.report.document", "hpcml.store.rows", *_OF_SUBMITTING, *_OF_RUN_JSON),
    "sync": ("hpcml.report.document", "hpcml.commands.rm", "hpcml.store.rows", *_OF_SUBMITTING, *_OF_RUN_JSON),
    "show @1": ("hpcml.commands.status", "hpcml.model.publication", *_OF_SUBMITTING),
    "compare --by precision": ("hpcml.commands.status", *_OF_SUBMITTING),
}


@pytest.mark.parametrize("line", UNWANTED)
def test_a_command_that_reads_what_has_ended_loads_nothing_that_submits(line: str, tmp_path: Path) -> None:
    for seed, name in itertools.product(range(3), (PrecisionName.fp32, PrecisionName.tf32)):
        uid = f"20260528-202640-{name.name}aa{'abc'[seed]}"
        run_dir = make_run_dir(tmp_path / "runs", uid, precision=Precision(name=name), seed=seed)
        Journal(run_dir).metrics(1, 5.0, val_accuracy=0.9 + seed / 100)
        agent = Journal(run_dir, writer="agent")
        agent.event("attempt_started", 1.0)
        agent.event("attempt_ended", 9.0, state="COMPLETED", exit_code=0)
    modules_after("runs", tmp_path=tmp_path)  # reads them

    loaded = modules_after(*line.split(), tmp_path=tmp_path)

    libraries = {name.partition(".")[0] for name in loaded}
    assert "sqlite3" in libraries
    assert not libraries & (_FOREIGN_TO_READING - ({"numpy", "scipy"} if line.startswith("compare") else set()))
    assert not {name for name in loaded for bad in UNWANTED[line] if name == bad or name.startswith(f"{bad}.")}


def test_a_synchronisation_without_planned_looks_loads_no_statistics(tmp_path: Path) -> None:
    loaded = modules_after("sync", tmp_path=tmp_path)

    assert "hpcml.commands.sync" in loaded
    assert not {name.partition(".")[0] for name in loaded} & {"numpy", "scipy"}


def test_a_dry_run_loads_no_database_and_no_framework(tmp_path: Path) -> None:
    loaded = loaded_by("run", "--dry-run", tmp_path=tmp_path)

    assert "hydra" in loaded
    assert not loaded & {"sqlalchemy", "alembic", "scipy", "torch"}


def test_a_run_on_this_machine_loads_no_statistics_and_nothing_that_other_machines_need(tmp_path: Path) -> None:
    loaded = modules_after("run", "workload.command=true", tmp_path=tmp_path)

    assert "hpcml.schedulers.local.submitter" in loaded
    assert not {name.partition(".")[0] for name in loaded} & {"numpy", "scipy", "submitit", "torch"}


def test_an_agent_loads_little_before_it_starts_the_sampler() -> None:
    # Each module costs path operations on a shared file system, for which the program waits
    words = [sys.executable, "-P", "-c", "import json, sys, hpcml.agent.turns; print(json.dumps(list(sys.modules)))"]
    loaded = set(json.loads(subprocess.run(words, capture_output=True, check=True, timeout=60).stdout))

    assert "hpcml.agent.telemetry.control" in loaded
    late = ("attempt", "metrics", "mpi", "telemetry.summary", "supervise", "host")
    assert not {name for name in loaded if name.startswith(tuple(f"hpcml.agent.{each}" for each in late))}
    assert not loaded & {
        "hpcml.model.run",
        "hpcml.model.cluster",
        "hpcml.model.records",
        "hpcml.model.looks",
        "psutil",
        "sqlite3",
        "hashlib",
        "logging",
        "tomllib",
    }
    assert len({name for name in loaded if name.startswith("hpcml")}) <= 45


def test_a_program_waits_for_little_that_its_agent_loads() -> None:
    program = (
        "import json, sys; before = set(sys.modules)\n"
        "import hpcml.agent.turns, hpcml.agent.attempt\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, check=True, timeout=60)
    loaded = set(json.loads(done.stdout))

    assert {"hpcml.agent.supervise", "hpcml.runs.orders"} <= loaded
    assert not loaded & {
        *("typing", "datetime", "hashlib", "logging", "socket", "psutil"),
        *("hpcml.model.run", "hpcml.model.cluster", "hpcml.model.container", "hpcml.model.precision"),
        *("hpcml.runs.manifest", "hpcml.agent.ending", "hpcml.agent.telemetry.sampler", "hpcml.agent.staging"),
        *("shutil", "hpcml.agent.metrics.follow", "hpcml.agent.metrics.printed"),
    }
    assert len({name for name in loaded if name.startswith("hpcml")}) <= 45


@pytest.mark.parametrize("name", ["ending", "lanes", "attempt"])
def test_an_agent_does_without_all_that_a_run_is(name: str) -> None:
    program = f"import json, sys, hpcml.agent.{name}; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, check=True, timeout=60)

    assert not {"hpcml.model.run", "hpcml.model.cluster", "hpcml.runs.manifest"} & set(json.loads(done.stdout))


def test_a_sampler_looks_for_no_packages_and_loads_no_run() -> None:
    program = "import json, sys, hpcml.agent.telemetry.sampler; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, check=True, timeout=60)

    assert not {"importlib.metadata", "hpcml.plugins", "hpcml.model.run"} & set(json.loads(done.stdout))


def test_a_command_does_not_search_its_memory_before_it_ends(tmp_path: Path) -> None:
    told = tmp_path / "frozen"
    program = (
        "import atexit, gc\n"  # what is registered first is called last
        f"atexit.register(lambda: open({str(told)!r}, 'w').write(str(gc.get_freeze_count())))\n"
        "from hpcml.cli.main import main; main()"
    )
    environ = {**os.environ, "HPCML_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program, "runs"], check=True, timeout=60, env=environ, capture_output=True)

    assert int(told.read_text(encoding="ascii")) > 10_000


def test_no_two_files_of_tests_have_one_name() -> None:
    # pytest imports them by their names alone: of two, one is not collected
    names = sorted(path.name for path in (ROOT / "tests").rglob("test_*.py"))

    assert [name for name, after in itertools.pairwise(names) if name == after] == []
