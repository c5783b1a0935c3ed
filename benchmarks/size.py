"""What a person notices of hpcml's speed: each figure against its bound, on this machine.

``python benchmarks/size.py [--runs 10000]`` writes that many run directories as `hpcml run` and its agent leave them,
has them read into a store, and asks about ten runs and about all of them. Then it composes a sweep, starts a program
and reports metrics. Of commands the CPU time counts, the least of three: other work on the machine can only add to it.
The exit status is 1 where a bound is not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcml.runs.journal import Event, read_journal
from hpcml.runs.layout import RunDir
from hpcml_client import connect
from hpcml_client.journal import JournalWriter

HPCML = [sys.executable, "-c", "from hpcml.cli.main import main; main()"]
PRECISIONS, STEPS, SETTINGS, SEEDS = ("fp32", "tf32", "amp_bf16"), 20, 90, 5
QUESTIONS = {  # what is asked, and the most CPU seconds of ten runs and of 10,000
    "runs": (0.6, 1.5),
    "status": (0.6, 1.5),
    "show @1": (0.6, 1.5),
    "compare --by precision": (1.5, 2.5),
    "report --md": (1.5, None),
}
FIRST_READING_S, DRY_RUN_S, SWEEP_S, AGENT_S, METRIC_US = 60.0, 1.0, 5.0, 0.3, 10.0
SWEEP, CALLS, REPEAT, SAMPLES = 1000, 50_000, 3, 10
LONG_AGO = time.time() - 86_400.0


def write_run(runs: Path, number: int) -> None:
    """Write the directory of one run that has ended, with its journals and telemetry."""
    uid = f"20261121-{number:06d}-bench4"
    folder = runs / "benchmark" / uid
    for name in ("journal", "telemetry"):
        (folder / name).mkdir(parents=True)
    with JournalWriter.open(str(folder / "journal"), run=uid, writer="rank0") as journal:
        for step in range(STEPS):
            journal.metrics(step, {"loss": 1 / (step + 1 + number % 7), "step_time_s": 0.1})
        journal.metrics(STEPS, {"val_accuracy": 0.9 + number % 97 / 1000})
    with JournalWriter.open(str(folder / "journal"), run=uid, writer="agent") as journal:
        journal.event("attempt_started", {"job_id": str(number)})
        journal.event("facts", {"hostname": "node1", "gpu_model": "NVIDIA A100", "torch": "2.13.0"})
        journal.event("attempt_ended", {"state": "COMPLETED", "exit_code": 0, "wall_s": 10.0})
    with JournalWriter.open(str(folder / "telemetry"), run=uid, writer="node0") as journal:
        journal.event("devices", {"gpus": [], "interval_s": 1.0})
        for at in range(SAMPLES):
            journal.metrics(at, {"host.at_s": at, "host.cpu_s": 0.9 * at, "host.memory_mb": 900 + at % 7})
        journal.event("sampler_ended", {"ticks": SAMPLES, "missed_ticks": 0})
    run: dict[str, Any] = {
        "experiment": "benchmark",
        "seed": number // len(PRECISIONS) % SEEDS,
        "model": {"name": "mnist_cnn", "recipe": "image_classification"},
        "precision": {"name": PRECISIONS[number % len(PRECISIONS)]},
        "cluster": {"name": "local", "scheduler": "local"},
        "objective": {"metric": "val_accuracy", "goal": "max", "margin": 0.02},
        "training": {"batch_size": 64, "steps": STEPS},
        "settings": {f"setting_{at}": at for at in range(SETTINGS)},
    }
    manifest = {
        "format": 1,
        "uid": uid,
        "spec_hash": f"{number % (SEEDS * len(PRECISIONS)):016x}",
        "run": run,
        "plan": {"numerics": "native"},
        "provenance": {"submitted_at": "2026-11-21T00:00:00+00:00"},
    }
    (folder / "run.json").write_text(json.dumps(manifest), encoding="utf-8")
    for path in [*folder.rglob("*"), folder]:  # most runs of a large home ended long ago
        os.utime(path, (LONG_AGO, LONG_AGO))


def command(home: Path, *words: str) -> float:
    """Run hpcml in *home* with its output thrown away; return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environ = {**os.environ, "HPCML_HOME": str(home)}
    done = subprocess.run([*HPCML, *words], env=environ, cwd=home, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"hpcml {' '.join(words)} ended with status {done.returncode}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def questions(home: Path, count: int) -> Iterator[tuple[str, float, float]]:
    """Yield what *count* runs cost: their first reading, and each question."""
    for number in range(count):
        write_run(home / "runs", number)
    began = time.monotonic()
    command(home, "runs")
    yield f"first reading of {count:,} runs, s", time.monotonic() - began, FIRST_READING_S
    for words, (few_s, many_s) in QUESTIONS.items():
        if (bound := few_s if count <= 10 else many_s) is not None:
            yield (
                f"hpcml {words}, {count:,} runs, CPU s",
                min(command(home, *words.split()) for _ in range(REPEAT)),
                bound,
            )


def until_the_program_s(home: Path) -> float:
    """Return the time from the start of an agent to that of its program, the median of three runs."""
    found = []
    booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)  # the kernel's own is in whole seconds
    for _ in range(REPEAT):
        command(home, "run", "experiment=starts", "--", "date", "+%s.%N")
    for folder in (home / "runs" / "starts").iterdir():
        run_dir = RunDir(folder)
        records = [record for path in run_dir.journal_files() for record in read_journal(path).records]
        (began,) = (
            record.details for record in records if isinstance(record, Event) and record.name == "attempt_started"
        )
        agent_at = booted_at + began["start_ticks"] / os.sysconf("SC_CLK_TCK")
        found.append(float(run_dir.stdout(0, 0).read_text(encoding="ascii")) - agent_at)
    return statistics.median(found)


def metric_us(folder: Path) -> float:
    """Return the median time of one `run.metric`."""
    took = []
    with connect({"HPCML_RUN_DIR": str(folder), "HPCML_RUN_ID": "20261121-000000-metric", "RANK": "0"}) as run:
        for step in range(CALLS):
            began = time.perf_counter()
            run.metric("loss", 1 / (step + 1), step=step)
            took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e6


def figures(folder: Path, count: int) -> Iterator[tuple[str, float, float]]:
    """Yield each figure with its bound."""
    homes = {name: folder / name for name in ("few", "many", "new", "metric")}
    for home in homes.values():
        home.mkdir(mode=0o700)
    yield from list(questions(homes["few"], 10))[1:]
    yield from questions(homes["many"], count)
    new = homes["new"]
    yield "hpcml run -n of one run, CPU s", min(command(new, "run", "-n") for _ in range(REPEAT)), DRY_RUN_S
    yield f"hpcml run -n of {SWEEP:,}, CPU s", command(new, "run", "-n", "-m", f"seed=range({SWEEP})"), SWEEP_S
    yield "agent's start until its program's, s", until_the_program_s(new), AGENT_S
    yield "run.metric(), us", metric_us(homes["metric"]), METRIC_US


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10_000, help="how many run directories are written")
    chosen = parser.parse_args()
    is_kept = True
    with tempfile.TemporaryDirectory() as folder:
        print("| what | found | bound | |\n|---|---:|---:|---|")
        for what, found, bound in figures(Path(folder), chosen.runs):
            is_kept &= found <= bound
            print(f"| {what} | {found:.3g} | {bound:g} | {'' if found <= bound else 'not kept'} |", flush=True)
    sys.exit(0 if is_kept else 1)


if __name__ == "__main__":
    main()
