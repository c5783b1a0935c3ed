"""The queue of one local batch: starts the agent of each run as soon as its cores and GPUs are free."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcml.codec import decode, encode
from hpcml.rundir import RunDir
from hpcml.schedulers.slots import Claim, Need, Pool, claim

_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """One run of a batch."""

    run_dir: str
    need: Need


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a queue needs to know."""

    jobs: list[Queued]
    lock_dir: str
    pool: Pool
    max_parallel: int | None


def write_batch(folder: Path, batch: Batch) -> None:
    """Leave *batch* in *folder*."""
    (folder / "batch.json").write_text(json.dumps(encode(batch)), encoding="utf-8")


def drain(folder: str) -> None:
    """Run the whole batch; each run is an agent in a session of its own, which outlives this queue if need be."""
    batch: Batch = decode(Batch, json.loads((Path(folder) / "batch.json").read_text(encoding="utf-8")))
    waiting = deque(batch.jobs)
    active: list[tuple[subprocess.Popen[bytes], Claim]] = []
    limit = batch.max_parallel or len(waiting)
    while waiting or active:
        for process, held in [entry for entry in active if entry[0].poll() is not None]:
            held.release()
            active.remove((process, held))
        while waiting and RunDir(Path(waiting[0].run_dir)).cancel_mark.exists():
            waiting.popleft()
        if waiting and len(active) < limit and (got := claim(waiting[0].need, batch.pool, Path(batch.lock_dir))):
            active.append((_start_agent(RunDir(Path(waiting.popleft().run_dir)), got, os.environ), got))
            continue
        time.sleep(_POLL_S)


def _start_agent(run_dir: RunDir, held: Claim, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # submitit empties CUDA_VISIBLE_DEVICES and marks its own job; a run gets the GPUs that it claimed and no marks
    inherited = {name: value for name, value in environ.items() if not name.startswith("SUBMITIT_")}
    with (run_dir.path / "queue.log").open("ab") as log:
        return subprocess.Popen(
            ["/bin/bash", str(run_dir.script)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**inherited, "CUDA_VISIBLE_DEVICES": ",".join(held.gpus)},
            start_new_session=True,
        )
