"""The recipe image_classification as tests start it, and what it left behind."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcml.model.choices import Numerics
from hpcml.model.precision import CPU, PrecisionName, decide_numerics
from hpcml.runs.atomic import write_text
from hpcml.runs.journal import Event, Metrics, read_journal
from tests import warm_frameworks
from tests.warm import Process

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "image_classification" / "train.py"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What a run left in the journal of its first rank."""

    metrics: list[Metrics]
    events: dict[str, dict[str, Any]]

    def series(self, name: str) -> list[float]:
        return [record.values[name] for record in self.metrics if name in record.values]


def config_of(precision: str = "fp32", **changes: object) -> dict[str, Any]:
    run = {
        "model": {"name": "mnist_cnn", "recipe": "image_classification", "framework": "torch"},
        "data": {"name": "digits", "path": None, "holdout": 0.2},
        "precision": {"name": precision, "numerics": "auto", "rounding": "rna", "loss_scaling": True},
        "strategy": {"name": "single"},
        "layout": {"name": "nchw"},
        "training": {"steps": 30, "batch_size": 64, "learning_rate": 1e-3, "eval_every": 20, "deterministic": True},
        "seed": 0,
    }
    for path, value in changes.items():
        *outer, last = path.split("__")
        place: dict[str, Any] = run
        for name in outer:
            place = place[name]
        place[last] = value
    numerics = decide_numerics(PrecisionName[precision], Numerics.auto, CPU).name
    return {"run": run, "plan": {"device": "cpu", "numerics": numerics}}


def start(run_dir: Path, config: Mapping[str, Any], **environ: str) -> Process:
    run_dir.mkdir(exist_ok=True)
    write_text(run_dir / "run.json", json.dumps(config))  # whole: other ranks may be reading it by now
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "SLURM_"))}
    env = {**kept, "HPCML_RUN_DIR": str(run_dir), "HPCML_CONFIG": str(run_dir / "run.json"), "OMP_NUM_THREADS": "1"}
    env.update(environ)
    return warm_frameworks.start(RECIPE, framework=config["run"]["model"]["framework"], environ=env)


def start_ranks(run_dir: Path, config: Mapping[str, Any], count: int, **environ: str) -> list[Process]:
    """Start *count* processes that train together; one is started as one that knows of no others."""
    if count == 1:
        return [start(run_dir, config, **environ)]
    if config["run"]["strategy"]["name"] == "single":
        config["run"]["strategy"]["name"] = "ddp"
    environ |= {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    return [start(run_dir, config, RANK=str(rank), LOCAL_RANK=str(rank), **environ) for rank in range(count)]


def _free_port() -> int:
    """Return a port below those that the kernel gives away by itself: nobody takes it between now and its use."""
    while True:
        port = random.randrange(10_000, 26_000)  # noqa: S311 - no secret
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def finish(ranks: Sequence[Process]) -> list[str]:
    """Wait for all *ranks*, which must succeed, and return what each wrote to stderr; none is left behind."""
    try:
        said = [process.communicate(timeout=300)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert [process.returncode for process in ranks] == [0] * len(ranks), said
    return said


def run_whole(run_dir: Path, config: Mapping[str, Any]) -> Recorded:
    finish([start(run_dir, config)])
    return read_rank0(run_dir)


def read_rank0(run_dir: Path, attempt: int = 0) -> Recorded:
    (path,) = (run_dir / "journal").glob(f"{attempt}-*-rank0.jsonl")
    chunk = read_journal(path)
    assert chunk.bad_lines == 0
    return Recorded(
        metrics=[record for record in chunk.records if isinstance(record, Metrics)],
        events={record.name: record.details for record in chunk.records if isinstance(record, Event)},
    )
